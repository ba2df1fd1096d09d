// @ts-check
/** Quotas and refusals: how much of each limit is used, and what was refused for which reason. */
import { bytes, count, digits, rate } from '../core/format.js';
import { html } from '../core/lib.js';
import { usePaged } from '../core/resource.js';
import { Page } from '../parts/page.js';
import { Empty } from '../parts/states.js';
import { List } from '../parts/table.js';

/** @param {string} name */
const words = (name) => name.replaceAll('_', ' ');
/** @param {string} name @param {any} value */
const amount = (name, value) => (value === null || value === undefined ? '–' : /bytes/.test(name) ? bytes(value) : count(value));

export function Quotas() {
  const quotas = usePaged('/quotas', {}, { everyMs: 5000 });
  const refusals = usePaged('/refusals', {}, { everyMs: 2000 });
  return html`<${Page} title="Quotas & refusals" about="The limits that protect this server, how close to them it is, and what was refused because of them.">
    <${List} of=${refusals} columns=${refusalColumns} rowKey=${(/** @type {any} */ one) => `${one.counter} ${one.reason}`} caption="Refusals by reason" noun="reasons" toolbar=${html`<h2>Refusals by reason</h2>`}
      empty=${html`<${Empty} icon="check" title="Nothing was refused"><p>Since this server started, every request was within its limits and rights.</p><//>`} />
    <${List} of=${quotas} columns=${quotaColumns} rowKey=${(/** @type {any} */ one) => `${one.where} ${one.name}`} caption="Quotas" noun="quotas" toolbar=${html`<h2>Quotas</h2>`}
      empty=${html`<${Empty} icon="quotas" title="No quota is set"><p>Limits for each client, user or listener appear here with what is used of them.</p><//>`} />
  <//>`;
}

const refusalColumns = [
  { name: 'Refused', lead: true, of: (/** @type {any} */ one) => html`<b>${one.what}</b>` },
  { name: 'Reason', of: (/** @type {any} */ one) => one.text || html`<span class="faint">–</span>` },
  { name: 'Now', right: true, of: (/** @type {any} */ one) => html`<span class=${one.rate > 0 ? 'warned' : 'faint'}>${rate(one.rate)}</span>` },
  { name: 'Since the start', right: true, of: (/** @type {any} */ one) => count(one.total) },
];

const quotaColumns = [
  { name: 'Quota', lead: true, of: (/** @type {any} */ one) => html`<b>${words(one.name)}</b>` },
  { name: 'Of', of: (/** @type {any} */ one) => html`<span class="mono small">${one.where}</span>` },
  { name: 'Used', right: true, of: (/** @type {any} */ one) => amount(one.name, one.used) },
  { name: 'Limit', right: true, of: (/** @type {any} */ one) => (one.limit ? amount(one.name, one.limit) : html`<span class="faint">none</span>`) },
  { name: 'Share', class: 'share', of: (/** @type {any} */ one) => (one.limit && one.used !== null && one.used !== undefined ? html`<${Share} of=${one.used / one.limit} />` : '') },
];

/** @param {{ of: number }} props */
function Share({ of }) {
  const part = Math.min(of, 1);
  return html`<div class=${`meter ${part > 0.9 ? 'ink-4' : part > 0.7 ? 'ink-3' : ''}`} role="img" aria-label=${`${digits(part * 100)} % used`}><span style=${{ width: `${part * 100}%` }}></span></div>`;
}
