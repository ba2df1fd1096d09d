// @ts-check
/**
 * The server's events: figures once a second, alarms, roles, Spark queries, acts.
 * Invariants: one connection for the whole page, however many views watch; the figures of the last ten minutes stay
 * when views change, so charts do not start anew; after a gap the browser connects again by itself.
 */
import { address, get, resume, session } from './api.js';
import { signal } from './signal.js';

export const HISTORY_SECONDS = 600;
const RETRY_MS = 2000;
const REMEMBERED = ['messages_in_rate', 'messages_out_rate', 'bytes_in_rate', 'clients', 'lag_max'];

/** @typedef {Record<string, any>} Figures */

/** @typedef {'connecting' | 'open' | 'refused'} StreamState `refused`: who is signed in may not see the figures. */
export const stream = signal(/** @type {StreamState} */ ('connecting'));
export const figures = signal(/** @type {Figures | null} */ (null));
export const alarms = signal(/** @type {any[]} */ ([]));
/** Points of the last ten minutes, oldest first. @type {{ time_s: number, of: Figures }[]} */
export const past = [];

/** @type {EventSource | null} */
let source = null;
/** @type {Map<string, Set<(data: any) => void>>} */
const listeners = new Map();

/** @param {string} name @param {(data: any) => void} listener @returns {() => void} */
export function on(name, listener) {
  const known = listeners.get(name) ?? new Set();
  listeners.set(name, known);
  known.add(listener);
  return () => void known.delete(listener);
}

/** @param {string} name @param {string} text */
function deliver(name, text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    return;
  }
  if (name === 'history') recall(data.points ?? []);
  if (name === 'overview') keep(data);
  if (name === 'alarms') alarms.set(data.items ?? []);
  for (const listener of listeners.get(name) ?? []) listener(data);
}

/** @param {Figures} data */
export function keep(data) {
  const time_s = (data.time_ms ?? Date.now()) / 1000;
  if (time_s > (past[past.length - 1]?.time_s ?? 0)) past.push({ time_s, of: data });
  if (past.length > HISTORY_SECONDS) past.splice(0, past.length - HISTORY_SECONDS);
  if (Array.isArray(data.alarms)) alarms.set(data.alarms);
  figures.set(data);
}

/**
 * What the server remembers from before this page was opened; what the page has seen itself stays.
 * @param {number[][]} points Time in ms, then the figures of `REMEMBERED`.
 */
function recall(points) {
  const begin = past[0]?.time_s ?? Infinity;
  const older = points.filter(([time_ms]) => time_ms / 1000 < begin - 0.5)
    .map(([time_ms, ...values]) => ({ time_s: time_ms / 1000, of: Object.fromEntries(REMEMBERED.map((name, index) => [name, values[index]])) }));
  past.unshift(...older.slice(-HISTORY_SECONDS));
}

/** One figure over the past. @param {string} name @returns {(number | null)[]} */
export const series = (name) => past.map((point) => (typeof point.of[name] === 'number' ? point.of[name] : null));

export function open() {
  if (source) return;
  source = new EventSource(address('/events'));
  source.onopen = () => stream.set('open');
  source.onerror = () => {
    stream.set('connecting');
    if (source?.readyState === EventSource.CLOSED) void again();
  };
  for (const name of ['history', 'overview', 'alarms', 'roles', 'spark', 'audit']) {
    source.addEventListener(name, (event) => deliver(name, /** @type {MessageEvent} */ (event).data));
  }
}

/** A browser gives up on any answer but a stream: the session may be over, the server restarting, or the view refused. */
async function again() {
  source = null;
  await new Promise((done) => { setTimeout(done, RETRY_MS); });
  await resume();
  if (!session.get() || source) return;
  const refused = await get('/overview').then(() => false, (problem) => problem.status === 403);
  if (refused) stream.set('refused');
  else open();
}

export function close() {
  source?.close();
  source = null;
  stream.set('connecting');
  figures.set(null);
  alarms.set([]);
  past.length = 0;
}
