// @ts-check
/** Audit: every administrative act, by whom, from where, and how it ended; kept where it was carried out. */
import { on } from '../core/events.js';
import { moment } from '../core/format.js';
import { html, useEffect, useMemo, useState } from '../core/lib.js';
import { usePaged } from '../core/resource.js';
import { Field } from '../parts/field.js';
import { Badge, Page } from '../parts/page.js';
import { Empty } from '../parts/states.js';
import { List } from '../parts/table.js';

/** @type {[string, string][]} */
const SINCE = [['', 'ever'], ['3600000', 'an hour ago'], ['86400000', 'a day ago'], ['604800000', 'a week ago']];
/** @type {Record<string, string>} Roads by which acts come. */
const ROADS = { console: 'this console', lightmq: 'lightmq', mqadmin: 'mqadmin' };

export function Audit() {
  const [since, setSince] = useState('');
  const from_ms = useMemo(() => (since ? Date.now() - Number(since) : undefined), [since]);
  const page = usePaged('/audit', { from_ms });
  useEffect(() => on('audit', page.reload), []);
  const columns = [
    { name: 'Time', lead: true, of: (/** @type {any} */ one) => html`<span class="mono nowrap">${moment(one.time_ms)}</span>` },
    { name: 'Who', of: (/** @type {any} */ one) => html`<b>${one.who || 'nobody signed in'}</b>${one.role && one.role !== one.who ? html`<div class="sub">${one.role}</div>` : ''}` },
    { name: 'Act', of: (/** @type {any} */ one) => one.act.replaceAll('_', ' ').toLowerCase() },
    { name: 'On', class: 'wide-value', of: (/** @type {any} */ one) => html`<span class="mono">${one.target}</span>` },
    { name: 'From', of: (/** @type {any} */ one) => html`<span class="mono">${one.address}</span><div class="sub">${ROADS[one.road] ?? one.road}</div>` },
    { name: 'Carried out by', of: (/** @type {any} */ one) => html`<span class="nowrap">${one.server}</span>` },
    { name: 'Outcome', of: (/** @type {any} */ one) => html`<${Badge} kind=${one.outcome === 'done' ? 'good' : 'bad'}>${one.outcome}<//>` },
  ];
  return html`<${Page} title="Audit" about="Every administrative act, from this page, the command line or any other tool, newest first.">
    <${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => `${one.server} ${one.id}`} caption="Administrative acts" noun="acts"
      toolbar=${html`<div class="window"><${Field} label="Since" kind="select" value=${since} onInput=${setSince} options=${SINCE} /></div>`}
      empty=${html`<${Empty} icon="audit" title=${since ? 'No act in this time' : 'No administrative act yet'}><p>Disconnecting a client, clearing a retained message, resetting a group and every other act is recorded here.</p><//>`} />
  <//>`;
}
