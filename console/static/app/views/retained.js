// @ts-check
/** Retained messages: the last value of each topic that new subscribers receive; read and clear. */
import { mayAct, part, remove } from '../core/api.js';
import { ago, bytes } from '../core/format.js';
import { html, useEffect, useState } from '../core/lib.js';
import { adjust, link } from '../core/router.js';
import { useNow, usePaged, useSettled } from '../core/resource.js';
import { attempt } from '../core/say.js';
import { Confirm } from '../parts/dialog.js';
import { Field } from '../parts/field.js';
import { Page } from '../parts/page.js';
import { Empty } from '../parts/states.js';
import { List } from '../parts/table.js';
import { MessageDialog } from '../parts/tail.js';

/** @param {{ route: import('../core/router.js').Route }} props */
export function Retained({ route }) {
  const [filter, setFilter] = useState(route.params.filter ?? '');
  const settled = useSettled(filter, 300).trim();
  useEffect(() => adjust({ filter: settled }), [settled]);
  const page = usePaged('/retained', { filter: settled }, { everyMs: 5000 });
  const now = useNow(5000);
  const [opened, setOpened] = useState(/** @type {any} */ (null));
  const [clearing, setClearing] = useState(/** @type {any} */ (null));
  const columns = [
    { name: 'Topic', lead: true, of: (/** @type {any} */ one) => html`<button type="button" class="link mono" onClick=${() => setOpened(one)}>${one.topic}</button>` },
    { name: 'Value', class: 'wide-value', of: (/** @type {any} */ one) => html`<span class="mono quiet two-lines">${one.payload === undefined ? '–' : one.encoding === 'base64' ? '(bytes)' : String(one.payload).slice(0, 200)}</span>` },
    { name: 'Size', right: true, of: (/** @type {any} */ one) => bytes(one.bytes ?? one.size_bytes ?? one.payload?.length) },
    { name: 'Since', right: true, of: (/** @type {any} */ one) => html`<span class="nowrap">${ago(one.time_ms, now)}</span>` },
    { name: '', acts: true, right: true, of: (/** @type {any} */ one) => mayAct() && html`<button type="button" class="button danger" onClick=${() => setClearing(one)}>Clear<span class="spoken"> ${one.topic}</span></button>` },
  ];
  const act = () => attempt(`${clearing.topic} has no retained message any more`, () => remove(`/retained/${part(clearing.topic)}`)).then(page.reload);
  return html`<${Page} title="Retained" about="The last value of each topic, which a new subscriber receives at once.">
    <${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => one.topic} caption="Retained messages" noun="retained messages"
      toolbar=${html`<div class="live-filter"><${Field} label="Topic filter" value=${filter} onInput=${setFilter} mono placeholder="#" hint="+ stands for one level, # for all levels below" /></div>`}
      empty=${html`<${Empty} icon="retained" title=${settled ? 'No retained message matches' : 'Nothing is retained'}><p>A message published with its retain flag is kept as the last value of its topic.</p>
        ${mayAct() && html`<a class="button" href=${link('topics', { tab: 'publish' })}>Publish one</a>`}<//>`} />
    ${opened && html`<${MessageDialog} message=${{ retain: true, payload: '', ...opened }} onClose=${() => setOpened(null)} />`}
    ${clearing && html`<${Confirm} title="Clear this retained message?" act="Clear" onAct=${act} onClose=${() => setClearing(null)}>
      <p class="quiet">New subscribers of <span class="mono">${clearing.topic}</span> receive nothing at first. The messages in the log stay.</p><//>`}
  <//>`;
}
