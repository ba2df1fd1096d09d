// @ts-check
/** What happened, said once: a toast for eyes and a live region for screen readers. */
import { Problem } from './api.js';
import { signal } from './signal.js';

/** @typedef {{ id: number, text: string, detail: string, bad: boolean }} Toast */

export const toasts = signal(/** @type {Toast[]} */ ([]));
let last = 0;

/** @param {string} text @param {string} [detail] @param {boolean} [bad] */
export function say(text, detail = '', bad = false) {
  const id = ++last;
  toasts.set([...toasts.get().slice(-3), { id, text, detail, bad }]);
  setTimeout(() => dismiss(id), bad ? 12_000 : 5_000);
}

/** @param {number} id */
export const dismiss = (id) => toasts.set(toasts.get().filter((toast) => toast.id !== id));

/**
 * Do something and say how it ended; a refusal is said in the server's words.
 * @template T
 * @param {string} done What is said on success.
 * @param {() => Promise<T>} act
 * @returns {Promise<T | undefined>}
 */
export async function attempt(done, act) {
  try {
    const result = await act();
    if (done) say(done);
    return result;
  } catch (failure) {
    const problem = failure instanceof Problem ? failure : new Problem(0, 'Failed', String(failure), '');
    say(problem.status === 403 ? 'Not allowed' : problem.title, problem.detail, true);
    return undefined;
  }
}
