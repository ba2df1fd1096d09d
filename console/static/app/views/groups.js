// @ts-check
/** Queues and groups: how far each consumer group is behind, in messages and in seconds; move where it reads. */
import { mayAct, part, post } from '../core/api.js';
import { count, plural, span } from '../core/format.js';
import { html, useEffect, useState } from '../core/lib.js';
import { adjust, go, link } from '../core/router.js';
import { usePaged, useResource, useSettled } from '../core/resource.js';
import { attempt } from '../core/say.js';
import { Confirm, Dialog } from '../parts/dialog.js';
import { Field, Search } from '../parts/field.js';
import { Icon } from '../parts/icon.js';
import { Badge, Page } from '../parts/page.js';
import { Empty, Shown } from '../parts/states.js';
import { List, Table } from '../parts/table.js';

const ROWS_MAX = 200;

/** @param {{ route: import('../core/router.js').Route }} props */
export function Groups({ route }) {
  const [search, setSearch] = useState(route.params.search ?? '');
  const settled = useSettled(search);
  const queues = route.params.of === 'queues';
  useEffect(() => adjust({ search: settled }), [settled]);
  const toolbar = html`<${Search} value=${search} onInput=${setSearch} label=${queues ? 'Queues of topic' : 'Search groups'} />
    <span class="grow"></span><div class="segments" role="group" aria-label="What is listed">
      <a class="button" aria-current=${queues ? undefined : 'true'} href=${link('groups')}>Groups</a>
      <a class="button" aria-current=${queues ? 'true' : undefined} href=${link('groups', { of: 'queues' })}>Queues</a></div>`;
  return html`<${Page} title="Queues & groups" about="Who reads what, and how far behind the newest message each of them is.">
    ${queues ? html`<${Queues} topic=${settled} toolbar=${toolbar} />` : html`<${GroupList} search=${settled} toolbar=${toolbar} />`}
    ${route.rest && html`<${GroupDrawer} key=${route.rest} group=${route.rest} onClose=${() => go(link('groups', route.params))} />`}
  <//>`;
}

/** @param {{ search: string, toolbar: any }} props */
function GroupList({ search, toolbar }) {
  const [sort, setSort] = useState('name');
  const page = usePaged('/groups', { search, sort }, { everyMs: 3000 });
  const columns = [
    { name: 'Group', lead: true, sort: 'name', of: (/** @type {any} */ one) => html`<a class="link mono" href=${link('groups', { search }, one.name)}>${one.name}</a>` },
    { name: 'Topics', of: (/** @type {any} */ one) => html`<span class="mono small">${names(one.topics, one.topics_total)}</span>` },
    { name: 'Queues', right: true, of: (/** @type {any} */ one) => count(one.queues) },
    { name: 'Members', right: true, of: (/** @type {any} */ one) => (one.members ? count(one.members) : html`<span class="faint">none</span>`) },
    { name: 'Behind', right: true, sort: 'lag', of: (/** @type {any} */ one) => html`<${Behind} messages=${one.lag} />` },
    { name: 'Behind in time', right: true, of: (/** @type {any} */ one) => (one.lag_s > 0 ? span(one.lag_s * 1000) : html`<span class="faint">–</span>`) },
  ];
  return html`<${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => one.name} caption="Consumer groups" noun="groups" sort=${sort === 'lag' ? '-lag' : 'name'} onSort=${(/** @type {string} */ by) => setSort(by === '-lag' ? 'lag' : 'name')} toolbar=${toolbar}
    empty=${html`<${Empty} icon="groups" title=${search ? 'No group matches' : 'No consumer group yet'}><p>Groups appear when a RocketMQ client or a Spark query with <code>consumerGroup</code> reads, and with each shared subscription of MQTT.</p><//>`} />`;
}

/** @param {string[]} topics @param {number} total */
const names = (topics, total) => topics.slice(0, 3).join(', ') + (total > 3 ? ` and ${total - 3} more` : '');

/** @param {{ messages: any }} props */
function Behind({ messages }) {
  if (messages === 0) return html`<${Badge} kind="good">up to date<//>`;
  return html`<span class=${messages > 10_000 ? 'warned' : ''}>${count(messages)}</span>`;
}

/** @param {{ topic: string, toolbar: any }} props */
function Queues({ topic, toolbar }) {
  const page = usePaged('/queues', { search: topic }, { everyMs: 3000 });
  const columns = [
    { name: 'Topic', lead: true, of: (/** @type {any} */ one) => html`<span class="mono">${one.topic}</span>` },
    { name: 'Broker', of: (/** @type {any} */ one) => one.broker },
    { name: 'Queue', right: true, of: (/** @type {any} */ one) => count(one.queue) },
    { name: 'First offset', right: true, of: (/** @type {any} */ one) => count(one.min) },
    { name: 'Next offset', right: true, of: (/** @type {any} */ one) => count(one.max) },
    { name: 'Messages', right: true, of: (/** @type {any} */ one) => count(one.messages) },
  ];
  return html`<${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => `${one.broker} ${one.topic} ${one.queue}`} caption="Queues" noun="queues" toolbar=${toolbar}
    empty=${html`<${Empty} icon="groups" title=${topic ? 'No such topic has queues' : 'No queues yet'}><p>Each topic is kept in one or more queues; they appear with its first message.</p><//>`} />`;
}

/** @param {{ group: string, onClose: () => void }} props */
function GroupDrawer({ group, onClose }) {
  const detail = useResource(`/groups/${part(group)}`, {}, 2000);
  const [asking, setAsking] = useState('');
  const one = detail.data ?? {};
  const queues = (one.queues ?? []).slice(0, ROWS_MAX);
  const topics = [...new Set(queues.map((/** @type {any} */ queue) => queue.topic))];
  const columns = [
    { name: 'Topic and queue', lead: true, of: (/** @type {any} */ queue) => html`<span class="mono">${queue.topic}</span> <span class="faint">${queue.broker} ${queue.queue}</span>` },
    { name: 'At', right: true, of: (/** @type {any} */ queue) => count(queue.offset) },
    { name: 'Of', right: true, of: (/** @type {any} */ queue) => count(queue.end) },
    { name: 'Behind', right: true, of: (/** @type {any} */ queue) => count(queue.lag) },
    { name: 'Time', right: true, of: (/** @type {any} */ queue) => (queue.lag_s > 0 ? span(queue.lag_s * 1000) : '–') },
  ];
  return html`<${Dialog} kind="drawer" title=${html`<span class="mono">${group}</span>`} sub=${detail.data && `${plural(one.lag, 'message')} behind`} onClose=${onClose}>
    <${Shown} of=${detail}>${() => html`
      ${mayAct() && !group.startsWith('$share/') && topics.length > 0 && html`<div class="row"><button type="button" class="button" onClick=${() => setAsking('reset')}><${Icon} name="back" />Reset offsets</button>
        <button type="button" class="button danger" onClick=${() => setAsking('skip')}><${Icon} name="skip" />Skip everything waiting</button></div>`}
      <section class="flush" aria-label="Queues">${queues.length ? html`<${Table} columns=${columns} rows=${queues} rowKey=${(/** @type {any} */ queue) => `${queue.broker} ${queue.topic} ${queue.queue}`} caption="Queues of the group" />` : html`<p class="quiet small">It has not read a queue yet.</p>`}</section>
      <${Members} of=${one.members} />`}<//>
    ${asking === 'reset' && html`<${Reset} group=${group} queues=${queues} topics=${topics} onClose=${() => setAsking('')} onDone=${detail.reload} />`}
    ${asking === 'skip' && html`<${Skip} group=${group} topics=${topics} lag=${one.lag} onClose=${() => setAsking('')} onDone=${detail.reload} />`}
  <//>`;
}

/** @param {{ of: any }} props */
function Members({ of }) {
  return html`<section class="stack" aria-label="Members"><h3>Members</h3>${of.length === 0 ? html`<p class="quiet small">Nobody is connected at present.</p>`
    : html`<ul class="rows">${of.slice(0, 100).map((/** @type {any} */ one) => html`<li class="row between"><span class="mono">${one.client}</span><span class="faint small mono">${one.address} ${one.language.toLowerCase()}</span></li>`)}</ul>`}</section>`;
}

/** @param {{ group: string, topics: any[], queues: any[], onClose: () => void, onDone: () => void }} props */
function Reset({ group, topics, queues, onClose, onDone }) {
  const [topic, setTopic] = useState(topics[0] ?? '');
  const [to, setTo] = useState('earliest');
  const [time, setTime] = useState('');
  const [offset, setOffset] = useState('0');
  const [queue, setQueue] = useState('');
  const numbers = [...new Set(queues.filter((one) => one.topic === topic).map((one) => String(one.queue)))];
  const one = queue || numbers[0];
  const target = to === 'time_ms' ? { time_ms: new Date(time).getTime() } : to === 'offset' ? { offset: Number(offset), queue: Number(one) } : { to };
  const ready = to === 'time_ms' ? Boolean(time) : to === 'offset' ? Number(offset) >= 0 && offset !== '' : true;
  const act = () => attempt(`${group} reads ${topic} from there`, () => post(`/groups/${part(group)}/reset`, { topic, ...target })).then(onDone);
  return html`<${Confirm} title="Where should the group read from?" act="Reset" onAct=${act} onClose=${onClose} disabled=${!ready}>
    <p class="quiet">Members take the new position within seconds. Going back means that messages are delivered again.</p>
    <${Field} label="Topic" kind="select" value=${topic} onInput=${setTopic} options=${topics.map((one) => [one, one])} />
    <${Field} label="Position" kind="select" value=${to} onInput=${setTo} options=${[['earliest', 'The oldest message kept'], ['latest', 'The next new message'], ['time_ms', 'A point in time'], ['offset', 'An offset in one queue']]} />
    ${to === 'time_ms' && html`<${Field} label="Time (of this browser)" type="datetime-local" value=${time} onInput=${setTime} required />`}
    ${to === 'offset' && html`<${Field} label="Queue" kind="select" value=${one} onInput=${setQueue} options=${numbers.map((each) => [each, each])} />
      <${Field} label="Offset" type="number" min=${0} value=${offset} onInput=${setOffset} required />`}<//>`;
}

/** @param {{ group: string, topics: any[], lag: any, onClose: () => void, onDone: () => void }} props */
function Skip({ group, topics, lag, onClose, onDone }) {
  const [topic, setTopic] = useState(topics[0] ?? '');
  const act = () => attempt(`${group} goes on with new messages of ${topic}`, () => post(`/groups/${part(group)}/skip`, { topic })).then(onDone);
  return html`<${Confirm} title="Skip everything waiting?" act="Skip" type=${group} onAct=${act} onClose=${onClose}>
    <p class="quiet">The group goes on with the next new message. ${lag ? html`The <b>${count(lag)}</b> messages that wait are not delivered to it.` : ''} They stay in the log.</p>
    <${Field} label="Topic" kind="select" value=${topic} onInput=${setTopic} options=${topics.map((one) => [one, one])} /><//>`;
}
