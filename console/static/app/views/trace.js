// @ts-check
/** Trace: one message from the device to Spark and back, as far as the server knows. */
import { bytes, clock, count, plural, span } from '../core/format.js';
import { html, useState } from '../core/lib.js';
import { adjust, link } from '../core/router.js';
import { useResource, useStored } from '../core/resource.js';
import { Field } from '../parts/field.js';
import { Icon } from '../parts/icon.js';
import { Banner, Card, Facts, Page } from '../parts/page.js';
import { Payload } from '../parts/payload.js';
import { Empty, Shown } from '../parts/states.js';

/** Icon of a place. @type {Record<string, string>} */
const ICONS = { device: 'clients', producer: 'send', log: 'message', queue: 'groups', session: 'clients', group: 'groups', spark: 'spark', delayed: 'delayed', retry: 'groups', 'dead letter': 'dead' };
/** What happened, by place and event. @type {Record<string, string>} */
const TITLES = {
  'device published': 'Published by a device', 'producer published': 'Published by a producer', 'delayed delivered': 'Delivered at its time',
  'log stored': 'Stored in the log', 'queue placed': 'Placed in a queue', 'session passed': 'A session has passed it',
  'session waits': 'Waits for a session', 'session others': 'More sessions', 'group passed': 'A group has passed it', 'group waits': 'Waits for a group',
  'spark passed': 'Read by a Spark query', 'spark waits': 'Waits for a Spark query', 'log sent again': 'Sent again',
  'group in flight': 'Being processed by a group', 'retry redelivered': 'Delivered again to a group', 'dead letter given up': 'Given up by a group', 'log caused by it': 'Caused another message', 'log answer': 'Answered',
};

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
  const found = useResource('/trace', query, 5000);
  const steps = found.data?.steps ?? [];
  return html`<${Shown} of=${found} isEmpty=${steps.length === 0} empty=${html`<section class="card"><${Empty} icon="search" title="No such message"><p>It may have been deleted with the oldest part of the log, or the id belongs to another server.</p><//></section>`}>${() => html`
    <div class="trace-split">
      <${Card} title=${plural(steps.length, 'step')} extra=${html`<span class="small faint number">${span(length(steps))} from first to last</span>`}><${Steps} steps=${steps} />
        ${found.data.complete === false && html`<${Banner}>Only part of the log was searched for what this message caused: there is more behind it.<//>`}<//>
      <${MessageCard} message=${found.data.message} />
    </div>`}<//>`;
}

/** @param {any[]} steps */
function length(steps) {
  const times = steps.map((step) => step.time_ms).filter(Boolean);
  return times.length > 1 ? Math.max(...times) - Math.min(...times) : 0;
}

/** @param {{ steps: any[] }} props */
function Steps({ steps }) {
  const first = steps.find((step) => step.time_ms)?.time_ms ?? 0;
  return html`<ol class="steps">${steps.map((step) => html`<li class=${step.where === 'dead letter' ? 'bad' : step.what === 'waits' || step.what === 'in flight' ? 'waiting' : ''}>
      <span class="node-mark"><${Icon} name=${ICONS[step.where] ?? 'message'} /></span>
      <div class="step"><div class="row between"><b>${TITLES[`${step.where} ${step.what}`] ?? `${step.where}: ${step.what}`}</b>
        ${step.time_ms ? html`<span class="mono small faint nowrap">${clock(step.time_ms, true)} <span class="delta">+${span(step.time_ms - first)}</span></span>` : ''}</div>
        ${step.detail && html`<div class="small mono quiet">${step.detail}</div>`}
        ${step.until_ms && html`<div class="small">${step.until_ms > Date.now() ? 'No other consumer of the group gets it' : 'It is given to the group again, since it was not acknowledged'} ${step.until_ms > Date.now() ? `until ${clock(step.until_ms, true)}` : `after ${clock(step.until_ms, true)}`}.</div>`}</div></li>`)}</ol>`;
}

/** @param {{ message: any }} props */
function MessageCard({ message }) {
  const stored = useStored(message.topic, message.position);
  const properties = Object.entries(message.properties ?? {});
  return html`<${Card} title="The message"><div class="stack">
    <${Facts} of=${[['Topic', html`<a class="mono" href=${link('topics', { topic: message.topic })}>${message.topic}</a>`], ['Queue', html`<span class="mono">${message.queue}</span>`], ['Offset', count(message.offset)],
      ['Position', count(message.position)], ['Size', bytes(message.bytes)]]} />
    ${stored.message && html`<${Payload} text=${stored.message.payload} encoding=${stored.message.encoding} />`}
    ${stored.error?.status === 403 && html`<${Banner}>Your rights do not include the body of this message.<//>`}
    ${properties.length > 0 && html`<details><summary class="quiet small">${plural(properties.length, 'property', 'properties')}</summary>
      <${Facts} of=${properties.map(([name, value]) => [html`<span class="mono">${name}</span>`, html`<span class="mono">${value}</span>`])} /></details>`}
  </div><//>`;
}
