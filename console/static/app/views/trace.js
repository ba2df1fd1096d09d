// @ts-check
/** Trace: one message from the device to Spark and back, as far as the server knows. */
import { clock, moment, plural, span } from '../core/format.js';
import { html, useState } from '../core/lib.js';
import { adjust, link } from '../core/router.js';
import { useResource } from '../core/resource.js';
import { Field } from '../parts/field.js';
import { Icon } from '../parts/icon.js';
import { Banner, Card, Facts, Page } from '../parts/page.js';
import { Payload } from '../parts/payload.js';
import { Empty, Shown } from '../parts/states.js';

/** Icon for a place, by a word in its name. @type {[RegExp, string][]} */
const ICONS = [[/device|client|publish/i, 'clients'], [/proxy/i, 'broker'], [/spark/i, 'spark'], [/timer|delay/i, 'delayed'], [/dead|dlq/i, 'dead'], [/group|consumer|session|queue/i, 'groups'], [/command|caus/i, 'send'], [/log|record|broker|store/i, 'message']];

/** @param {{ route: import('../core/router.js').Route }} props */
export function Trace({ route }) {
  const { message_id = '', topic = '', offset = '' } = route.params;
  const [id, setId] = useState(message_id);
  const [where, setWhere] = useState(topic);
  const [at, setAt] = useState(offset);
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    adjust(id ? { message_id: id.trim(), topic: '', offset: '' } : { message_id: '', topic: where.trim(), offset: at });
  };
  const asked = Boolean(message_id || (topic && offset !== ''));
  return html`<${Page} title="Trace" about="Follow one message: where it is in the log, who has read it, who still waits, and what it caused.">
    <section class="card" aria-label="Which message"><form class="toolbar trace-form" onSubmit=${submit}>
      <${Field} label="Message id" value=${id} onInput=${setId} mono placeholder="from a live tail or an acknowledgement" />
      <span class="or faint small">or</span>
      <${Field} label="Topic" value=${where} onInput=${setWhere} mono />
      <${Field} label="Offset" value=${at} onInput=${setAt} type="number" min=${0} />
      <button type="submit" class="button primary" disabled=${!id.trim() && !(where.trim() && at !== '')}><${Icon} name="trace" />Follow</button></form></section>
    ${asked ? html`<${Path} key=${`${message_id}${topic}${offset}`} query=${message_id ? { message_id } : { topic, offset }} />`
      : html`<section class="card"><${Empty} icon="trace" title="Which message?"><p>Open a message in <a href="#/topics">a live tail</a> and choose “Trace this message”, or write its id above.</p><//></section>`}
  <//>`;
}

/** @param {{ query: Record<string, string> }} props */
function Path({ query }) {
  const found = useResource('/trace', query, 3000);
  const steps = found.data?.steps ?? found.data?.items ?? [];
  return html`<${Shown} of=${found} isEmpty=${steps.length === 0} empty=${html`<section class="card"><${Empty} icon="search" title="No such message"><p>It may have been deleted with the oldest part of the log, or the id belongs to another server.</p><//></section>`}>${() => html`
    <div class="trace-split">
      <${Card} title=${plural(steps.length, 'step')} extra=${html`<span class="small faint number">${span(length(steps))} from first to last</span>`}><${Steps} steps=${steps} /><//>
      ${found.data.message && html`<${MessageCard} message=${found.data.message} />`}
    </div>`}<//>`;
}

/** @param {any[]} steps */
function length(steps) {
  const times = steps.map((step) => step.time_ms).filter((time) => typeof time === 'number' && time > 0);
  return times.length > 1 ? Math.max(...times) - Math.min(...times) : 0;
}

/** @param {{ steps: any[] }} props */
function Steps({ steps }) {
  const first = steps.find((step) => step.time_ms)?.time_ms ?? 0;
  return html`<ol class="steps">${steps.map((step) => {
    const waiting = step.waiting || /wait|pending|not yet/i.test(step.what);
    const bad = /dead|fail|refus|error|dropp/i.test(`${step.where} ${step.what}`);
    return html`<li class=${bad ? 'bad' : waiting ? 'waiting' : ''}>
      <span class="node-mark"><${Icon} name=${ICONS.find(([shape]) => shape.test(step.where))?.[1] ?? 'message'} /></span>
      <div class="step"><div class="row between"><b>${step.what}</b><span class="mono small faint nowrap">${step.time_ms ? html`${clock(step.time_ms, true)} <span class="delta">+${span(step.time_ms - first)}</span>` : ''}</span></div>
        <div class="small quiet">${step.where}</div><${Detail} of=${step.detail} /></div></li>`;
  })}</ol>`;
}

/** @param {{ of: any }} props */
function Detail({ of }) {
  if (!of) return null;
  if (typeof of !== 'object') return html`<div class="small mono quiet">${String(of)}</div>`;
  const entries = Object.entries(of).filter(([, value]) => value !== null && value !== '').slice(0, 12);
  return html`<div class="small"><${Facts} of=${entries.map(([name, value]) => /** @type {[any, any]} */ ([name.replaceAll('_', ' '), html`<span class="mono">${name.endsWith('_ms') && Number(value) > 1e12 ? moment(value) : typeof value === 'object' ? JSON.stringify(value) : String(value)}</span>`]))} /></div>`;
}

/** @param {{ message: any }} props */
function MessageCard({ message }) {
  return html`<${Card} title="The message"><div class="stack">
    <${Facts} of=${[['Topic', html`<a class="mono" href=${link('topics', { topic: message.topic })}>${message.topic}</a>`], ['Time', moment(message.time_ms)], ['Id', html`<span class="mono">${message.message_id ?? '–'}</span>`]]} />
    ${message.payload !== undefined && message.payload !== null ? html`<${Payload} text=${message.payload} encoding=${message.encoding} />` : html`<${Banner}>Your rights do not include the body of this message.<//>`}
  </div><//>`;
}
