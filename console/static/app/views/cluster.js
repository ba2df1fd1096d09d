// @ts-check
/** Cluster: groups of brokers with their roles now and over time, controllers, proxies; hand a master's role over. */
import { mayAct, part, post } from '../core/api.js';
import { on } from '../core/events.js';
import { ago, bytes, count, span } from '../core/format.js';
import { html, useEffect, useState } from '../core/lib.js';
import { usePaged, useResource } from '../core/resource.js';
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
  const history = useResource('/cluster/history', { limit: 200 }, 10_000);
  const [windowMs, setWindow] = useState('3600000');
  useEffect(() => on('roles', () => { brokers.reload(); history.reload(); }), []);
  const groups = grouped(brokers.data?.items ?? []);
  return html`<${Page} title="Cluster" about="Groups of brokers that keep the same log: who leads, who is in step, and how that changed.">
    <${Shown} of=${brokers} isEmpty=${groups.length === 0} empty=${html`<section class="card"><${Empty} icon="cluster" title="No broker is known" /></section>`}>${() => html`
      <div class="row end"><div class="window"><${Field} label="Drawn time" kind="select" value=${windowMs} onInput=${setWindow} options=${WINDOWS} /></div></div>
      ${groups.map((group) => html`<${Group} key=${group.name} group=${group} history=${history.data?.items ?? []} windowMs=${Number(windowMs)} onDone=${brokers.reload} />`)}`}<//>
    <div class="grid two"><${Controllers} /><${Proxies} /></div>
  <//>`;
}

/** One entry for each group, from entries for groups or for single replicas. @param {any[]} items */
export function grouped(items) {
  /** @type {Map<string, any>} */
  const found = new Map();
  for (const item of items) {
    const name = item.group ?? item.name;
    const group = found.get(name) ?? { name, replicas: [], ...(item.replicas ? item : {}) };
    if (item.replicas) group.replicas = item.replicas;
    else group.replicas.push(item);
    found.set(name, group);
  }
  return [...found.values()];
}

/** @param {any} replica */
const named = (replica) => String(replica.replica ?? replica.broker_id ?? replica.id ?? replica.address ?? replica.name);

/** @param {any} change */
const cleaned = (change) => ({ ...change, master: change.master === null || change.master === undefined ? null : String(change.master), sync_state_set: (change.sync_state_set ?? []).map(String) });

/** @param {{ group: any, history: any[], windowMs: number, onDone: () => void }} props */
function Group({ group, history, windowMs, onDone }) {
  const [handing, setHanding] = useState(/** @type {any} */ (null));
  const changes = history.filter((change) => (change.group ?? change.broker ?? group.name) === group.name).map(cleaned).sort((one, other) => one.time_ms - other.time_ms);
  const lanes = [...new Set([...group.replicas.map(named), ...changes.flatMap((change) => [change.master, ...change.sync_state_set])])].filter((name) => name !== null && name !== '');
  const columns = [
    { name: 'Replica', lead: true, of: (/** @type {any} */ one) => html`<b class="mono">${named(one)}</b><div class="sub mono">${one.address ?? ''}</div>` },
    { name: 'Role', of: (/** @type {any} */ one) => html`<${Role} of=${one} />` },
    { name: 'In sync', of: (/** @type {any} */ one) => (one.in_sync === undefined ? '–' : one.in_sync ? html`<${Badge} kind="good">yes<//>` : html`<${Badge} kind="warn">catching up<//>`) },
    { name: 'Behind', right: true, of: (/** @type {any} */ one) => (one.behind_bytes === 0 ? html`<span class="faint">nothing</span>` : bytes(one.behind_bytes)) },
    { name: 'Log end', right: true, of: (/** @type {any} */ one) => bytes(one.log_end ?? one.end_position) },
    { name: 'Seen', right: true, of: (/** @type {any} */ one) => ago(one.heard_ms ?? one.last_seen_ms) },
    { name: '', acts: true, right: true, of: (/** @type {any} */ one) => mayAct() && group.replicas.length > 1 && !isMaster(one) && one.in_sync && html`<button type="button" class="button" onClick=${() => setHanding(one)}><${Icon} name="swap" />Make master<span class="spoken"> ${named(one)}</span></button>` },
  ];
  const act = () => attempt(`${named(handing)} takes over ${group.name}`, () => post(`/brokers/${part(group.name)}/transfer`, { to: handing.broker_id ?? handing.id ?? named(handing) })).then(onDone);
  return html`<${Card} plain title=${group.name} extra=${html`<div class="row small quiet">${group.master_epoch !== undefined && html`<${Badge}>epoch ${count(group.master_epoch)}<//>`}${group.acks_min !== undefined && html`<span>${count(group.acks_min)} copies before an acknowledgement</span>`}</div>`}>
    ${changes.length > 0 && html`<div class="body"><${History} group=${group.name} changes=${changes} replicas=${lanes} windowMs=${windowMs} /></div>`}
    <${Table} columns=${columns} rows=${group.replicas} rowKey=${named} caption=${`Replicas of ${group.name}`} />
    ${handing && html`<${Confirm} title="Hand the master's role over?" act="Hand over" danger=${false} onAct=${act} onClose=${() => setHanding(null)}>
      <p class="quiet"><b class="mono">${named(handing)}</b> becomes master of <b class="mono">${group.name}</b>. Clients wait for about a second while the role moves; nothing acknowledged is lost.</p><//>`}
  <//>`;
}

/** @param {any} one */
const isMaster = (one) => String(one.role ?? '').toLowerCase().includes('master') && !String(one.role).toLowerCase().includes('acting');

/** @param {{ of: any }} props */
function Role({ of }) {
  const role = String(of.role ?? 'unknown').toLowerCase().replaceAll('_', ' ');
  if (of.alive === false || role === 'down') return html`<${Badge} kind="bad">down<//>`;
  return html`<${Badge} kind=${isMaster(of) ? 'accent' : ''}>${role}<//>`;
}

function Controllers() {
  const page = usePaged('/controllers', {}, { everyMs: 5000 });
  const columns = [
    { name: 'Controller', lead: true, of: (/** @type {any} */ one) => html`<b class="mono">${one.id ?? one.name ?? one.address}</b><div class="sub mono">${one.id || one.name ? one.address : ''}</div>` },
    { name: 'Role', of: (/** @type {any} */ one) => html`<${Badge} kind=${one.leader || one.role === 'leader' ? 'accent' : ''}>${one.role ?? (one.leader ? 'leader' : 'follower')}<//>` },
    { name: 'Term', right: true, of: (/** @type {any} */ one) => count(one.term) },
    { name: 'State', of: (/** @type {any} */ one) => (one.alive === false ? html`<${Badge} kind="bad">down<//>` : html`<${Badge} kind="good">up<//>`) },
  ];
  return html`<div class="stack"><h2>Controllers</h2><${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => String(one.id ?? one.address)} caption="Controllers"
    empty=${html`<${Empty} icon="cluster" title="No controllers"><p>This server runs alone. Controllers choose masters in a cluster.</p><//>`} /></div>`;
}

function Proxies() {
  const page = usePaged('/proxies', {}, { everyMs: 5000 });
  const columns = [
    { name: 'Proxy', lead: true, of: (/** @type {any} */ one) => html`<b class="mono">${one.id ?? one.name ?? one.address}</b><div class="sub mono">${one.id || one.name ? one.address : ''}</div>` },
    { name: 'Clients', right: true, of: (/** @type {any} */ one) => count(one.clients) },
    { name: 'Version', of: (/** @type {any} */ one) => one.version ?? '–' },
    { name: 'Connected', right: true, of: (/** @type {any} */ one) => (one.since_ms ? ago(one.since_ms) : one.uptime_s ? span(one.uptime_s * 1000) : '–') },
  ];
  return html`<div class="stack"><h2>MQTT proxies</h2><${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => String(one.id ?? one.address)} caption="MQTT proxies"
    empty=${html`<${Empty} icon="broker" title="No proxy is connected"><p>MQTT clients reach the log through a proxy.</p><//>`} /></div>`;
}
