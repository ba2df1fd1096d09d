// @ts-check
/** The live tail of a filter: newest first, with pause, what was left out, and each message opened on demand. */
import { bytes, clock, count, plural } from '../core/format.js';
import { html, useState } from '../core/lib.js';
import { useLive } from '../core/live.js';
import { link } from '../core/router.js';
import { useSettled } from '../core/resource.js';
import { Problem } from '../core/api.js';
import { Dialog } from './dialog.js';
import { Field } from './field.js';
import { Icon } from './icon.js';
import { Badge, Facts } from './page.js';
import { Payload } from './payload.js';
import { Empty, Failed, Loading } from './states.js';

const SHOWN_MAX = 100;

/** @param {{ filter: string, onFilter: (filter: string) => void, topic: string }} props */
export function Tail({ filter, onFilter, topic }) {
  const settled = useSettled(filter, 400).trim();
  const [paused, setPaused] = useState(false);
  const [sought, setSought] = useState('');
  const [history, setHistory] = useState('20');
  const live = useLive(settled, { history: Number(history), keep: 500, paused });
  const words = sought.toLowerCase();
  const rows = live.messages.filter((one) => !words || one.payload.toLowerCase().includes(words) || one.topic.toLowerCase().includes(words)).slice(-SHOWN_MAX).reverse();
  return html`
    <div class="toolbar pad tail-bar">
      <${Field} label="Topic filter" value=${filter} onInput=${onFilter} mono list=${topic ? [topic, `${topic}/#`, '#'] : ['#']} />
      <${Field} label="Containing" value=${sought} onInput=${setSought} />
      <${Field} label="Begin with" kind="select" value=${history} onInput=${setHistory} options=${[['0', 'new messages only'], ['20', 'the last 20'], ['100', 'the last 100']]} />
      <div class="row tail-acts">
        <button type="button" class=${`button ${paused ? 'on' : ''}`} aria-pressed=${paused} onClick=${() => setPaused(!paused)}><${Icon} name=${paused ? 'play' : 'pause'} />${paused ? 'Go on' : 'Pause'}</button>
        <button type="button" class="button bare" onClick=${live.clear}>Clear</button>
      </div>
    </div>
    <div class="row small quiet pad-side"><span class=${`dot ${paused ? '' : live.state === 'open' ? 'good beat' : 'warn'}`}></span>
      <span role="status">${paused ? 'Paused' : live.state === 'open' ? 'Live' : live.state === 'refused' ? 'Not allowed' : 'Connecting…'}</span>
      <span class="number">${plural(live.received, 'message')} received</span>
      ${live.dropped > 0 && html`<${Badge} kind="warn">${count(live.dropped)} left out: they arrive faster than this page reads<//>`}</div>
    ${live.state === 'refused' ? html`<${Failed} error=${new Problem(403, 'Not allowed', live.detail, '')} />`
      : rows.length === 0 ? (live.state === 'connecting' ? html`<${Loading} />` : html`<${Empty} icon="message" title=${live.messages.length ? 'No message contains this' : 'Waiting for messages'}>
        <p>${live.messages.length ? `${plural(live.messages.length, 'message')} do not match.` : html`Messages on <code>${settled || 'no filter'}</code> appear here as they arrive.`}</p><//>`)
        : html`<${Messages} of=${rows} />`}`;
}

/** Messages, each opened by choosing it. @param {{ of: any[] }} props */
export function Messages({ of }) {
  const [opened, setOpened] = useState(/** @type {any} */ (null));
  return html`<ul class="tail" tabindex="0" aria-label="Messages, newest first">${of.map((one) => html`<${Row} key=${one.key ?? one.message_id} message=${one} onOpen=${() => setOpened(one)} />`)}</ul>
    ${opened && html`<${MessageDialog} message=${opened} onClose=${() => setOpened(null)} />`}`;
}

/** @param {{ message: import('../core/live.js').LiveMessage, onOpen: () => void }} props */
function Row({ message, onOpen }) {
  return html`<li><button type="button" class="message" onClick=${onOpen}>
    <span class="when mono">${clock(message.time_ms, true)}</span>
    <span class="what"><span class="mono topic clip">${message.topic}</span><span class="mono quiet clip">${message.encoding === 'base64' ? '(bytes)' : message.payload}</span></span>
    <span class="row marks">${message.retain ? html`<${Badge} kind="accent">retained<//>` : ''}<${Badge}>QoS ${message.qos}<//></span></button></li>`;
}

/** One message with everything known of it. @param {{ message: any, onClose: () => void }} props */
export function MessageDialog({ message, onClose }) {
  const { user = [], ...told } = message.properties ?? {};
  const properties = [...Object.entries(told), ...user];
  return html`<${Dialog} kind="drawer" title=${html`<span class="mono">${message.topic}</span>`} sub=${clock(message.time_ms, true)} onClose=${onClose}>
    <${Payload} text=${message.payload} encoding=${message.encoding} />
    ${message.truncated && html`<p class="small faint">Only the beginning is shown.</p>`}
    <${Facts} of=${[['QoS', message.qos], ['Retained', message.retain ? 'yes' : 'no'], ['Size', bytes(message.payload_bytes)], ['Offset', count(message.offset)], ['Message id', html`<span class="mono">${message.message_id}</span>`],
      ...properties.map(([name, value]) => /** @type {[any, any]} */ ([name, html`<span class="mono">${String(value)}</span>`]))]} />
    <div class="row">
      <a class="button" href=${link('trace', { message_id: message.message_id })} onClick=${onClose}><${Icon} name="trace" />Trace this message</a>
      <a class="button" href=${link('topics', { topic: message.topic, tab: 'publish' })} onClick=${onClose}><${Icon} name="send" />Publish to this topic</a></div>
  <//>`;
}
