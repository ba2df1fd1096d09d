// @ts-check
/** Spark: each streaming query that reads from this log, as its own listener reports it. */
import { on } from '../core/events.js';
import { ago, bytes, cause, count, digits, rate, short, span } from '../core/format.js';
import { html, useEffect } from '../core/lib.js';
import { useNow, usePaged, useResource } from '../core/resource.js';
import { Chart, Legend } from '../parts/chart.js';
import { Badge, Banner, Page } from '../parts/page.js';
import { Code } from '../parts/payload.js';
import { Empty, Failed, Shown } from '../parts/states.js';
import { Pager } from '../parts/table.js';

const SILENT_MS = 60_000;

export function Spark() {
  const page = usePaged('/spark', {}, { everyMs: 5000, limit: 20 });
  useEffect(() => on('spark', page.reload), []);
  return html`<${Page} title="Spark" about="Streaming queries that read from this server: how fast, how far behind, how heavy.">
    ${page.error && html`<section class="card"><${Failed} error=${page.error} retry=${page.reload} /></section>`}
    ${!page.error && html`<${Shown} of=${page} isEmpty=${page.items.length === 0} empty=${html`<section class="card"><${None} /></section>`}>${() => html`
      ${page.items.map((query) => html`<${Query} key=${query.id ?? query.name} query=${query} />`)}<${Pager} of=${page} noun="queries" />`}<//>`}
  <//>`;
}

function None() {
  const controllers = useResource('/controllers');
  const brokers = useResource('/brokers');
  const server = addresses(controllers.data) || addresses(brokers.data) || 'HOST:PORT';
  return html`<${Empty} icon="spark" title="No Spark query has reported yet"><p>A session that reports its queries has their rate, batches and lag here. With LightMQ installed beside PySpark:</p>
    <div class="narrow-code"><${Code} text=${`from lightmq.spark import report_queries, session\n\nspark = session()\nreport_queries(spark, "${server}")   # before the queries start\nreadings = (spark.readStream.format("rocketmq")\n    .option("nameServer", "${server}")\n    .option("mqttFilter", "plant/#").load())`} /></div><//>`;
}

/** Where a query asks for the brokers: every address of a page of servers. @param {any} page */
const addresses = (page) => (page?.items ?? []).map((/** @type {any} */ one) => one.address).filter(Boolean).join(';');

/** @param {{ query: any }} props */
function Query({ query }) {
  const now = useNow(5000);
  const silent = query.updated_ms && now - query.updated_ms > SILENT_MS;
  const ended = query.status && query.status !== 'running';
  const [kind, word] = query.last_error ? ['bad', 'failed'] : ended ? ['', 'ended'] : silent ? ['warn', 'silent'] : ['good', 'running'];
  const history = Array.isArray(query.history) ? query.history : [];
  const times = history.map((/** @type {number[]} */ point) => point[0] / 1000);
  const of = (/** @type {number} */ place) => history.map((/** @type {number[]} */ point) => point[place] ?? null);
  return html`<section class="card" aria-label=${query.name ?? query.id}>
    <header><div class="row"><h2>${query.name || 'unnamed query'}</h2><${Badge} kind=${kind}>${word}<//></div><span class="small faint">batch ${count(query.batch)} · ${ago(query.updated_ms, now)}</span></header>
    <div class="body stack">
      ${query.last_error && html`<${Banner} kind="bad"><b>${cause(query.last_error)}</b>
        <details><summary class="small">Whole error</summary><pre class="small">${query.last_error}</pre></details><//>`}
      <dl class="figures">
        <${Figure} name="Rate" value=${rate(query.rows_per_s)} /><${Figure} name="Batch" value=${span(query.batch_ms)} />
        <${Figure} name="Behind" value=${query.lag_messages === 0 ? 'up to date' : `${short(query.lag_messages)} messages`} note=${query.lag_s ? span(query.lag_s * 1000) : ''} />
        <${Figure} name="State" value=${query.state_rows ? `${short(query.state_rows)} rows` : 'none'} note=${query.state_bytes ? bytes(query.state_bytes) : ''} />
      </dl>
      ${times.length > 1 && html`<div class="grid three">
        <${Small} title="Rows per second" times=${times} values=${of(1)} ink=${1} format=${short} />
        <${Small} title="Batch duration" times=${times} values=${of(2)} ink=${2} format=${(/** @type {number} */ value) => (value >= 1000 ? `${digits(value / 1000)} s` : `${digits(value)} ms`)} />
        <${Small} title="Messages behind" times=${times} values=${of(3)} ink=${3} format=${short} /></div>`}
      <p class="small faint mono">${query.id}</p>
    </div></section>`;
}

/** @param {{ name: string, value: string, note?: string }} props */
function Figure({ name, value, note }) {
  return html`<div><dt>${name}</dt><dd class="number">${value}${note && html` <span class="small faint">${note}</span>`}</dd></div>`;
}

/** @param {{ title: string, times: number[], values: (number | null)[], ink: number, format: (value: number) => string }} props */
function Small({ title, times, values, ink, format }) {
  const lines = [{ name: title, values, ink }];
  return html`<div class="small-chart"><${Legend} series=${lines} format=${format} /><${Chart} title=${title} times_s=${times} series=${lines} format=${format} height=${140} /></div>`;
}
