// @ts-check
/** Alarms: what needs somebody now, and what to do about it. */
import { alarms } from '../core/events.js';
import { ago, moment, span } from '../core/format.js';
import { html, useEffect } from '../core/lib.js';
import { useNow, useResource } from '../core/resource.js';
import { useSignal } from '../core/signal.js';
import { Icon } from '../parts/icon.js';
import { Badge, Page } from '../parts/page.js';
import { Empty, Shown } from '../parts/states.js';
import { Table } from '../parts/table.js';

export function Alarms() {
  const list = useResource('/alarms', { limit: 200 }, 5000);
  const raised = useSignal(alarms);
  const now = useNow();
  useEffect(() => list.reload(), [raised.length]);
  const items = list.data?.items ?? [];
  const past = useResource('/alarms/past', { limit: 50 }, 5000);
  const ended = past.data?.items ?? [];
  return html`<${Page} title="Alarms" about="What needs somebody's attention now. An alarm goes away by itself when its cause does.">
    <${Shown} of=${list} isEmpty=${items.length === 0} empty=${html`<section class="card"><${Empty} icon="check" title="No alarm is raised"><p>Disk, flushing, replication, lag and refusals are watched all the time.</p><//></section>`}>${() => html`
      <ul class="stack">${items.map((/** @type {any} */ one) => html`<li key=${one.id} class=${`card alarm ${severe(one) ? 'bad' : 'warn'}`}>
        <${Icon} name=${severe(one) ? 'bad' : 'warn'} />
        <div class="grow"><div class="row"><h2>${one.title ?? one.text}</h2><${Badge} kind=${severe(one) ? 'bad' : 'warn'}>${one.severity ?? 'warning'}<//></div>
          ${(one.title || one.target) && html`<p class="quiet">${one.title ? one.text : html`<span class="mono">${one.target}</span>`}</p>`}${(one.remedy ?? one.advice) && html`<p class="small"><b>What to do:</b> ${one.remedy ?? one.advice}</p>`}</div>
        <span class="small faint nowrap" title=${moment(one.since_ms)}>since ${ago(one.since_ms, now)}</span></li>`)}</ul>`}<//>
    ${ended.length > 0 && html`<section class="card" aria-label="Earlier alarms"><header class="title"><h2>Earlier</h2></header>
      <${Table} columns=${EARLIER} rows=${ended} rowKey=${(/** @type {any} */ one) => `${one.id} ${one.ended_ms}`} caption="Earlier alarms" /></section>`}
  <//>`;
}

/** What has ended since the console was started. @type {import('../parts/table.js').Column[]} */
const EARLIER = [
  { name: 'Alarm', lead: true, of: (one) => one.text },
  { name: 'From', of: (one) => moment(one.since_ms) },
  { name: 'To', of: (one) => moment(one.ended_ms) },
  { name: 'Lasted', right: true, of: (one) => span(Math.max(0, one.ended_ms - one.since_ms)) },
];

/** @param {any} one */
const severe = (one) => one.severity === 'critical';
