// @ts-check
/**
 * Results in messages: what a pipeline says about readings. Three shapes of JSON are known, whatever topic they are on:
 *
 *   window   a mean with a lowest and a highest value, and the time it covers
 *   event    something that happened, often about a `sensor`, with the `value` that caused it; commands are events
 *   answer   a message whose `command` (or `answers`, `in_reply_to`) is the `id` of an event
 *
 * Pure. Invariants: the newest `EVENTS_MAX` events and `WINDOWS_MAX` windows of each topic are kept, of at most
 * `TOPICS_MAX` topics; totals count all.
 */
import { isNumber } from './format.js';

export const WINDOWS_MAX = 40;
export const EVENTS_MAX = 60;
export const TOPICS_MAX = 500;
const ANSWERS_MAX = 500;
const TRIPS_MAX = 20;

/** Topics whose messages are read one by one, whatever numbers they carry. */
const EVENTS = /(^|\/)(commands?|alerts?|events?|alarms?|anomal(y|ies)|logs?)$/i;

/** @typedef {{ from_ms: number, to_ms: number, mean: number, low: number, high: number, count: number | null }} Span */
/** @typedef {{ topic: string, sensor: string, spans: Span[], last: Span }} Windows */
/**
 * @typedef {{ key: number, topic: string, kind: string, id: string, sensor: string, value: number | null, at_ms: number,
 *   deviation: number | null, text: string, time_ms: number, since_ms: number, answered_ms: number | null }} Happening
 */
/** @typedef {{ topic: string, payload: string, encoding: string, time_ms: number, key: number }} Message */

/** @param {Record<string, any>} data @param {string[]} names @returns {number | null} */
function first(data, names) {
  for (const name of names) if (isNumber(data[name])) return data[name];
  return null;
}

/** Time of a field that is a number of milliseconds or a text such as Spark writes. @param {Record<string, any>} data @param {string[]} names */
function moment(data, names) {
  for (const name of names) {
    if (isNumber(data[name])) return data[name];
    const parsed = typeof data[name] === 'string' ? Date.parse(data[name]) : NaN;
    if (Number.isFinite(parsed)) return parsed;
  }
  return null;
}

/**
 * The window that a message is, if it is one.
 * @param {any} data
 * @param {number} time_ms When it arrived: its end, where it names none.
 * @returns {Span | null}
 */
export function windowIn(data, time_ms) {
  if (!data || typeof data !== 'object') return null;
  const mean = first(data, ['mean', 'avg', 'average']);
  const low = first(data, ['low', 'min', 'minimum']);
  const high = first(data, ['high', 'max', 'maximum']);
  if (mean === null || low === null || high === null) return null;
  const to_ms = moment(data, ['end_ms', 'end', 'window_end', 'time_ms']) ?? time_ms;
  const from_ms = moment(data, ['start_ms', 'start', 'window_start']) ?? to_ms;
  return { from_ms, to_ms, mean, low, high, count: first(data, ['readings', 'count', 'rows']) };
}

/** The topic of a reading that a result is about: its last level is the sensor, and no other shares more levels. @param {Iterable<string>} topics @param {string} sensor @param {string} about */
export function nearest(topics, sensor, about) {
  const levels = new Set(about.split('/'));
  let best = '';
  let most = 0;
  for (const topic of topics) {
    const own = topic.split('/');
    if (own.pop() !== sensor) continue;
    const shared = own.filter((level) => levels.has(level)).length + 1;
    if (shared === most) best = '';
    else if (shared > most) [best, most] = [topic, shared];
  }
  return best;
}

/** `nearest` for many results, found once for as long as the topics stay the same. */
export class Places {
  /** @type {Map<string, string>} */
  #found = new Map();
  #size = 0;

  /** @param {Map<string, any>} topics */
  constructor(topics) {
    this.topics = topics;
  }

  /** @param {string} sensor @param {string} about */
  of(sensor, about) {
    if (this.#size !== this.topics.size || this.#found.size > 2 * TOPICS_MAX) this.#found.clear();
    this.#size = this.topics.size;
    const key = `${sensor} ${about}`;
    const known = this.#found.get(key);
    if (known !== undefined) return known;
    const found = nearest(this.topics.keys(), sensor, about);
    this.#found.set(key, found);
    return found;
  }
}

/** The middle of some figures. @param {number[]} values */
export function median(values) {
  if (values.length === 0) return null;
  const ordered = [...values].sort((one, other) => one - other);
  return ordered[Math.floor(ordered.length / 2)];
}

export class Results {
  /** @type {Map<string, Windows>} */
  windows = new Map();
  /** The newest first. @type {Happening[]} */
  events = [];
  total = { windows: 0, events: 0, answers: 0 };
  /** The newest round trips, from what caused an event to its answer, in ms. @type {number[]} */
  trips = [];
  /** Answers that came before their event, as they may on another topic. @type {Map<string, number>} */
  #early = new Map();

  /**
   * Take a message: `true` when nothing else needs to look at it.
   * @param {Message} message
   */
  take(message) {
    const data = message.encoding === 'base64' ? null : parsed(message.payload);
    if (data && typeof data === 'object') {
      const of = data.command ?? data.answers ?? data.in_reply_to;
      if (typeof of === 'string' && of) this.#answer(of, message.time_ms);
      const span = windowIn(data, message.time_ms);
      if (span) return this.#window(message.topic, data, span);
    }
    if (EVENTS.test(message.topic)) return this.happened(message, data);
    return false;
  }

  /** @param {string} topic @param {any} data @param {Span} span */
  #window(topic, data, span) {
    this.total.windows += 1;
    const known = this.windows.get(topic);
    if (known) {
      // A window may be said again, with more readings in it.
      if (known.last.from_ms === span.from_ms) known.spans.pop();
      known.spans.push(span);
      if (known.spans.length > WINDOWS_MAX) known.spans.shift();
      known.last = span;
    } else if (this.windows.size < TOPICS_MAX) {
      const sensor = typeof data.sensor === 'string' ? data.sensor : topic.split('/').pop() ?? '';
      this.windows.set(topic, { topic, sensor, spans: [span], last: span });
    }
    return true;
  }

  /**
   * Keep a message as an event: one on a topic of events, or one without numbers.
   * @param {Message} message
   * @param {any} [data]
   */
  happened(message, data = null) {
    const about = data && typeof data === 'object' ? data : {};
    const word = (/** @type {string[]} */ names) => names.map((name) => about[name]).find((one) => typeof one === 'string') ?? '';
    const id = word(['id']);
    /** @type {Happening} */
    const event = {
      key: message.key, topic: message.topic, kind: message.topic.split('/').pop() ?? '', id, sensor: word(['sensor']),
      value: first(about, ['value']), deviation: first(about, ['deviation']), at_ms: moment(about, ['time_ms']) ?? message.time_ms,
      text: word(['text', 'message', 'reason', 'what']) || (message.encoding === 'base64' ? '(bytes)' : message.payload.slice(0, 400)),
      time_ms: message.time_ms, since_ms: moment(about, ['sent_ms']) ?? message.time_ms, answered_ms: null,
    };
    this.total.events += 1;
    this.events.unshift(event);
    if (this.events.length > EVENTS_MAX) this.events.length = EVENTS_MAX;
    const early = id ? this.#early.get(id) : undefined;
    if (early !== undefined) this.#answered(event, early);
    return true;
  }

  /** @param {string} id @param {number} time_ms */
  #answer(id, time_ms) {
    const event = this.events.find((one) => one.id === id);
    if (event) return this.#answered(event, time_ms);
    this.#early.set(id, time_ms);
    if (this.#early.size > ANSWERS_MAX) this.#early.delete(/** @type {string} */ (this.#early.keys().next().value));
  }

  /** @param {Happening} event @param {number} time_ms */
  #answered(event, time_ms) {
    this.#early.delete(event.id);
    if (event.answered_ms !== null) return;
    event.answered_ms = time_ms;
    this.total.answers += 1;
    this.trips.push(Math.max(0, time_ms - event.since_ms));
    if (this.trips.length > TRIPS_MAX) this.trips.shift();
  }
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
