// @ts-check
/** Delayed messages: what will be delivered when; cancel and move. */
import { mayAct, part, post, remove } from '../core/api.js';
import { ago, bytes, moment } from '../core/format.js';
import { html, useState } from '../core/lib.js';
import { useNow, usePaged } from '../core/resource.js';
import { attempt } from '../core/say.js';
import { link } from '../core/router.js';
import { Confirm } from '../parts/dialog.js';
import { Field } from '../parts/field.js';
import { Icon } from '../parts/icon.js';
import { Page } from '../parts/page.js';
import { Empty } from '../parts/states.js';
import { List } from '../parts/table.js';

export function Delayed() {
  const page = usePaged('/timers', {}, { everyMs: 2000 });
  const now = useNow();
  const [cancelling, setCancelling] = useState(/** @type {any} */ (null));
  const [moving, setMoving] = useState(/** @type {any} */ (null));
  const columns = [
    { name: 'Topic', lead: true, of: (/** @type {any} */ one) => html`<a class="link mono" href=${link('topics', { topic: one.topic })}>${one.topic}</a>${one.id && one.id !== '-' ? html`<div class="sub mono">${one.id}</div>` : ''}` },
    { name: 'Delivered', of: (/** @type {any} */ one) => html`<b class="nowrap">${ago(one.due_ms, now)}</b><div class="sub">${moment(one.due_ms)}</div>` },
    { name: 'Size', right: true, of: (/** @type {any} */ one) => bytes(one.body_bytes) },
    { name: '', acts: true, right: true, of: (/** @type {any} */ one) => mayAct() && html`<span class="row end"><button type="button" class="button" onClick=${() => setMoving(one)}><${Icon} name="delayed" />Move<span class="spoken"> ${one.topic}</span></button>
      <button type="button" class="button danger" onClick=${() => setCancelling(one)}>Cancel<span class="spoken"> ${one.topic}</span></button></span>` },
  ];
  const cancel = () => attempt('The delayed message was cancelled', () => remove(`/timers/${part(cancelling.handle)}`)).then(page.reload);
  return html`<${Page} title="Delayed" about="Messages that wait for their time of delivery.">
    <${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => one.handle} caption="Delayed messages" noun="delayed messages"
      empty=${html`<${Empty} icon="delayed" title="Nothing waits for its time"><p>A message published with a delay is kept here until it is due.</p>
        ${mayAct() && html`<a class="button" href=${link('topics', { tab: 'publish' })}>Publish one with a delay</a>`}<//>`} />
    ${cancelling && html`<${Confirm} title="Cancel this message?" act="Cancel message" onAct=${cancel} onClose=${() => setCancelling(null)}>
      <p class="quiet">The message to <span class="mono">${cancelling.topic}</span>, due ${moment(cancelling.due_ms)}, is not delivered. This cannot be undone.</p><//>`}
    ${moving && html`<${Move} one=${moving} onClose=${() => setMoving(null)} onDone=${page.reload} />`}
  <//>`;
}

/** @param {{ one: any, onClose: () => void, onDone: () => void }} props */
function Move({ one, onClose, onDone }) {
  const [seconds, setSeconds] = useState('60');
  const act = () => attempt('The message was moved', () => post(`/timers/${part(one.handle)}/reschedule`, { delay_ms: Math.round(Number(seconds) * 1000) })).then(onDone);
  return html`<${Confirm} title="Deliver at another time" act="Move" danger=${false} disabled=${!(Number(seconds) >= 0)} onAct=${act} onClose=${onClose}>
    <p class="quiet">To <span class="mono">${one.topic}</span>, at present due ${moment(one.due_ms)}.</p>
    <${Field} label="Seconds from now" type="number" min=${0} value=${seconds} onInput=${setSeconds} required /><//>`;
}
