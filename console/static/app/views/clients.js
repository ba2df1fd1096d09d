// @ts-check
/** Clients: who is connected and what they hold; sessions that wait for their client; kick and end. */
import { mayAct, part, post, remove } from '../core/api.js';
import { ago, bytes, count, plural, rate, span } from '../core/format.js';
import { html, useEffect, useState } from '../core/lib.js';
import { adjust, link, go } from '../core/router.js';
import { useNow, usePaged, useResource, useSettled } from '../core/resource.js';
import { attempt } from '../core/say.js';
import { Confirm, Dialog } from '../parts/dialog.js';
import { Check, Search } from '../parts/field.js';
import { Icon } from '../parts/icon.js';
import { Badge, Facts, Page } from '../parts/page.js';
import { Empty, Shown } from '../parts/states.js';
import { List } from '../parts/table.js';

/** @param {{ route: import('../core/router.js').Route }} props */
export function Clients({ route }) {
  const [search, setSearch] = useState(route.params.search ?? '');
  const settled = useSettled(search);
  const [user, setUser] = useState(route.params.user ?? '');
  const [host, setHost] = useState(route.params.address ?? '');
  const only = { user: useSettled(user), address: useSettled(host) };
  const of = route.params.of ?? '';
  const kept = of === 'sessions' || of === 'away';
  const [sort, setSort] = useState(route.params.sort ?? 'id');
  useEffect(() => adjust({ search: settled, ...only, sort: sort === 'id' ? '' : sort }), [settled, only.user, only.address, sort]);
  const toolbar = html`<${Search} value=${search} onInput=${setSearch} label=${kept ? 'Search sessions' : 'Search by client id'} />
    <input class="input narrow" value=${user} placeholder="User" aria-label="Only clients of this user" autocomplete="off" spellcheck=${false} onInput=${(/** @type {any} */ event) => setUser(event.target.value)} />
    ${!kept && html`<input class="input narrow" value=${host} placeholder="Address" aria-label="Only addresses that begin with this" autocomplete="off" spellcheck=${false} onInput=${(/** @type {any} */ event) => setHost(event.target.value)} />`}
    <span class="grow"></span><div class="segments" role="group" aria-label="What is listed">
      <a class="button" aria-current=${kept ? undefined : 'true'} href=${link('clients')}>Connected</a>
      <a class="button" aria-current=${of === 'away' ? 'true' : undefined} href=${link('clients', { of: 'away' })}>Away</a>
      <a class="button" aria-current=${of === 'sessions' ? 'true' : undefined} href=${link('clients', { of: 'sessions' })}>Sessions</a></div>`;
  return html`<${Page} title="Clients" about="MQTT devices and programs: who they are, what they send and receive, what waits for them.">
    ${kept ? html`<${Sessions} of=${of} search=${settled} user=${only.user} toolbar=${toolbar} />`
    : html`<${Connected} search=${settled} only=${only} sort=${sort} onSort=${setSort} toolbar=${toolbar} />`}
    ${route.rest && html`<${ClientDrawer} key=${route.rest} id=${route.rest} onClose=${() => go(link('clients', route.params))} />`}
  <//>`;
}

/** @param {{ search: string, only: { user: string, address: string }, sort: string, onSort: (sort: string) => void, toolbar: any }} props */
function Connected({ search, only, sort, onSort, toolbar }) {
  const page = usePaged('/clients', { search, ...only, sort }, { everyMs: 3000 });
  const now = useNow();
  const kept = { search, ...only, sort: sort === 'id' ? '' : sort };
  const columns = [
    { name: 'Client', lead: true, sort: 'id', of: (/** @type {any} */ one) => html`<a class="link mono" href=${link('clients', kept, one.id)}>${one.id}</a>${one.user && html`<div class="sub">${one.user}</div>`}` },
    { name: 'Address', of: (/** @type {any} */ one) => html`<div><span class="mono">${one.address}</span><div class="sub nowrap">${version(one.version)}${one.protocol && one.protocol !== 'tcp' ? html` <${Badge}>${one.protocol}<//>` : ''}</div></div>` },
    { name: 'Connected', sort: 'since_ms', of: (/** @type {any} */ one) => html`<span class="nowrap">${ago(one.since_ms, now)}</span>` },
    { name: 'Sends', right: true, sort: 'messages_in_per_s', of: (/** @type {any} */ one) => html`<span class="nowrap">${rate(one.messages_in_per_s)}</span>` },
    { name: 'Sent bytes', right: true, sort: 'bytes_in_per_s', of: (/** @type {any} */ one) => html`<span class="nowrap">${bytes(one.bytes_in_per_s)}/s</span>` },
    { name: 'Receives', right: true, sort: 'messages_out_per_s', of: (/** @type {any} */ one) => html`<span class="nowrap">${rate(one.messages_out_per_s)}</span>` },
    { name: 'Received bytes', right: true, sort: 'bytes_out_per_s', of: (/** @type {any} */ one) => html`<span class="nowrap">${bytes(one.bytes_out_per_s)}/s</span>` },
    { name: 'Filters', right: true, of: (/** @type {any} */ one) => count(one.subscriptions) },
    { name: 'In flight', right: true, sort: 'in_flight', of: (/** @type {any} */ one) => count(one.in_flight) },
    { name: 'Waiting', right: true, sort: 'backlog', of: (/** @type {any} */ one) => html`<span class=${one.backlog > 1000 ? 'warned' : ''}>${count(one.backlog)}</span>` },
  ];
  return html`<${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => one.id} caption="Connected clients" noun="clients" sort=${sort} onSort=${onSort} toolbar=${toolbar}
    empty=${search || only.user || only.address ? html`<${Empty} icon="search" title="No client matches"><p>Nothing connected has this client id, user and address.</p><//>`
      : html`<${Empty} icon="clients" title="No client is connected"><p>Connect any MQTT client to this server's MQTT port, and it appears here within seconds.</p><//>`} />`;
}

/** @param {{ of: string, search: string, user: string, toolbar: any }} props */
function Sessions({ of, search, user, toolbar }) {
  const page = usePaged('/sessions', { search, user, state: of === 'away' ? 'away' : undefined }, { everyMs: 5000 });
  const [ending, setEnding] = useState(/** @type {any} */ (null));
  const columns = [
    { name: 'Client', lead: true, of: (/** @type {any} */ one) => html`<a class="link mono" href=${link('clients', { of, search, user }, one.id)}>${one.id}</a>${one.user && html`<div class="sub">${one.user}</div>`}` },
    { name: 'State', of: (/** @type {any} */ one) => (one.connected ? html`<${Badge} kind="good">connected<//>` : html`<${Badge}>away<//>`) },
    { name: 'Subscriptions', right: true, of: (/** @type {any} */ one) => count(one.subscriptions) },
    { name: 'Waiting', right: true, of: (/** @type {any} */ one) => waiting(one) },
    { name: 'Ends', right: true, of: (/** @type {any} */ one) => (one.ends_ms ? html`<span class="nowrap">${ago(one.ends_ms)}</span>` : html`<span class="faint nowrap">${one.connected && one.expiry_s < NEVER_S ? `${lasting(one.expiry_s)} it leaves` : 'never'}</span>`) },
    { name: '', acts: true, right: true, of: (/** @type {any} */ one) => mayAct() && html`<button type="button" class="button danger" onClick=${() => setEnding(one)}>End session<span class="spoken"> of ${one.id}</span></button>` },
  ];
  return html`<${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => one.id} caption="Sessions" noun="sessions" toolbar=${toolbar}
    empty=${search || user ? html`<${Empty} icon="search" title="No session matches"><p>No session ${of === 'away' ? 'whose client is away ' : ''}has this client id and user.</p><//>`
      : html`<${Empty} icon="clients" title=${of === 'away' ? 'No client is away' : 'No session is kept'}><p>A client that connects with clean session off (MQTT 5: with a session expiry) keeps its subscriptions and waiting messages while it is away.</p><//>`} />
    ${ending && html`<${EndSession} id=${ending.id} onClose=${() => setEnding(null)} onDone=${page.reload} />`}`;
}

/** @param {number} expiry_s */
const lasting = (expiry_s) => (expiry_s > 0 ? `${span(expiry_s * 1000)} after` : 'when');
/** What MQTT writes for a session that never ends, in seconds. */
const NEVER_S = 0xffffffff;
/** @param {unknown} value */
const version = (value) => (value ? `MQTT ${value}` : 'MQTT');

/** @param {{ id: string, onClose: () => void }} props */
function ClientDrawer({ id, onClose }) {
  const client = useResource(`/clients/${part(id)}`, {}, 2000);
  const [asking, setAsking] = useState('');
  const one = client.data;
  return html`<${Dialog} kind="drawer" title=${html`<span class="mono">${id}</span>`} sub=${one && (one.connected ? `${version(one.version)} from ${one.address}` : 'away at present')} onClose=${onClose}>
    <${Shown} of=${client}>${() => html`
      <${Facts} of=${facts(one)} />
      ${one.session && html`<${Subscriptions} of=${one.session.filters ?? []} />`}
      ${mayAct() && html`<div class="row">
        ${one.connected && html`<button type="button" class="button" onClick=${() => setAsking('kick')}><${Icon} name="power" />Disconnect</button>`}
        ${one.session && html`<button type="button" class="button danger" onClick=${() => setAsking('end')}><${Icon} name="trash" />End session</button>`}</div>`}`}<//>
    ${asking === 'kick' && html`<${Kick} id=${id} onClose=${() => setAsking('')} onDone=${onClose} />`}
    ${asking === 'end' && html`<${EndSession} id=${id} onClose=${() => setAsking('')} onDone=${onClose} />`}
  <//>`;
}

/** What passes now, and what has since it connected. @param {any} one @param {'in' | 'out'} way */
const passed = (one, way) => `${rate(one[`messages_${way}_per_s`])}, ${bytes(one[`bytes_${way}_per_s`])}/s; ${plural(one[`messages_${way}`], 'message')}, ${bytes(one[`bytes_${way}`])} so far`;

/** @param {any} one @returns {[string, any][]} */
function facts(one) {
  const session = one.session;
  const kept = session && session.expiry_s > 0;
  /** @type {[string, any][]} */
  const connection = one.connected ? [
    ['Address', html`<span class="mono">${one.address}</span>`], ['Protocol', `${version(one.version)} over ${one.protocol}`],
    ['Connected', ago(one.since_ms)], ['Sends', passed(one, 'in')], ['Receives', passed(one, 'out')], ['Keep alive', one.keep_alive_s ? span(one.keep_alive_s * 1000) : 'off'], ['Proxy', html`<span class="mono">${one.proxy}</span>`],
  ] : [];
  return [
    ['User', one.user || session?.user || html`<span class="faint">none</span>`], ...connection,
    ['Session', !session ? 'none' : !kept ? 'ends with the connection' : session.ends_ms ? `ends ${ago(session.ends_ms)}` : session.expiry_s >= NEVER_S ? 'kept for ever' : `kept, ends ${lasting(session.expiry_s)} it leaves`],
    ['In flight', count(one.in_flight ?? session?.in_flight)], ['Waiting', session ? waiting(session) : count(one.backlog)],
  ];
}

/** What waits for a session alone, and for all members of its shared subscriptions. @param {any} one */
const waiting = (one) => (one.shared_backlog > 0 ? `${count(one.backlog)} + ${count(one.shared_backlog)} shared` : count(one.backlog));

/** @param {{ of: any }} props */
function Subscriptions({ of }) {
  return html`<section class="stack" aria-label="Subscriptions"><h3>Subscriptions</h3>
    ${of.length === 0 ? html`<p class="quiet small">None.</p>` : html`<ul class="rows">${of.slice(0, 100).map((/** @type {any} */ one) => html`<li class="row between"><a class="mono" href=${link('live', { filter: one.filter })}>${one.filter}</a>
      <span class="row">${(one.backlog > 0 || one.shared_backlog > 0) && html`<span class="small faint">${waiting(one)} waiting</span>`}<${Badge}>QoS ${one.qos}<//></span></li>`)}</ul>`}</section>`;
}

/** @param {{ id: string, onClose: () => void, onDone: () => void }} props */
function Kick({ id, onClose, onDone }) {
  const [end, setEnd] = useState(false);
  const act = () => attempt(`${id} was disconnected`, () => post(`/clients/${part(id)}/disconnect`, { end_session: end })).then((done) => { if (done !== undefined) onDone(); });
  return html`<${Confirm} title="Disconnect this client?" act="Disconnect" onAct=${act} onClose=${onClose}>
    <p class="quiet"><span class="mono">${id}</span> is told that an administrator ended its connection. Most clients connect again by themselves; what waits for it stays.</p>
    <${Check} label="End its session too: subscriptions and waiting messages go" checked=${end} onChange=${setEnd} /><//>`;
}

/** @param {{ id: string, onClose: () => void, onDone: () => void }} props */
function EndSession({ id, onClose, onDone }) {
  const act = () => attempt(`The session of ${id} ended`, () => remove(`/sessions/${part(id)}`)).then((done) => { if (done !== undefined) onDone(); });
  return html`<${Confirm} title="End this session?" act="End session" onAct=${act} onClose=${onClose}>
    <p class="quiet">The subscriptions of <span class="mono">${id}</span> and all messages that wait for it are removed. A client that is connected is disconnected. This cannot be undone.</p><//>`;
}
