// @ts-check
/**
 * Requests to the HTTP API, and the session that they are made in.
 * Invariants: an act carries the session's CSRF token; no secret is kept once the sign-in was answered; a session that
 * the server no longer knows ends here too, so that the sign-in page appears instead of a view full of errors.
 */
import { signal } from './signal.js';

/** @typedef {{ user: string, role: string, csrf: string, expires_ms: number }} Session */
/** @typedef {Record<string, string | number | boolean | undefined | null>} Query */

/** A refusal or failure of the API, by its problem document (RFC 9457). */
export class Problem extends Error {
  /** @param {number} status @param {string} title @param {string} detail @param {string} reason */
  constructor(status, title, detail, reason) {
    super(detail || title);
    this.status = status;
    this.title = title;
    this.detail = detail;
    this.reason = reason;
  }
}

const BASE = '/api/v1';

/** `undefined` until the server has said whether there is a session; `null` without one. */
export const session = signal(/** @type {Session | null | undefined} */ (undefined));

/** Whether acts are shown: the monitor role only looks. */
export function mayAct() {
  const now = session.get();
  return Boolean(now) && now?.role !== 'monitor';
}

/** @param {string} path @param {Query} [query] */
export function address(path, query = {}) {
  const parts = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== '');
  const text = new URLSearchParams(parts.map(([name, value]) => [name, String(value)])).toString();
  return `${BASE}${path}${text ? `?${text}` : ''}`;
}

/**
 * @param {string} method
 * @param {string} path
 * @param {{ query?: Query, body?: unknown, signal?: AbortSignal }} [options]
 * @returns {Promise<any>}
 */
export async function request(method, path, options = {}) {
  /** @type {Record<string, string>} */
  const headers = { Accept: 'application/json' };
  if (options.body !== undefined) headers['Content-Type'] = 'application/json';
  const now = session.get();
  if (method !== 'GET' && now) headers['X-CSRF-Token'] = now.csrf;
  let answer;
  try {
    answer = await fetch(address(path, options.query), {
      method, headers, signal: options.signal, credentials: 'same-origin', cache: 'no-store',
      body: options.body === undefined ? undefined : JSON.stringify(options.body),
    });
  } catch (failure) {
    if (failure instanceof DOMException && failure.name === 'AbortError') throw failure;
    throw new Problem(0, 'No answer', 'The server did not answer. Is it running?', 'unreachable');
  }
  if (answer.status === 204) return null;
  const body = await answer.json().catch(() => null);
  if (answer.ok) return body;
  if (answer.status === 401 && session.get() && path !== '/session') session.set(null);
  throw new Problem(answer.status, body?.title ?? `Status ${answer.status}`, body?.detail ?? '', body?.reason ?? '');
}

/** @param {string} path @param {Query} [query] @param {AbortSignal} [signal] */
export const get = (path, query, signal) => request('GET', path, { query, signal });
/** @param {string} path @param {unknown} [body] */
export const post = (path, body = {}) => request('POST', path, { body });
/** @param {string} path @param {Query} [query] */
export const remove = (path, query) => request('DELETE', path, { query });

/** One part of a path; a topic keeps its slashes out of the path this way. @param {string} text */
export const part = (text) => encodeURIComponent(text);

/** @param {{ token: string } | { user: string, secret: string }} credentials */
export async function signIn(credentials) {
  session.set(await request('POST', '/session', { body: credentials }));
}

export async function signOut() {
  await request('DELETE', '/session').catch(() => null);
  session.set(null);
}

/** Ask for the session that a cookie of an earlier visit stands for. */
export async function resume() {
  try {
    session.set(await get('/session'));
  } catch (failure) {
    // A server that does not answer at all may still know the session when it does.
    const gone = failure instanceof Problem && failure.status === 0;
    if (!gone || !session.get()) session.set(null);
  }
}
