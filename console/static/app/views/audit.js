// @ts-check
/** Audit: every administrative act, by whom, from where, and how it ended; kept in the log itself. */
import { on } from '../core/events.js';
import { moment } from '../core/format.js';
import { html, useEffect, useState } from '../core/lib.js';
import { adjust } from '../core/router.js';
import { usePaged, useSettled } from '../core/resource.js';
import { Search } from '../parts/field.js';
import { Badge, Page } from '../parts/page.js';
import { Empty } from '../parts/states.js';
import { List } from '../parts/table.js';

/** @param {{ route: import('../core/router.js').Route }} props */
export function Audit({ route }) {
  const [search, setSearch] = useState(route.params.search ?? '');
  const settled = useSettled(search);
  useEffect(() => adjust({ search: settled }), [settled]);
  const page = usePaged('/audit', { search: settled });
  useEffect(() => on('audit', page.reload), []);
  const columns = [
    { name: 'Time', lead: true, of: (/** @type {any} */ one) => html`<span class="mono nowrap">${moment(one.time_ms)}</span>` },
    { name: 'Who', of: (/** @type {any} */ one) => html`<b>${one.who ?? one.user ?? '–'}</b>${one.role && one.role !== (one.who ?? one.user) ? html`<div class="sub">${one.role}</div>` : ''}` },
    { name: 'From', of: (/** @type {any} */ one) => html`<span class="mono">${one.address ?? '–'}</span>` },
    { name: 'Act', of: (/** @type {any} */ one) => String(one.what ?? one.act ?? '').replaceAll('_', ' ').toLowerCase() },
    { name: 'On', class: 'wide-value', of: (/** @type {any} */ one) => html`<span class="mono">${typeof one.target === 'object' ? JSON.stringify(one.target) : one.target ?? '–'}</span>` },
    { name: 'Outcome', of: (/** @type {any} */ one) => html`<${Badge} kind=${/^(ok|done|success)/i.test(one.outcome ?? '') ? 'good' : 'bad'}>${one.outcome ?? '–'}<//>` },
  ];
  return html`<${Page} title="Audit" about="Every administrative act, from this page, the command line or any other tool, newest first.">
    <${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => String(one.id ?? one.offset ?? `${one.time_ms}${one.what}${one.target}`)} caption="Administrative acts" noun="acts"
      toolbar=${html`<${Search} value=${search} onInput=${setSearch} label="Search by person, act or target" />`}
      empty=${html`<${Empty} icon="audit" title=${settled ? 'No act matches' : 'No administrative act yet'}><p>Disconnecting a client, clearing a retained message, resetting a group and every other act is recorded here.</p><//>`} />
  <//>`;
}
