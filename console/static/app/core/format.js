// @ts-check
/** Numbers, sizes and times as people read them. Pure functions; a missing value is a dash, never `NaN`. */

export const DASH = '–';
const GROUPED = new Intl.NumberFormat('en-GB', { maximumFractionDigits: 0 });

/** @param {unknown} value @returns {value is number} */
export const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);

/** @param {unknown} value */
export const count = (value) => (isNumber(value) ? GROUPED.format(value) : DASH);

/**
 * A figure for a tile: at most four digits, with the prefix apart.
 * @param {unknown} value
 * @returns {[string, string]}
 */
export function scaled(value) {
  if (!isNumber(value)) return [DASH, ''];
  const size = Math.abs(value);
  for (const [limit, prefix] of /** @type {[number, string][]} */ ([[1e9, 'G'], [1e6, 'M'], [1e4, 'k']])) {
    if (size >= limit) return [digits(value / (limit === 1e4 ? 1e3 : limit)), prefix];
  }
  return [size >= 1000 ? GROUPED.format(value) : digits(value), ''];
}

/** Three figures that matter. @param {unknown} value */
export function digits(value) {
  if (!isNumber(value)) return DASH;
  const size = Math.abs(value);
  if (size >= 1000) return GROUPED.format(value);
  if (size === 0) return '0';
  const places = size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.01 ? 2 : 4;
  return String(Number(value.toFixed(places)));
}

/** @param {unknown} value @returns {[string, string]} */
export function bytesScaled(value) {
  if (!isNumber(value)) return [DASH, ''];
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return [digits(size), units[unit]];
}

/** @param {unknown} value */
export const bytes = (value) => bytesScaled(value).join(' ').trim();

/** @param {unknown} value */
export const short = (value) => scaled(value).join(' ').trim();

/** @param {unknown} value */
export const rate = (value) => (isNumber(value) ? `${short(value)}/s` : DASH);

/** A length of time in its two largest units. @param {unknown} ms */
export function span(ms) {
  if (!isNumber(ms)) return DASH;
  if (ms < 1000) return `${digits(ms)} ms`;
  if (ms < 60_000) return `${digits(ms / 1000)} s`;
  const seconds = Math.floor(ms / 1000);
  /** @type {[number, string][]} */
  const units = [[86_400, 'd'], [3_600, 'h'], [60, 'min'], [1, 's']];
  const first = units.findIndex(([size]) => seconds >= size);
  const [size, name] = units[first];
  const rest = units[first + 1];
  const more = rest ? Math.floor((seconds % size) / rest[0]) : 0;
  return `${Math.floor(seconds / size)} ${name}${more ? ` ${more} ${rest[1]}` : ''}`;
}

/** @param {unknown} time_ms @param {number} [now_ms] */
export function ago(time_ms, now_ms = Date.now()) {
  if (!isNumber(time_ms) || time_ms <= 0) return DASH;
  const seconds = Math.round((now_ms - time_ms) / 1000);
  if (Math.abs(seconds) < 2) return 'now';
  if (seconds < 0) return `in ${span(-seconds * 1000)}`;
  // Whoever reads of minutes does not wait for the seconds.
  return `${span((seconds < 60 ? seconds : seconds - (seconds % 60)) * 1000)} ago`;
}

/** @param {unknown} time_ms */
export function moment(time_ms) {
  if (!isNumber(time_ms) || time_ms <= 0) return DASH;
  const when = new Date(time_ms);
  const day = when.toDateString() === new Date().toDateString() ? '' : `${date(when)} `;
  return `${day}${clock(time_ms)}`;
}

/** @param {Date} when */
const date = (when) => `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())}`;
/** @param {number} value */
const two = (value) => String(value).padStart(2, '0');

/** Time of day to the millisecond where `fine`. @param {number} time_ms @param {boolean} [fine] */
export function clock(time_ms, fine = false) {
  const when = new Date(time_ms);
  const whole = `${two(when.getHours())}:${two(when.getMinutes())}:${two(when.getSeconds())}`;
  return fine ? `${whole}.${String(when.getMilliseconds()).padStart(3, '0')}` : whole;
}

/** @param {number} number @param {string} one @param {string} [many] */
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/**
 * What failed in one line: of a Python traceback the line that names the exception, else the first line.
 * @param {string} text
 */
export function cause(text) {
  const lines = text.split('\n').map((line) => line.trim()).filter(Boolean);
  const raised = lines.filter((line) => /^[A-Za-z_][\w.]*(Error|Exception|[a-z]): /.test(line));
  return (text.includes('Traceback (most recent call last):') && raised.at(-1)) || lines[0] || text;
}
