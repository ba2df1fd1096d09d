// @ts-check
/** Dead letters: messages that a group gave up on after its retries; read them, send them again. */
import { mayAct, part, post } from '../core/api.js';
import { ago, bytes, clock, count } from '../core/format.js';
import { html, useState } from '../core/lib.js';
import { link } from '../core/router.js';
import { useNow, usePaged, useSettled } from '../core/resource.js';
import { attempt } from '../core/say.js';
import { Confirm, Dialog } from '../parts/dialog.js';
import { Search } from '../parts/field.js';
import { Icon } from '../parts/icon.js';
import { Facts, Page } from '../parts/page.js';
import { Payload } from '../parts/payload.js';
import { Empty } from '../parts/states.js';
import { List } from '../parts/table.js';

export function DeadLetters() {
  const [search, setSearch] = useState('');
  const settled = useSettled(search);
  const page = usePaged('/dead-letters', { search: settled }, { everyMs: 5000 });
  const now = useNow(5000);
  const [opened, setOpened] = useState(/** @type {any} */ (null));
  const [sending, setSending] = useState(/** @type {any} */ (null));
  const columns = [
    { name: 'Topic', lead: true, of: (/** @type {any} */ one) => (one.damaged ? html`<span class="faint">cannot be read</span>` : html`<button type="button" class="link mono" onClick=${() => setOpened(one)}>${one.topic}</button>`) },
    { name: 'Group', of: (/** @type {any} */ one) => html`<a class="mono" href=${link('groups', {}, one.group)}>${one.group}</a>` },
    { name: 'Tries', right: true, of: (/** @type {any} */ one) => count(one.tries) },
    { name: 'Message', class: 'wide-value', of: (/** @type {any} */ one) => html`<span class="mono quiet two-lines">${one.encoding === 'text' ? one.payload.slice(0, 200) : one.keys || one.producer_id}</span>` },
    { name: 'Given up', right: true, of: (/** @type {any} */ one) => html`<span class="nowrap">${one.time_ms ? ago(one.time_ms, now) : '–'}</span>` },
    { name: '', acts: true, right: true, of: (/** @type {any} */ one) => mayAct() && !one.damaged && html`<button type="button" class="button" onClick=${() => setSending(one)}><${Icon} name="send" />Send again<span class="spoken"> ${one.topic}</span></button>` },
  ];
  const act = () => attempt(`Sent to ${sending.group} again`, () => post(`/dead-letters/${part(sending.id)}/resend`)).then(page.reload);
  return html`<${Page} title="Dead letters" about="Messages that a consumer group could not process, however often it tried.">
    <${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => one.id} caption="Dead letters" noun="dead letters"
      toolbar=${html`<${Search} value=${search} onInput=${setSearch} label="Group" />`}
      empty=${html`<${Empty} icon="check" title=${settled ? 'No dead letters of such a group' : 'No dead letters'}><p>When a consumer gives up on a message after all its retries, the message is kept here instead of being lost.</p><//>`} />
    ${opened && html`<${Letter} letter=${opened} onClose=${() => setOpened(null)} />`}
    ${sending && html`<${Confirm} title="Send this message again?" act="Send again" danger=${false} onAct=${act} onClose=${() => setSending(null)}>
      <p class="quiet">The group <span class="mono">${sending.group}</span> gets the message of <span class="mono">${sending.topic}</span> once more, with all its retries; other groups do not. The dead letter stays here until it expires.</p><//>`}
  <//>`;
}

/** @param {{ letter: any, onClose: () => void }} props */
function Letter({ letter, onClose }) {
  const facts = [['Group', letter.group], ['Tries', count(letter.tries)], ['Size', bytes(letter.payload_bytes)], ['Tags', letter.tags], ['Keys', letter.keys],
    ['Message id', letter.producer_id], ...Object.entries(letter.properties)].filter(([, value]) => value !== '');
  return html`<${Dialog} kind="drawer" title=${html`<span class="mono">${letter.topic}</span>`} sub=${`Given up ${clock(letter.time_ms, true)}`} onClose=${onClose}>
    ${letter.encoding ? html`<${Payload} text=${letter.payload} encoding=${letter.encoding} />` : html`<p class="quiet">You may not read messages of this topic, so this one is not shown.</p>`}
    ${letter.truncated && html`<p class="small faint">Only the beginning is shown.</p>`}
    <${Facts} of=${facts.map(([name, value]) => /** @type {[any, any]} */ ([name, html`<span class="mono">${String(value)}</span>`]))} />
    <div class="row"><a class="button" href=${link('trace', { message_id: letter.message_id })} onClick=${onClose}><${Icon} name="trace" />Trace this message</a></div>
  <//>`;
}
