// @ts-check
/** Dead letters: messages that a group gave up on after its retries; read them, send them again. */
import { mayAct, part, post } from '../core/api.js';
import { ago, count } from '../core/format.js';
import { html, useState } from '../core/lib.js';
import { link } from '../core/router.js';
import { useNow, usePaged, useSettled } from '../core/resource.js';
import { attempt } from '../core/say.js';
import { Confirm } from '../parts/dialog.js';
import { Search } from '../parts/field.js';
import { Icon } from '../parts/icon.js';
import { Page } from '../parts/page.js';
import { Empty } from '../parts/states.js';
import { List } from '../parts/table.js';
import { MessageDialog } from '../parts/tail.js';

export function DeadLetters() {
  const [search, setSearch] = useState('');
  const settled = useSettled(search);
  const page = usePaged('/dead-letters', { group: settled }, { everyMs: 5000 });
  const now = useNow(5000);
  const [opened, setOpened] = useState(/** @type {any} */ (null));
  const [sending, setSending] = useState(/** @type {any} */ (null));
  const columns = [
    { name: 'Topic', lead: true, of: (/** @type {any} */ one) => html`<button type="button" class="link mono" onClick=${() => setOpened(one)}>${one.topic}</button>` },
    { name: 'Group', of: (/** @type {any} */ one) => html`<a class="mono" href=${link('groups', {}, one.group)}>${one.group}</a>` },
    { name: 'Tries', right: true, of: (/** @type {any} */ one) => count(one.tries ?? one.reconsume_times) },
    { name: 'Message', class: 'wide-value', of: (/** @type {any} */ one) => html`<span class="mono quiet two-lines">${one.payload === undefined ? one.message_id ?? one.id : String(one.payload).slice(0, 200)}</span>` },
    { name: 'Given up', right: true, of: (/** @type {any} */ one) => html`<span class="nowrap">${ago(one.time_ms, now)}</span>` },
    { name: '', acts: true, right: true, of: (/** @type {any} */ one) => mayAct() && html`<button type="button" class="button" onClick=${() => setSending(one)}><${Icon} name="send" />Send again<span class="spoken"> ${one.topic}</span></button>` },
  ];
  const act = () => attempt(`Sent again to ${sending.topic}`, () => post(`/dead-letters/${part(sending.id)}/resend`)).then(page.reload);
  return html`<${Page} title="Dead letters" about="Messages that a consumer group could not process, however often it tried.">
    <${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => one.id} caption="Dead letters" noun="dead letters"
      toolbar=${html`<${Search} value=${search} onInput=${setSearch} label="Of this group" />`}
      empty=${html`<${Empty} icon="check" title=${settled ? 'This group has no dead letters' : 'No dead letters'}><p>When a consumer gives up on a message after all its retries, the message is kept here instead of being lost.</p><//>`} />
    ${opened && html`<${MessageDialog} message=${{ payload: '', qos: 1, retain: false, ...opened }} onClose=${() => setOpened(null)} />`}
    ${sending && html`<${Confirm} title="Send this message again?" act="Send again" danger=${false} onAct=${act} onClose=${() => setSending(null)}>
      <p class="quiet">It goes to <span class="mono">${sending.topic}</span> once more, for the group <span class="mono">${sending.group}</span>. The dead letter stays in its queue until it expires.</p><//>`}
  <//>`;
}
