// @ts-check
/**
 * Where the reader is: `#/view/rest?name=value`.
 * Invariant: everything that decides what a view shows (search, page, selection) is in the address, so that a view can
 * be sent to somebody else and the browser's Back button works.
 */
import { signal } from './signal.js';

/** @typedef {{ view: string, rest: string, params: Record<string, string> }} Route */

/** @param {string} hash @returns {Route} */
export function parse(hash) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  const slash = path.indexOf('/');
  const view = slash < 0 ? path : path.slice(0, slash);
  const rest = slash < 0 ? '' : path.slice(slash + 1);
  return { view: view || 'overview', rest: decoded(rest), params: Object.fromEntries(new URLSearchParams(query)) };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** @param {string} view @param {Record<string, string | number | undefined>} [params] @param {string} [rest] */
export function link(view, params = {}, rest = '') {
  const kept = Object.entries(params).filter(([, value]) => value !== undefined && value !== '');
  const query = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
  return `#/${view}${rest ? `/${encodeURIComponent(rest)}` : ''}${query ? `?${query}` : ''}`;
}

export const route = signal(parse(location.hash));

addEventListener('hashchange', () => route.set(parse(location.hash)));

/** Change parameters of the present view without a step in the browser's history. @param {Record<string, string | number | undefined>} changed */
export function adjust(changed) {
  const now = route.get();
  history.replaceState(null, '', link(now.view, { ...now.params, ...changed }, now.rest));
  route.set(parse(location.hash));
}

/** @param {string} target */
export function go(target) {
  location.hash = target.slice(1);
}
