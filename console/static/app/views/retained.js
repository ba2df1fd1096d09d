// @ts-check
/** Retained messages: the last value of each topic that new subscribers receive; read and clear. */
import { mayAct, part, remove } from '../core/api.js';
import { ago, bytes, count } from '../core/format.js';
import { html, useEffect, useState } from '../core/lib.js';
import { adjust, link } from '../core/router.js';
import { useNow, usePaged, useSettled, useStored } from '../core/resource.js';
import { attempt } from '../core/say.js';
import { Confirm, Dialog } from '../parts/dialog.js';
import { Field } from '../parts/field.js';
import { Page } from '../parts/page.js';
import { Empty, Shown } from '../parts/states.js';
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
    { name: 'QoS', right: true, of: (/** @type {any} */ one) => count(one.qos) },
    { name: 'Size', right: true, of: (/** @type {any} */ one) => bytes(one.bytes) },
    { name: 'Since', right: true, of: (/** @type {any} */ one) => html`<span class="nowrap">${ago(one.stored_ms, now)}</span>` },
    { name: 'Ends', right: true, of: (/** @type {any} */ one) => html`<span class="nowrap">${one.expires_ms ? ago(one.expires_ms, now) : 'never'}</span>` },
    { name: '', acts: true, right: true, of: (/** @type {any} */ one) => mayAct() && html`<button type="button" class="button danger" onClick=${() => setClearing(one)}>Clear<span class="spoken"> ${one.topic}</span></button>` },
  ];
  const act = () => attempt(`${clearing.topic} has no retained message any more`, () => remove(`/retained/${part(clearing.topic)}`)).then(page.reload);
  return html`<${Page} title="Retained" about="The last value of each topic, which a new subscriber receives at once.">
    <${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => one.topic} caption="Retained messages" noun="retained messages"
      toolbar=${html`<div class="live-filter"><${Field} label="Topic filter" value=${filter} onInput=${setFilter} mono placeholder="#" hint="+ stands for one level, # for all levels below" /></div>`}
      empty=${html`<${Empty} icon="retained" title=${settled ? 'No retained message matches' : 'Nothing is retained'}><p>A message published with its retain flag is kept as the last value of its topic.</p>
        ${mayAct() && html`<a class="button" href=${link('topics', { tab: 'publish' })}>Publish one</a>`}<//>`} />
    ${opened && html`<${Value} one=${opened} onClose=${() => setOpened(null)} />`}
    ${clearing && html`<${Confirm} title="Clear this retained message?" act="Clear" onAct=${act} onClose=${() => setClearing(null)}>
      <p class="quiet">New subscribers of <span class="mono">${clearing.topic}</span> receive nothing at first. The messages in the log stay.</p><//>`}
  <//>`;
}

/** The message itself, found in the history of its topic. @param {{ one: any, onClose: () => void }} props */
function Value({ one, onClose }) {
  const found = useStored(one.topic, one.position);
  if (found.message) return html`<${MessageDialog} message=${found.message} onClose=${onClose} />`;
  return html`<${Dialog} kind="drawer" title=${html`<span class="mono">${one.topic}</span>`} onClose=${onClose}>
    <${Shown} of=${found}>${() => html`<p class="quiet">Many messages have been published to this topic since. <a href=${link('topics', { topic: one.topic })}>Subscribe to it</a> with any client to receive the retained one.</p>`}<//><//>`;
}
