// @ts-check
/**
 * A page of a list as a table; on a phone each row folds into a small card with its labels.
 * Invariant: no more than one page of rows is ever in the document.
 */
import { html } from '../core/lib.js';
import { count } from '../core/format.js';
import { Icon } from './icon.js';
import { Shown } from './states.js';

/**
 * @typedef {{ name: string, of: (item: any) => any, right?: boolean, lead?: boolean, acts?: boolean, sort?: string,
 *   class?: string }} Column
 */

/**
 * @param {{ columns: Column[], rows: any[], rowKey: (item: any) => string, caption: string, sort?: string,
 *   onSort?: (sort: string) => void }} props
 */
export function Table({ columns, rows, rowKey, caption, sort, onSort }) {
  return html`<div class="tablewrap" tabindex="0" role="group" aria-label=${caption}><table class="table folds">
    <caption class="spoken">${caption}</caption>
    <thead><tr>${columns.map((column) => html`<${Heading} column=${column} sort=${sort} onSort=${onSort} />`)}</tr></thead>
    <tbody>${rows.map((item) => html`<tr key=${rowKey(item)}>${columns.map((column) => html`
      <td class=${`${column.right ? 'right' : ''} ${column.lead ? 'lead' : ''} ${column.acts ? 'acts' : ''} ${column.class ?? ''}`}
        data-label=${column.name || undefined}>${column.of(item)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** @param {{ column: Column, sort?: string, onSort?: (sort: string) => void }} props */
function Heading({ column, sort = '', onSort }) {
  const kind = column.right ? 'right' : '';
  if (!column.sort || !onSort) return html`<th scope="col" class=${kind}>${column.name || html`<span class="spoken">Acts</span>`}</th>`;
  const name = column.sort;
  const falling = sort === `-${name}`;
  const state = falling ? 'descending' : sort === name ? 'ascending' : undefined;
  return html`<th scope="col" class=${kind} aria-sort=${state}>
    <button type="button" onClick=${() => onSort(falling ? name : `-${name}`)}>${column.name}${state && html`<${Icon} name=${falling ? 'down' : 'up'} />`}</button>
  </th>`;
}

/**
 * What the headings do, for a window in which they are not shown.
 * @param {{ columns: Column[], sort?: string, onSort: (sort: string) => void }} props
 */
function Order({ columns, sort = '', onSort }) {
  const orders = columns.filter((column) => column.sort).map((column) => [column.lead ? column.sort : `-${column.sort}`, column.name]);
  if (!orders.some(([order]) => order === sort)) orders.unshift([sort, 'another one']);
  return html`<select class="input folded" aria-label="Sorted by" value=${sort} onChange=${(/** @type {any} */ event) => onSort(event.target.value)}>
    ${orders.map(([order, name]) => html`<option value=${order}>Order: ${name}</option>`)}</select>`;
}

/** @param {{ of: import('../core/resource.js').Paged, noun?: string }} props */
export function Pager({ of, noun = 'rows' }) {
  const from = (of.page - 1) * of.limit + 1;
  const to = from + of.items.length - 1;
  if (of.page === 1 && !of.more) {
    return of.items.length > 5 ? html`<div class="pager"><span>${count(of.items.length)} ${noun}</span></div>` : null;
  }
  return html`<nav class="pager" aria-label=${`Pages of ${noun}`}>
    <span class="number">${to < from ? `page ${count(of.page)}: no ${noun}` : html`${count(from)}–${count(to)}${of.total !== null && ` of ${count(of.total)}`} ${noun}`}</span>
    <span class="grow"></span>
    <button type="button" class="button square" aria-label="Previous page" disabled=${of.page === 1} onClick=${of.back}><${Icon} name="left" /></button>
    <button type="button" class="button square" aria-label="Next page" disabled=${!of.more} onClick=${of.forward}><${Icon} name="right" /></button>
  </nav>`;
}

/**
 * A paged list in a card, with its four states.
 * @param {{ of: import('../core/resource.js').Paged, columns: Column[], rowKey: (item: any) => string, caption: string,
 *   empty: any, toolbar?: any, noun?: string, sort?: string, onSort?: (sort: string) => void }} props
 */
export function List({ of, columns, rowKey, caption, empty, toolbar, noun, sort, onSort }) {
  return html`<section class="card" aria-label=${caption}>
    ${toolbar && html`<div class="toolbar">${toolbar}${onSort && html`<${Order} columns=${columns} sort=${sort} onSort=${onSort} />`}</div>`}
    <${Shown} of=${of} isEmpty=${of.items.length === 0} empty=${empty}>${() => html`
      <${Table} columns=${columns} rows=${of.items} rowKey=${rowKey} caption=${caption} sort=${sort} onSort=${onSort} />
      <${Pager} of=${of} noun=${noun} />`}<//>
  </section>`;
}
