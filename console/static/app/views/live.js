// @ts-check
/** Live values: the latest numbers of every topic below a filter, as tiles; messages without numbers as a list. */
import { ago, bytesScaled, clock, count, digits, plural, scaled } from '../core/format.js';
import { html, useEffect, useMemo, useRef, useState } from '../core/lib.js';
import { useLive } from '../core/live.js';
import { Readings } from '../core/readings.js';
import { adjust, link } from '../core/router.js';
import { useSettled } from '../core/resource.js';
import { Icon } from '../parts/icon.js';
import { Badge, Banner, Page } from '../parts/page.js';
import { Empty, Failed, Loading } from '../parts/states.js';
import { Sparkline } from '../parts/tile.js';
import { Field } from '../parts/field.js';
import { Problem } from '../core/api.js';

const TILES_MAX = 60;
const EVENTS_MAX = 40;

/** @param {{ route: import('../core/router.js').Route }} props */
export function Live({ route }) {
  const [filter, setFilter] = useState(route.params.filter ?? '#');
  const settled = useSettled(filter, 400).trim();
  useEffect(() => { if (route.params.filter && route.params.filter !== filter) setFilter(route.params.filter); }, [route.params.filter]);
  useEffect(() => adjust({ filter: settled }), [settled]);
  const [paused, setPaused] = useState(false);
  return html`<${Page} title="Live values" about="The latest numbers of every topic below a filter, as they arrive."
    actions=${html`<button type="button" class=${`button ${paused ? 'on' : ''}`} aria-pressed=${paused} onClick=${() => setPaused(!paused)}><${Icon} name=${paused ? 'play' : 'pause'} />${paused ? 'Go on' : 'Pause'}</button>`}>
    <div class="live-filter"><${Field} label="Topic filter" value=${filter} onInput=${setFilter} mono hint="+ stands for one level, # for all levels below" /></div>
    ${settled ? html`<${Board} key=${settled} filter=${settled} paused=${paused} />` : html`<section class="card"><${Empty} icon="live" title="Which topics?"><p>Write a filter above, for example <code>plant/+/temperature</code>.</p><//></section>`}
  <//>`;
}

/** @param {{ filter: string, paused: boolean }} props */
function Board({ filter, paused }) {
  const readings = useMemo(() => new Readings(), [filter]);
  const events = useRef(/** @type {any[]} */ ([]));
  const stopped = useRef(false);
  stopped.current = paused;
  const [shown, setShown] = useState(TILES_MAX);
  const live = useLive(filter, { history: 20, keep: 1, each(message) {
    if (stopped.current || readings.take(message)) return;
    events.current.unshift(message);
    if (events.current.length > EVENTS_MAX) events.current.length = EVENTS_MAX;
  } });
  if (live.state === 'refused') return html`<section class="card"><${Failed} error=${new Problem(403, 'Not allowed', live.detail, '')} /></section>`;
  const all = [...readings.topics.values()].sort((one, other) => one.topic.localeCompare(other.topic, 'en', { numeric: true }));
  const common = prefix(all.map((reading) => reading.topic));
  if (live.received === 0) return html`<section class="card"><${Waiting} state=${live.state} filter=${filter} /></section>`;
  return html`
    <p class="row small quiet"><${Pulse} state=${live.state} paused=${paused} /><span class="number">${plural(all.length, 'topic')} with numbers · ${plural(live.received, 'message')} received</span>
      ${common && html`<span>below <code>${common}</code></span>`}
      ${live.dropped > 0 && html`<${Badge} kind="warn">${count(live.dropped)} left out: faster than this page reads<//>`}</p>
    ${readings.beyond.size > 0 && html`<${Banner} kind="warn">More topics than a page can show. Narrow the filter to see the other ${count(readings.beyond.size)}.<//>`}
    <div class=${events.current.length ? 'live-split' : ''}>
      <div class="stack">
        ${all.length > 0 && html`<div class="tiles live-tiles">${all.slice(0, shown).map((reading) => html`<${ReadingTile} key=${reading.topic} reading=${reading} common=${common} at=${reading.count} />`)}</div>`}
        ${all.length > shown && html`<div class="row"><button type="button" class="button" onClick=${() => setShown(shown + TILES_MAX)}>Show more of ${count(all.length)} topics</button></div>`}
      </div>
      ${events.current.length > 0 && html`<section class="card" aria-label="Events"><header><h2>Events</h2><span class="small faint">and messages without numbers</span></header>
        <ul class="events" tabindex="0" aria-label="Newest first">${events.current.map((message) => html`<li key=${message.key}><div class="row between"><a class="mono clip" href=${link('topics', { topic: message.topic })}>${message.topic}</a><span class="faint small number">${clock(message.time_ms)}</span></div>
          <div class="mono small quiet two-lines">${message.encoding === 'base64' ? '(bytes)' : message.payload}</div></li>`)}</ul></section>`}
    </div>`;
}

/** @param {{ state: string, paused: boolean }} props */
function Pulse({ state, paused }) {
  const [kind, text] = paused ? ['', 'Paused'] : state === 'open' ? ['good beat', 'Live'] : ['warn', 'Connecting again…'];
  return html`<span class="row gap-small"><span class=${`dot ${kind}`}></span>${text}</span>`;
}

/** @param {{ state: string, filter: string }} props */
function Waiting({ state, filter }) {
  if (state === 'connecting') return html`<${Loading} />`;
  return html`<${Empty} icon="live" title="Waiting for the first message"><p>Nothing has arrived on <code>${filter}</code> yet. Values appear here the moment a device publishes.</p>
    <a class="button" href=${link('topics', { topic: filter.replace(/\/?[#+].*$/, ''), tab: 'publish' })}><${Icon} name="send" />Publish a message</a><//>`;
}

/** The levels that all topics share. @param {string[]} topics */
export function prefix(topics) {
  if (topics.length < 2) return '';
  const levels = topics.map((topic) => topic.split('/').slice(0, -1));
  const least = Math.min(...levels.map((one) => one.length));
  let same = 0;
  while (same < least && levels.every((one) => one[same] === levels[0][same])) same += 1;
  return levels[0].slice(0, same).join('/');
}

/** @param {{ reading: import('../core/readings.js').Reading, common: string, at: number }} props */
function ReadingTile({ reading, common }) {
  const [chosen, setChosen] = useState('');
  const fields = [...reading.fields.values()];
  const main = reading.fields.get(chosen) ?? reading.fields.get('value') ?? fields[0];
  const levels = (common ? reading.topic.slice(common.length + 1) : reading.topic).split('/');
  const name = levels.pop() ?? '';
  const least = Math.min(...main.values);
  const most = Math.max(...main.values);
  return html`<article class="card tile" aria-label=${`${reading.topic}: ${digits(main.last)} ${main.unit}`}>
    <a class="name clip" href=${link('topics', { topic: reading.topic })} title=${reading.topic}>${name}</a>
    <div class="above clip">${levels.join(' / ')}</div>
    <div class="value">${figure(main)}</div>
    <div class="note number">${main.values.length > 1 ? `${digits(least)} to ${digits(most)}` : ' '} · ${ago(reading.time_ms)}</div>
    ${fields.length > 1 && html`<div class="row chips">${fields.map((field) => html`<button type="button" class=${`chip ${field === main ? 'on' : ''}`} aria-pressed=${field === main} onClick=${() => setChosen(field.name)}>${field.name}</button>`)}</div>`}
    <${Sparkline} values=${main.values} zero=${false} />
  </article>`;
}

/** @param {import('../core/readings.js').Field} field */
function figure(field) {
  const size = field.unit.startsWith('B');
  const [text, prefix] = size ? bytesScaled(field.last) : Math.abs(field.last) >= 1e6 ? scaled(field.last) : [digits(field.last), ''];
  return html`${text}<span class="unit">${size ? `${prefix}${field.unit.slice(1)}` : `${prefix}${field.unit}`}</span>`;
}
