// @ts-check
/** Cluster: groups of brokers with their roles now and over time, controllers, proxies; hand a master's role over. */
import { mayAct, part, post } from '../core/api.js';
import { on } from '../core/events.js';
import { ago, bytes, count } from '../core/format.js';
import { html, useEffect, useState } from '../core/lib.js';
import { useNow, usePaged, useResource } from '../core/resource.js';
import { attempt } from '../core/say.js';
import { Confirm } from '../parts/dialog.js';
import { Field } from '../parts/field.js';
import { History, WINDOWS } from '../parts/history.js';
import { Icon } from '../parts/icon.js';
import { Badge, Card, Page } from '../parts/page.js';
import { Empty, Shown } from '../parts/states.js';
import { List, Table } from '../parts/table.js';

export function Cluster() {
  const brokers = useResource('/brokers', { limit: 200 }, 3000);
  // Each change is announced as an event; the period is for events lost while the stream was cut.
  const history = useResource('/cluster/history', { limit: 200 }, 60_000);
  const [windowMs, setWindow] = useState('3600000');
  useEffect(() => on('roles', () => { brokers.reload(); history.reload(); }), []);
  const groups = brokers.data?.items ?? [];
  return html`<${Page} title="Cluster" about="Groups of brokers that keep the same log: who leads, who is in step, and how that changed.">
    <${Shown} of=${brokers} isEmpty=${groups.length === 0} empty=${html`<section class="card"><${Empty} icon="cluster" title="No broker is known" /></section>`}>${() => html`
      ${groups.some((/** @type {any} */ group) => group.replicas.length > 1) && html`<div class="row end"><div class="window"><${Field} label="Drawn time" kind="select" value=${windowMs} onInput=${setWindow} options=${WINDOWS} /></div></div>`}
      ${groups.map((/** @type {any} */ group) => html`<${Group} key=${group.name} group=${group} history=${history.data?.items ?? []} windowMs=${Number(windowMs)} onDone=${brokers.reload} />`)}`}<//>
    <div class="grid two"><${Controllers} /><${Proxies} /></div>
  <//>`;
}

/** The changes of one group, oldest first, with the names that its drawing has. @param {any[]} items @param {string} name */
function changesOf(items, name) {
  return items.filter((change) => change.name === name)
    .map((change) => ({ time_ms: change.time_ms, master: change.master === null ? null : String(change.master), sync_state_set: change.sync_state_set.map(String), master_epoch: change.epoch }))
    .sort((one, other) => one.time_ms - other.time_ms);
}

/** @param {any} replica */
const named = (replica) => (replica.id === null ? replica.address : String(replica.id));
/** @type {Record<string, string>} */
const KINDS = { ok: 'good', alone: '', degraded: 'warn', 'no master': 'bad' };
/** @type {Record<string, string>} */
const STATES = { ok: 'all in sync', alone: 'runs alone', degraded: 'not all in sync' };

/** A group that elects its master itself, in a sentence. @param {any} group */
function elected(group) {
  const missing = group.replicas.filter((/** @type {any} */ one) => !one.alive).map(named);
  const reached = group.replicas.length - missing.length;
  return `Its brokers elect the master, term ${group.epoch}: ${reached} of ${group.replicas.length} can be reached, ${group.needed} are needed${missing.length ? `; missing: ${missing.join(', ')}` : ''}.`;
}

/** @param {{ group: any, history: any[], windowMs: number, onDone: () => void }} props */
function Group({ group: listed, history, windowMs, onDone }) {
  const [handing, setHanding] = useState(/** @type {any} */ (null));
  const group = useResource(`/brokers/${part(listed.name)}`, {}, 3000).data ?? listed;
  const changes = changesOf(history, group.name);
  const lanes = [...new Set([...group.replicas.map(named), ...changes.flatMap((change) => [change.master, ...change.sync_state_set])])].filter((name) => name !== null);
  const several = group.replicas.length > 1;
  const columns = [
    { name: 'Broker', lead: true, of: (/** @type {any} */ one) => html`<b class="mono">${named(one)}</b><div class="sub mono">${one.id === null ? '' : one.address}</div>` },
    { name: 'Role', of: (/** @type {any} */ one) => html`<${Role} of=${one} />` },
    ...(several ? [
      { name: 'In sync', of: (/** @type {any} */ one) => (one.in_sync ? html`<${Badge} kind="good">yes<//>` : html`<${Badge} kind="warn">no<//>`) },
      { name: 'Behind', right: true, of: (/** @type {any} */ one) => (one.behind_bytes === 0 ? html`<span class="faint">nothing</span>` : bytes(one.behind_bytes)) },
    ] : []),
    ...(several ? [{ name: 'Log', right: true, of: (/** @type {any} */ one) => bytes(one.log_end) },
    { name: 'Epoch', right: true, of: (/** @type {any} */ one) => (one.epochs?.length ? html`<span title=${one.epochs.map((/** @type {any} */ each) => `epoch ${each.epoch} from ${each.start}`).join('\n')}>${count(one.epochs[one.epochs.length - 1].epoch)}</span>` : '–') }] : []),
    { name: '', acts: true, right: true, of: (/** @type {any} */ one) => mayAct() && several && one.role !== 'master' && one.in_sync && one.alive && html`<button type="button" class="button" onClick=${() => setHanding(one)}><${Icon} name="swap" />Make master<span class="spoken"> ${named(one)}</span></button>` },
  ];
  const act = () => attempt(`Broker ${named(handing)} is master of ${group.name}`, () => post(`/brokers/${part(group.name)}/transfer`, { to: handing.id })).then(onDone);
  return html`<${Card} plain title=${group.name} extra=${html`<div class="row small quiet"><${Badge} kind=${KINDS[group.state] ?? ''}>${STATES[group.state] ?? group.state}<//>${group.epoch !== null && html`<span>epoch ${count(group.epoch)}</span>`}</div>`}>
    ${group.mode === 'dledger' && html`<p class="body small quiet">${elected(group)}</p>`}
    ${several && changes.length > 0 && html`<div class="body"><${History} group=${group.name} changes=${changes} replicas=${lanes} windowMs=${windowMs} /></div>`}
    <${Table} columns=${columns} rows=${group.replicas} rowKey=${named} caption=${`Brokers of ${group.name}`} />
    ${handing && html`<${Confirm} title="Hand the master's role over?" act="Hand over" danger=${false} onAct=${act} onClose=${() => setHanding(null)}>
      <p class="quiet">Broker <b class="mono">${named(handing)}</b> becomes master of <b class="mono">${group.name}</b>. Clients wait for about a second while the role moves; nothing acknowledged is lost.</p><//>`}
  <//>`;
}

/** @param {{ of: any }} props */
function Role({ of }) {
  if (!of.alive) return html`<${Badge} kind="bad">down<//>`;
  return html`<${Badge} kind=${of.role === 'master' ? 'accent' : ''}>${of.role.replaceAll('_', ' ')}<//>`;
}

function Controllers() {
  const page = usePaged('/controllers', {}, { everyMs: 5000 });
  const columns = [
    { name: 'Controller', lead: true, of: (/** @type {any} */ one) => html`<b class="mono">${one.id}</b>` },
    { name: 'Address', of: (/** @type {any} */ one) => html`<span class="mono">${one.address}</span>` },
    { name: 'Role', right: true, of: (/** @type {any} */ one) => html`<${Badge} kind=${one.leads ? 'accent' : ''}>${one.leads ? 'leader' : 'follower'}<//>` },
  ];
  const none = html`<${Empty} icon="cluster" title="No controllers"><p>This server runs alone. In a cluster, controllers choose the masters, or brokers elect them.</p><//>`;
  return html`<div class="stack"><h2>Controllers</h2>${page.error ? html`<section class="card">${none}</section>` : html`<${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => one.address} caption="Controllers" empty=${none} />`}</div>`;
}

function Proxies() {
  const page = usePaged('/proxies', {}, { everyMs: 5000 });
  const now = useNow(5000);
  const columns = [
    { name: 'Proxy', lead: true, of: (/** @type {any} */ one) => html`<b class="mono">${one.name}</b><div class="sub">version ${one.version}</div>` },
    { name: 'Listens on', of: (/** @type {any} */ one) => html`<span class="mono">${Object.entries(one.listeners ?? {}).map(([name, port]) => `${name} ${port}`).join(', ')}</span>` },
    { name: 'Started', right: true, of: (/** @type {any} */ one) => html`<span class="nowrap">${ago(one.since_ms, now)}</span>` },
  ];
  return html`<div class="stack"><h2>MQTT proxies</h2><${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => one.name} caption="MQTT proxies"
    empty=${html`<${Empty} icon="broker" title="No proxy is connected"><p>MQTT clients reach the log through a proxy.</p><//>`} /></div>`;
}
