// @ts-check
/**
 * Live values: the latest numbers of every topic below a filter, as tiles; messages without numbers as a list. Where a
 * pipeline publishes results too, the tiles show its windows and events, and the figures above them its round trip.
 */
import { ago, bytesScaled, clock, count, digits, plural, scaled, short, span } from '../core/format.js';
import { html, useEffect, useMemo, useRef, useState } from '../core/lib.js';
import { useLive } from '../core/live.js';
import { Readings, unitOf } from '../core/readings.js';
import { Places, Results, median } from '../core/results.js';
import { adjust, link } from '../core/router.js';
import { useSettled } from '../core/resource.js';
import { Course } from '../parts/course.js';
import { Icon } from '../parts/icon.js';
import { Badge, Banner, Page } from '../parts/page.js';
import { Empty, Failed, Loading } from '../parts/states.js';
import { Sparkline } from '../parts/tile.js';
import { Field } from '../parts/field.js';
import { Problem } from '../core/api.js';

const TILES_MAX = 60;
/** So long a tile stands out after an event. */
const FRESH_MS = 8000;

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
  const results = useMemo(() => new Results(), [filter]);
  const places = useMemo(() => new Places(readings.topics), [filter]);
  const stopped = useRef(false);
  stopped.current = paused;
  const [shown, setShown] = useState(TILES_MAX);
  const live = useLive(filter, { history: 20, keep: 1, each(message) {
    if (stopped.current || results.take(message) || readings.take(message)) return;
    results.happened(message);
  } });
  if (live.state === 'refused') return html`<section class="card"><${Failed} error=${new Problem(403, 'Not allowed', live.detail, '')} /></section>`;
  if (live.received === 0) return html`<section class="card"><${Waiting} state=${live.state} filter=${filter} /></section>`;
  const tiles = joined(readings, results, places);
  const common = prefix(tiles.map((tile) => tile.topic));
  return html`
    <p class="row small quiet"><${Pulse} state=${live.state} paused=${paused} /><span class="number">${plural(readings.topics.size, 'topic')} with numbers · ${plural(live.received, 'message')} received</span>
      ${common && html`<span>below <code>${common}</code></span>`}
      ${live.dropped > 0 && html`<${Badge} kind="warn">${count(live.dropped)} left out: faster than this page reads<//>`}</p>
    ${readings.beyond.size > 0 && html`<${Banner} kind="warn">More topics than a page can show. Narrow the filter to see the other ${count(readings.beyond.size)}.<//>`}
    ${(results.total.windows > 0 || results.total.answers > 0) && html`<${Flow} readings=${readings} results=${results} />`}
    <div class=${results.events.length ? 'live-split' : ''}>
      <div class="stack">
        ${tiles.length > 0 && html`<div class="tiles live-tiles">${tiles.slice(0, shown).map((tile) => html`<${ReadingTile} key=${tile.topic} tile=${tile} common=${common} />`)}</div>`}
        ${tiles.length > shown && html`<div class="row"><button type="button" class="button" onClick=${() => setShown(shown + TILES_MAX)}>Show more of ${count(tiles.length)} topics</button></div>`}
        ${results.total.windows > 0 && html`<${Key} hasEvents=${tiles.some((tile) => tile.events.length > 0)} />`}
      </div>
      ${results.events.length > 0 && html`<${Happenings} results=${results} readings=${readings} places=${places} />`}
    </div>`;
}

/** @typedef {{ topic: string, reading: import('../core/readings.js').Reading | null, windows: import('../core/results.js').Windows | null, events: import('../core/results.js').Happening[] }} Joined */

/**
 * Readings with what a pipeline says about them; windows of a sensor that is not shown stand for themselves.
 * @param {Readings} readings @param {Results} results @param {Places} places @returns {Joined[]}
 */
export function joined(readings, results, places) {
  /** @type {Map<string, Joined>} */
  const tiles = new Map();
  for (const reading of readings.topics.values()) tiles.set(reading.topic, { topic: reading.topic, reading, windows: null, events: [] });
  for (const windows of results.windows.values()) {
    const tile = tiles.get(places.of(windows.sensor, windows.topic));
    if (tile && !tile.windows) tile.windows = windows;
    else tiles.set(windows.topic, { topic: windows.topic, reading: null, windows, events: [] });
  }
  for (const event of results.events) {
    if (event.sensor && event.value !== null) tiles.get(places.of(event.sensor, event.topic))?.events.push(event);
  }
  return [...tiles.values()].sort((one, other) => one.topic.localeCompare(other.topic, 'en', { numeric: true }));
}

/** The way of the messages, in figures. @param {{ readings: Readings, results: Results }} props */
function Flow({ readings, results }) {
  const { total, trips } = results;
  const newest_ms = Math.max(0, ...[...results.windows.values()].map((windows) => windows.last.to_ms));
  const trip = median(trips);
  return html`<section class="card" aria-label="From reading to command"><dl class="flow">
    <${Step} icon="live" name="Readings" value=${plural(readings.topics.size, 'sensor')} note="over MQTT, as they arrive" />
    ${total.windows > 0 && html`<${Step} icon="spark" name="Windows" value=${count(total.windows)} note=${`newest ends ${clock(newest_ms)}`} />`}
    ${total.events > 0 && html`<${Step} icon="warn" name="Events" value=${count(total.events)} note=${`newest ${ago(results.events[0].time_ms)}`} />`}
    ${total.answers > 0 && html`<${Step} icon="check" name="Answered" value=${count(total.answers)} note="commands that a device has obeyed" />`}
    ${trip !== null && html`<${Step} icon="swap" name="Round trip" value=${span(trip)} note=${`reading to answer, median of ${trips.length}`} values=${trips} />`}
  </dl></section>`;
}

/** @param {{ icon: string, name: string, value: string, note: string, values?: number[] }} props */
function Step({ icon, name, value, note, values }) {
  return html`<div><dt><${Icon} name=${icon} />${name}</dt><dd class="number">${value}</dd><dd class="small faint">${note}</dd>${values && values.length > 2 && html`<dd class="trend"><${Sparkline} values=${values} /></dd>`}</div>`;
}

/** What the marks of the tiles mean. @param {{ hasEvents: boolean }} props */
function Key({ hasEvents }) {
  return html`<p class="small quiet row course-key"><span class="row gap-small"><span class="swatch line"></span>readings</span>
    <span class="row gap-small"><span class="swatch band"></span>window: lowest to highest, with the mean</span>
    ${hasEvents && html`<span class="row gap-small"><span class="swatch spot"></span>event</span>`}</p>`;
}

/** @param {{ results: Results, readings: Readings, places: Places }} props */
function Happenings({ results, readings, places }) {
  return html`<section class="card" aria-label="Events"><header><h2>Events</h2><span class="small faint">${plural(results.total.events, 'message')}, the newest first</span></header>
    <ul class="events" tabindex="0" aria-label="Newest first">${results.events.map((event) => html`<${Happened} key=${event.key} event=${event} about=${event.sensor ? readings.topics.get(places.of(event.sensor, event.topic)) : undefined} />`)}</ul></section>`;
}

/** @param {{ event: import('../core/results.js').Happening, about?: import('../core/readings.js').Reading }} props */
function Happened({ event, about }) {
  const unit = about?.fields.get('value')?.unit ?? unitOf(event.sensor);
  const trip = event.answered_ms === null ? null : Math.max(0, event.answered_ms - event.since_ms);
  const [kind, title] = event.deviation !== null ? ['warn', event.sensor || event.topic] : ['', event.sensor || event.topic];
  return html`<li><div class="row between"><a class="mono clip" href=${link('topics', { topic: event.topic })} title=${event.topic}>${title}</a><span class="faint small number">${clock(event.time_ms)}</span></div>
    ${event.value !== null && event.sensor
      ? html`<div class="row gap-small small"><span class=${kind === 'warn' ? 'warned number' : 'number'}>${amount(event.value, unit)}</span>${event.deviation !== null && html`<span class="quiet">${digits(event.deviation)} standard deviations off its mean</span>`}</div>`
      : html`<div class="small quiet two-lines">${event.text}</div>`}
    ${trip !== null && html`<div class="row gap-small small"><${Badge} kind="good">answered<//><span class="quiet number">${span(trip)} after the reading</span></div>`}</li>`;
}

/** @param {number} value @param {string} unit */
function amount(value, unit) {
  const [text, scale] = unit.startsWith('B') ? bytesScaled(value) : Math.abs(value) >= 1e6 ? scaled(value) : [digits(value), ''];
  return `${text} ${unit.startsWith('B') ? `${scale}${unit.slice(1)}` : `${scale}${unit}`}`.trim();
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

/** @param {{ tile: Joined, common: string }} props */
function ReadingTile({ tile, common }) {
  const [chosen, setChosen] = useState('');
  const levels = (common ? tile.topic.slice(common.length + 1) : tile.topic).split('/');
  const name = levels.pop() ?? '';
  const fields = tile.reading ? [...tile.reading.fields.values()] : [];
  const main = tile.reading?.fields.get(chosen) ?? tile.reading?.fields.get('value') ?? fields[0] ?? null;
  // Windows and events are about the reading's value, not about another number beside it.
  const isValue = !main || !chosen || chosen === 'value' || fields.length === 1;
  const spans = isValue && tile.windows ? tile.windows.spans : [];
  const marks = isValue ? tile.events.flatMap((event) => (event.value === null ? [] : [{ at_ms: event.at_ms, value: event.value }])) : [];
  const unit = main ? main.unit : unitOf(tile.windows?.sensor ?? '');
  const last = main ? main.last : tile.windows?.last.mean ?? 0;
  const newest = tile.events[0];
  return html`<article class=${`card tile ${newest && Date.now() - newest.time_ms < FRESH_MS ? 'warned-tile' : ''}`} aria-label=${`${tile.topic}: ${digits(last)} ${unit}`}>
    <a class="name clip" href=${link('topics', { topic: tile.topic })} title=${tile.topic}>${name}</a>
    ${levels.length > 0 && html`<div class="above clip">${levels.join(' / ')}</div>`}
    <div class="value">${figure(last, unit)}</div>
    <div class="note number">${noteOf(tile, main, spans.length > 0)}</div>
    ${fields.length > 1 && html`<div class="row chips">${fields.map((field) => html`<button type="button" class=${`chip ${field === main ? 'on' : ''}`} aria-pressed=${field === main} onClick=${() => setChosen(field.name)}>${field.name}</button>`)}</div>`}
    <${Course} times_ms=${main?.times_ms ?? []} values=${main?.values ?? []} spans=${spans} marks=${marks} />
  </article>`;
}

/** @param {Joined} tile @param {import('../core/readings.js').Field | null} main @param {boolean} hasWindow */
function noteOf(tile, main, hasWindow) {
  const span = tile.windows?.last;
  const unit = main ? main.unit : unitOf(tile.windows?.sensor ?? '');
  if (hasWindow && span) return `mean ${amount(span.mean, unit)}, ${amount(span.low, unit)} to ${amount(span.high, unit)}`;
  if (!main || !tile.reading) return ' ';
  return `${main.values.length > 1 ? `${short(Math.min(...main.values))} to ${short(Math.max(...main.values))}` : ' '} · ${ago(tile.reading.time_ms)}`;
}

/** @param {number} value @param {string} unit */
function figure(value, unit) {
  const size = unit.startsWith('B');
  const [text, prefix] = size ? bytesScaled(value) : Math.abs(value) >= 1e6 ? scaled(value) : [digits(value), ''];
  return html`${text}<span class="unit">${size ? `${prefix}${unit.slice(1)}` : `${prefix}${unit}`}</span>`;
}
