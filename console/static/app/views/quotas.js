// @ts-check
/** Quotas and refusals: how much of each limit is used, and what was refused for which reason. */
import { bytes, count, digits, rate, short } from '../core/format.js';
import { html } from '../core/lib.js';
import { usePaged } from '../core/resource.js';
import { Page } from '../parts/page.js';
import { Empty } from '../parts/states.js';
import { List } from '../parts/table.js';
import { Sparkline } from '../parts/tile.js';

/** What a reason of a refusal means, where its name alone does not tell. @param {string} reason */
const words = (reason) => reason.replaceAll('_', ' ');
/** @param {string} name @param {any} value */
const amount = (name, value) => (value === null || value === undefined ? '–' : /bytes/.test(name) ? bytes(value) : count(value));

export function Quotas() {
  const quotas = usePaged('/quotas', {}, { everyMs: 5000 });
  const refusals = usePaged('/refusals', {}, { everyMs: 2000 });
  return html`<${Page} title="Quotas & refusals" about="The limits that protect this server, how close to them it is, and what was refused because of them.">
    <${List} of=${refusals} columns=${refusalColumns} rowKey=${(/** @type {any} */ one) => `${one.reason}${one.where ?? ''}`} caption="Refusals by reason" noun="reasons" toolbar=${html`<h2>Refusals by reason</h2>`}
      empty=${html`<${Empty} icon="check" title="Nothing was refused"><p>Since this server started, every request was within its limits and rights.</p><//>`} />
    <${List} of=${quotas} columns=${quotaColumns} rowKey=${(/** @type {any} */ one) => `${one.name}${one.subject ?? ''}`} caption="Quotas" noun="quotas" toolbar=${html`<h2>Quotas</h2>`}
      empty=${html`<${Empty} icon="quotas" title="No quota is set"><p>Limits for each client, user or listener appear here with what is used of them.</p><//>`} />
  <//>`;
}

const refusalColumns = [
  { name: 'Reason', lead: true, of: (/** @type {any} */ one) => html`<b>${words(one.reason)}</b>${one.detail ? html`<div class="sub">${one.detail}</div>` : ''}` },
  { name: 'Where', of: (/** @type {any} */ one) => one.where ?? one.kind ?? '–' },
  { name: 'Now', right: true, of: (/** @type {any} */ one) => rate(one.rate) },
  { name: 'Since the start', right: true, of: (/** @type {any} */ one) => count(one.count ?? one.total) },
  { name: 'Course', right: true, of: (/** @type {any} */ one) => (Array.isArray(one.history) ? html`<span class="inline-line ink-4"><${Sparkline} values=${one.history} height=${22} /></span>` : '') },
];

const quotaColumns = [
  { name: 'Limit', lead: true, of: (/** @type {any} */ one) => html`<b>${words(one.name)}</b>${one.subject ? html`<div class="sub mono">${one.subject}</div>` : ''}` },
  { name: 'Used', right: true, of: (/** @type {any} */ one) => amount(one.name, one.used) },
  { name: 'Limit', right: true, of: (/** @type {any} */ one) => (one.limit === 0 || one.limit === null ? html`<span class="faint">none</span>` : amount(one.name, one.limit)) },
  { name: 'Share', class: 'share', of: (/** @type {any} */ one) => (one.limit && one.used !== null && one.used !== undefined ? html`<${Share} of=${one.used / one.limit} />` : '') },
  { name: 'Refused', right: true, of: (/** @type {any} */ one) => short(one.refused) },
];

/** @param {{ of: number }} props */
function Share({ of }) {
  const part = Math.min(of, 1);
  return html`<div class=${`meter ${part > 0.9 ? 'ink-4' : part > 0.7 ? 'ink-3' : ''}`} role="img" aria-label=${`${digits(part * 100)} % used`}><span style=${{ width: `${part * 100}%` }}></span></div>`;
}
