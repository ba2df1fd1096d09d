// @ts-check
/** Overview: how much, how fast, how far behind, how safe; and the first message of an empty server. */
import { alarms, figures, past, series } from '../core/events.js';
import { bytes, bytesScaled, count, plural, rate, scaled, short, span } from '../core/format.js';
import { html } from '../core/lib.js';
import { useResource } from '../core/resource.js';
import { link } from '../core/router.js';
import { useSignal } from '../core/signal.js';
import { Chart, Legend } from '../parts/chart.js';
import { Badge, Banner, Card, Facts, Page } from '../parts/page.js';
import { Code } from '../parts/payload.js';
import { Failed, Loading } from '../parts/states.js';
import { Tile } from '../parts/tile.js';

const SPARK_POINTS = 60;

export function Overview() {
  const first = useResource('/overview');
  const live = useSignal(figures);
  const raised = useSignal(alarms);
  const data = live ? { ...first.data, ...live } : first.data;
  if (!data) return html`<${Page} title="Overview">${first.error ? html`<section class="card"><${Failed} error=${first.error} retry=${first.reload} /></section>` : html`<section class="card"><${Loading} /></section>`}<//>`;
  return html`<${Page} title="Overview" about=${about(data)}>
    ${raised.length > 0 && html`<${Banner} kind="warn"><b>${plural(raised.length, 'alarm')} raised:</b> ${raised[0].text} <a href="#/alarms">See ${raised.length > 1 ? 'all' : 'it'}</a><//>`}
    ${isEmpty(data) && html`<${FirstMessage} />`}
    <${Tiles} data=${data} />
    <div class="grid two"><${Traffic} /><${Lag} /></div>
    <div class="grid two"><${Storage} data=${data} /><${Safety} data=${data} /></div>
  <//>`;
}

/** @param {any} data */
function about(data) {
  const parts = [data.node, data.mode && `${data.mode}`, data.version && `version ${data.version}`, data.uptime_s !== undefined && `up ${span(data.uptime_s * 1000)}`];
  return parts.filter(Boolean).join(' · ');
}

/** @param {any} data */
const isEmpty = (data) => data.topics === 0 && !data.clients && past.every((point) => !point.of.messages_in_rate);

/** @param {string} name */
const recent = (name) => series(name).slice(-SPARK_POINTS);

/** @param {{ data: any }} props */
function Tiles({ data }) {
  return html`<div class="tiles six">
    <${Tile} name="Messages in" value=${scaled(data.messages_in_rate)} unit="/s" values=${recent('messages_in_rate')} href="#/topics" />
    <${Tile} name="Messages out" value=${scaled(data.messages_out_rate)} unit="/s" values=${recent('messages_out_rate')} ink=${2} href="#/clients" />
    <${Tile} name="Data in" value=${bytesScaled(data.bytes_in_rate)} unit="/s" values=${recent('bytes_in_rate')} />
    <${Tile} name="Clients connected" value=${scaled(data.clients)} note=${data.sessions !== undefined && data.sessions !== null ? `${plural(data.sessions, 'session')}, connected or kept` : ''} values=${recent('clients')} href="#/clients" ink=${2} />
    <${Tile} name="Largest lag" value=${scaled(data.lag_max)} unit="messages" note=${data.lag_max_s > 0 ? `${span(data.lag_max_s * 1000)} behind` : ''} values=${recent('lag_max')} ink=${3} href="#/groups" />
    <${Tile} name="Refusals" value=${scaled(data.refusals_rate)} unit="/s" values=${recent('refusals_rate')} ink=${4} href="#/quotas" />
  </div>`;
}

function Traffic() {
  const lines = [{ name: 'In', values: series('messages_in_rate'), ink: 1 }, { name: 'Out', values: series('messages_out_rate'), ink: 2 }];
  return html`<${Card} title="Messages per second" plain extra=${html`<${Legend} series=${lines} format=${rate} />`}>
    <${Chart} title="Messages per second" times_s=${past.map((point) => point.time_s)} series=${lines} format=${short} /><//>`;
}

function Lag() {
  const lines = [{ name: 'Largest lag', values: series('lag_max'), ink: 3 }];
  return html`<${Card} title="Messages waiting for the slowest group" plain extra=${html`<${Legend} series=${lines} format=${short} />`}>
    <${Chart} title="Messages waiting for the slowest group" times_s=${past.map((point) => point.time_s)} series=${lines} format=${short} whole /><//>`;
}

/** @param {{ data: any }} props */
function Storage({ data }) {
  const disk = data.disk ?? {};
  const used = disk.total ? 1 - disk.free / disk.total : 0;
  const ink = used > 0.9 ? 'ink-4' : used > 0.75 ? 'ink-3' : '';
  return html`<${Card} title="Storage">
    <div class="stack">
      ${disk.total > 0 && html`<div class="stack tight"><div class="row between small"><span>${bytes(disk.total - disk.free)} of ${bytes(disk.total)} used</span><span class="faint number">${Math.round(used * 100)} %</span></div>
        <div class=${`meter ${ink}`}><span style=${{ width: `${used * 100}%` }}></span></div></div>`}
      <${Facts} of=${[['Log', bytes(disk.log)], ['Free', bytes(disk.free)], ['Topics', html`<a href="#/topics">${count(data.topics)}</a>`], ['Queues', html`<a href="#/groups">${count(data.queues)}</a>`], ['Groups', html`<a href=${link('groups')}>${count(data.groups)}</a>`], ['Retained', html`<a href="#/retained">${count(data.retained)}</a>`], ['Delayed', html`<a href="#/delayed">${count(data.delayed)}</a>`]]} />
    </div><//>`;
}

/** When an acknowledgement is given, by the mode of flushing. @type {Record<string, string>} */
const PROMISE = {
  sync: 'Acknowledged messages are on the disk.',
  async: 'Acknowledged messages reach the disk a moment later: a power cut may lose the last ones.',
};

/** @param {{ data: any }} props */
function Safety({ data }) {
  const mode = String(data.flush_mode ?? '').toLowerCase();
  const behind = data.flush_behind_bytes ?? 0;
  return html`<${Card} title="Durability">
    <div class="stack">
      <p class="quiet small">${PROMISE[mode.includes('async') ? 'async' : mode ? 'sync' : ''] ?? 'What an acknowledgement stands for on this server.'}</p>
      <${Facts} of=${[
        ['Flush mode', html`<${Badge} kind=${mode.includes('async') ? 'warn' : 'good'}>${mode.replaceAll('_', ' ') || 'unknown'}<//>`],
        ['Not yet on disk', html`${bytes(behind)}`],
        ['Not yet confirmed', bytes(data.confirm_lag_bytes)],
        ['Alarms', html`<a href="#/alarms">${count((data.alarms ?? []).length)}</a>`],
      ]} />
    </div><//>`;
}

function FirstMessage() {
  const host = location.hostname;
  const proxies = useResource('/proxies', { limit: 1 }, 2000);
  const port = proxies.data?.items[0]?.listeners?.tcp;
  const where = port && port !== 1883 ? ` -p ${port}` : '';
  return html`<${Card} title="Send the first message">
    <div class="grid two">
      <div class="stack"><p class="quiet">From this page: open <a href=${link('topics', { topic: 'hello/world', tab: 'publish' })}>the publish box</a>, write something, and watch it arrive in the live tail.</p>
        <p class="quiet">From any MQTT client, for example Mosquitto's:</p>
        <${Code} text=${`mosquitto_pub -h ${host}${where} -t hello/world -m '{"value": 21.5}'`} /></div>
      <div class="stack"><p class="quiet">From Python, with paho-mqtt, which LightMQ brings along:</p>
        <${Code} text=${`import paho.mqtt.publish as publish\n\npublish.single("hello/world", '{"value": 21.5}', qos=1,\n               hostname="${host}", port=${port ?? 1883})`} /></div>
    </div><//>`;
}
