// @ts-check
/** Clients: who is connected and what they hold; sessions that wait for their client; kick and end. */
import { mayAct, part, post, remove } from '../core/api.js';
import { ago, count, rate, span } from '../core/format.js';
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
  const [sort, setSort] = useState(route.params.sort ?? '');
  const settled = useSettled(search);
  const kept = route.params.of === 'sessions';
  useEffect(() => adjust({ search: settled, sort }), [settled, sort]);
  const toolbar = html`<${Search} value=${search} onInput=${setSearch} label=${kept ? 'Search sessions' : 'Search by id, user or address'} />
    <span class="grow"></span><div class="segments" role="group" aria-label="What is listed">
      <a class="button" aria-current=${kept ? undefined : 'true'} href=${link('clients')}>Connected</a>
      <a class="button" aria-current=${kept ? 'true' : undefined} href=${link('clients', { of: 'sessions' })}>Sessions</a></div>`;
  return html`<${Page} title="Clients" about="MQTT devices and programs: who they are, what they wait for, how fast they read.">
    ${kept ? html`<${Sessions} search=${settled} toolbar=${toolbar} />` : html`<${Connected} search=${settled} sort=${sort} onSort=${setSort} toolbar=${toolbar} />`}
    ${route.rest && html`<${ClientDrawer} key=${route.rest} id=${route.rest} onClose=${() => go(link('clients', route.params))} />`}
  <//>`;
}

/** @param {{ search: string, sort: string, onSort: (sort: string) => void, toolbar: any }} props */
function Connected({ search, sort, onSort, toolbar }) {
  const page = usePaged('/clients', { search, sort }, { everyMs: 3000 });
  const now = useNow();
  const columns = [
    { name: 'Client', lead: true, sort: 'id', of: (/** @type {any} */ one) => html`<a class="link mono" href=${link('clients', { search, sort }, one.id)}>${one.id}</a>${one.user && html`<div class="sub">${one.user}</div>`}` },
    { name: 'Address', sort: 'address', of: (/** @type {any} */ one) => html`<span class="mono">${one.address}</span>` },
    { name: 'Protocol', of: (/** @type {any} */ one) => html`${version(one.version)}${one.listener && one.listener !== 'tcp' ? html` <${Badge}>${one.listener}<//>` : ''}` },
    { name: 'Connected', sort: 'since_ms', of: (/** @type {any} */ one) => html`<span class="nowrap">${ago(one.since_ms, now)}</span>` },
    { name: 'Subscriptions', right: true, of: (/** @type {any} */ one) => count(size(one.subscriptions)) },
    { name: 'In flight', right: true, sort: 'in_flight', of: (/** @type {any} */ one) => count(one.in_flight) },
    { name: 'Waiting', right: true, sort: 'backlog', of: (/** @type {any} */ one) => html`<span class=${one.backlog > 1000 ? 'warned' : ''}>${count(one.backlog)}</span>` },
    { name: 'In', right: true, of: (/** @type {any} */ one) => rate(one.rate_in) },
    { name: 'Out', right: true, of: (/** @type {any} */ one) => rate(one.rate_out) },
  ];
  return html`<${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => one.id} caption="Connected clients" noun="clients" sort=${sort} onSort=${onSort} toolbar=${toolbar}
    empty=${search ? html`<${Empty} icon="search" title="No client matches"><p>Nothing connected has <b>${search}</b> in its id, user or address.</p><//>`
      : html`<${Empty} icon="clients" title="No client is connected"><p>Connect any MQTT client to this server's MQTT port, and it appears here within seconds.</p><//>`} />`;
}

/** @param {{ search: string, toolbar: any }} props */
function Sessions({ search, toolbar }) {
  const page = usePaged('/sessions', { search }, { everyMs: 5000 });
  const [ending, setEnding] = useState(/** @type {any} */ (null));
  const columns = [
    { name: 'Client', lead: true, of: (/** @type {any} */ one) => html`<a class="link mono" href=${link('clients', { of: 'sessions' }, one.id)}>${one.id}</a>${one.user && html`<div class="sub">${one.user}</div>`}` },
    { name: 'State', of: (/** @type {any} */ one) => (one.connected ?? one.state === 'connected' ? html`<${Badge} kind="good">connected<//>` : html`<${Badge}>away<//>`) },
    { name: 'Subscriptions', right: true, of: (/** @type {any} */ one) => count(size(one.subscriptions)) },
    { name: 'Waiting', right: true, of: (/** @type {any} */ one) => count(one.backlog) },
    { name: 'Ends', of: (/** @type {any} */ one) => (one.expires_ms ? ago(one.expires_ms) : html`<span class="faint">never</span>`) },
    { name: '', acts: true, right: true, of: (/** @type {any} */ one) => mayAct() && html`<button type="button" class="button danger" onClick=${() => setEnding(one)}>End session<span class="spoken"> of ${one.id}</span></button>` },
  ];
  return html`<${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => one.id} caption="Sessions" noun="sessions" toolbar=${toolbar}
    empty=${html`<${Empty} icon="clients" title="No session is kept"><p>A client that connects with clean session off (MQTT 5: with a session expiry) keeps its subscriptions and waiting messages while it is away.</p><//>`} />
    ${ending && html`<${EndSession} id=${ending.id} onClose=${() => setEnding(null)} onDone=${page.reload} />`}`;
}

/** @param {unknown} subscriptions */
const size = (subscriptions) => (Array.isArray(subscriptions) ? subscriptions.length : subscriptions);
/** @param {unknown} value */
const version = (value) => ({ 3: 'MQTT 3.1', 4: 'MQTT 3.1.1', 5: 'MQTT 5' })[String(value)] ?? (String(value ?? '').startsWith('MQTT') ? value : `MQTT ${value ?? ''}`);

/** @param {{ id: string, onClose: () => void }} props */
function ClientDrawer({ id, onClose }) {
  const client = useResource(`/clients/${part(id)}`, {}, 2000);
  const [asking, setAsking] = useState('');
  const one = client.data?.client ?? client.data;
  return html`<${Dialog} kind="drawer" title=${html`<span class="mono">${id}</span>`} sub=${one && `${version(one.version)} from ${one.address ?? 'nowhere at present'}`} onClose=${onClose}>
    <${Shown} of=${client}>${() => html`
      <${Facts} of=${facts(one)} />
      <${Subscriptions} of=${one.subscriptions} />
      ${mayAct() && html`<div class="row">
        <button type="button" class="button" onClick=${() => setAsking('kick')}><${Icon} name="power" />Disconnect</button>
        <button type="button" class="button danger" onClick=${() => setAsking('end')}><${Icon} name="trash" />End session</button></div>`}`}<//>
    ${asking === 'kick' && html`<${Kick} id=${id} onClose=${() => setAsking('')} onDone=${onClose} />`}
    ${asking === 'end' && html`<${EndSession} id=${id} onClose=${() => setAsking('')} onDone=${onClose} />`}
  <//>`;
}

/** @param {any} one @returns {[string, any][]} */
function facts(one) {
  return [
    ['User', one.user || html`<span class="faint">none</span>`], ['Address', html`<span class="mono">${one.address ?? '–'}</span>`],
    ['Protocol', `${version(one.version)}${one.listener ? ` over ${one.listener}` : ''}`], ['Connected', ago(one.since_ms)],
    ['Keep alive', one.keep_alive_s ? span(one.keep_alive_s * 1000) : 'off'], ['Session', one.clean ? 'ends with the connection' : 'kept while away'],
    ['In flight', count(one.in_flight)], ['Waiting', count(one.backlog)], ['Messages in', rate(one.rate_in)], ['Messages out', rate(one.rate_out)],
    ['Proxy', one.proxy ?? '–'],
  ];
}

/** @param {{ of: any }} props */
function Subscriptions({ of }) {
  if (!Array.isArray(of)) return null;
  return html`<section class="stack" aria-label="Subscriptions"><h3>Subscriptions</h3>
    ${of.length === 0 ? html`<p class="quiet small">None.</p>` : html`<ul class="rows">${of.slice(0, 100).map((one) => {
      const filter = typeof one === 'string' ? one : one.filter;
      return html`<li class="row between"><a class="mono" href=${link('live', { filter })}>${filter}</a>${one.qos !== undefined && html`<${Badge}>QoS ${one.qos}<//>`}</li>`;
    })}</ul>`}</section>`;
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
