// @ts-check
/** What a view shows instead of content: loading, nothing there, not allowed, not reached. */
import { Problem } from '../core/api.js';
import { html, useEffect, useState } from '../core/lib.js';
import { Icon } from './icon.js';

/** @param {{ rows?: number }} props */
export function Loading({ rows = 5 }) {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 150);
    return () => clearTimeout(timer);
  }, []);
  return html`<div class="skeleton" role="status">
    <span class="spoken">Loading</span>
    ${late && Array.from({ length: rows }, () => html`<span aria-hidden="true"></span>`)}
  </div>`;
}

/** @param {{ icon: string, title: string, children?: any }} props */
export function Empty({ icon, title, children }) {
  return html`<div class="state"><${Icon} name=${icon} /><h2>${title}</h2>${children}</div>`;
}

/** @param {{ error: any, retry?: () => void }} props */
export function Failed({ error, retry }) {
  const problem = error instanceof Problem ? error : new Problem(0, 'Something went wrong here', String(error?.message ?? error), '');
  if (problem.status === 403) {
    return html`<div class="state" role="status"><${Icon} name="lock" /><h2>You may not see this</h2>
      <p>${problem.detail || 'The access key that you signed in with does not allow it.'} Ask whoever keeps the access list, or sign in with another key.</p></div>`;
  }
  if (problem.status === 404 || problem.status === 501) {
    return html`<div class="state" role="status"><${Icon} name="info" /><h2>Not available here</h2>
      <p>${problem.detail || 'This server does not offer this.'}</p></div>`;
  }
  return html`<div class="state bad" role="alert"><${Icon} name="bad" /><h2>${problem.title}</h2>
    ${problem.detail && html`<p>${problem.detail}</p>`}
    ${retry && html`<button type="button" class="button" onClick=${retry}><${Icon} name="refresh" />Try again</button>`}</div>`;
}

/**
 * The right one of the four for a resource.
 * @param {{ of: import('../core/resource.js').Resource, empty?: any, isEmpty?: boolean, rows?: number, children: () => any }} props
 */
export function Shown({ of, empty, isEmpty = false, rows, children }) {
  if (of.error && !of.data) return html`<${Failed} error=${of.error} retry=${of.reload} />`;
  if (of.loading || !of.data) return html`<${Loading} rows=${rows} />`;
  return isEmpty && empty ? empty : children();
}
