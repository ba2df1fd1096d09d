// @ts-check
/**
 * Readings in messages: the numbers that a JSON payload carries, with their units, and their recent course by topic.
 * Pure. Invariants: at most `TOPICS_MAX` topics with `FIELDS_MAX` numbers each are kept; what lies beyond is counted.
 */

export const TOPICS_MAX = 500;
export const FIELDS_MAX = 8;
export const POINTS_MAX = 180;

/** Fields that are numbers without being readings. */
const NOT_READINGS = /^(t|ts|time|timestamp|.*time_?(ms|s|us|ns)?|.*_at(_ms)?|(sent|born|created|stored|received|start|end)_(ms|s|us|ns)|seq|sequence|counter|id|.*_id|version|qos|lat|lon|lng|latitude|longitude)$/i;
/** @type {[RegExp, string][]} */
const UNITS = [
  [/bytes_per_s(econd)?$/i, 'B/s'], [/per_s(econd)?$/i, '/s'], [/(percent|pct)$/i, '%'], [/(humidity)$/i, '%'],
  [/(celsius|_c|temp)$|(^|_)temperature(_|$)/i, '°C'], [/(fahrenheit|_f)$/i, '°F'], [/(_ms|milliseconds)$/i, 'ms'], [/(_mm_s)$/i, 'mm/s'], [/(_m_s)$/i, 'm/s'], [/(_s|seconds)$/i, 's'],
  [/_mb$/i, 'MB'], [/(_kwh)$/i, 'kWh'], [/(_kw)$/i, 'kW'], [/(_w|watts)$/i, 'W'], [/(_v|volts)$/i, 'V'], [/(_a|amperes)$/i, 'A'], [/(_hz|hertz)$/i, 'Hz'],
  [/rpm$/i, 'rpm'], [/(_kmh)$/i, 'km/h'], [/(_bar)$/i, 'bar'], [/(_hpa)$/i, 'hPa'], [/(_pa)$/i, 'Pa'], [/(_mm)$/i, 'mm'],
  [/(_m)$/i, 'm'], [/(_km)$/i, 'km'], [/(_l)$/i, 'l'], [/(_ppm|co2)$/i, 'ppm'], [/(_lux)$/i, 'lx'], [/(_db)$/i, 'dB'], [/bytes$/i, 'B'],
];

/** @param {string} name */
export function unitOf(name) {
  return UNITS.find(([shape]) => shape.test(name))?.[1] ?? '';
}

/**
 * The numbers of a payload by name; a payload that is a number alone is called `value`. Empty when it carries none.
 * @param {string} text
 * @returns {{ numbers: [string, number][], unit: string, at_ms?: number }} `at_ms`: the time that the payload names.
 */
export function numbersIn(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    return { numbers: [], unit: '' };
  }
  if (typeof data === 'number') return { numbers: [['value', data]], unit: '' };
  if (!data || typeof data !== 'object') return { numbers: [], unit: '' };
  /** @type {[string, number][]} */
  const numbers = [];
  collect(data, '', 0, numbers);
  const at_ms = typeof data.time_ms === 'number' ? { at_ms: data.time_ms } : {};
  return { numbers, unit: typeof data.unit === 'string' ? data.unit.slice(0, 12) : '', ...at_ms };
}

/** @param {any} data @param {string} before @param {number} depth @param {[string, number][]} into */
function collect(data, before, depth, into) {
  for (const [name, value] of Object.entries(data)) {
    if (into.length >= FIELDS_MAX) return;
    if (typeof value === 'number' && Number.isFinite(value) && !NOT_READINGS.test(name)) into.push([before + name, value]);
    else if (value && typeof value === 'object' && !Array.isArray(value) && depth < 2) collect(value, `${before}${name}.`, depth + 1, into);
  }
}

/** `times_ms` are those of `values`: when each was measured. @typedef {{ name: string, unit: string, values: number[], times_ms: number[], last: number }} Field */
/** @typedef {{ topic: string, fields: Map<string, Field>, time_ms: number, count: number }} Reading */

export class Readings {
  /** @type {Map<string, Reading>} */
  topics = new Map();
  beyond = new Set();

  /**
   * Take a message; whether it carried a number.
   * @param {{ topic: string, payload: string, encoding: string, time_ms: number }} message
   */
  take(message) {
    if (message.encoding === 'base64') return false;
    const { numbers, unit, at_ms } = numbersIn(message.payload);
    if (numbers.length === 0) return false;
    let reading = this.topics.get(message.topic);
    if (!reading) {
      if (this.topics.size >= TOPICS_MAX) {
        if (this.beyond.size < 10_000) this.beyond.add(message.topic);
        return true;
      }
      reading = { topic: message.topic, fields: new Map(), time_ms: 0, count: 0 };
      this.topics.set(message.topic, reading);
    }
    reading.time_ms = message.time_ms;
    reading.count += 1;
    for (const [name, value] of numbers) this.#point(reading, { name, value, unit, at_ms: at_ms ?? message.time_ms });
    return true;
  }

  /** @param {Reading} reading @param {{ name: string, value: number, unit: string, at_ms: number }} point */
  #point(reading, { name, value, unit, at_ms }) {
    let field = reading.fields.get(name);
    if (!field) {
      if (reading.fields.size >= FIELDS_MAX) return;
      const last = reading.topic.split('/').pop() ?? '';
      field = { name, unit: unit || unitOf(name) || (name === 'value' ? unitOf(last) : ''), values: [], times_ms: [], last: value };
      reading.fields.set(name, field);
    }
    field.last = value;
    field.values.push(value);
    field.times_ms.push(at_ms);
    if (field.values.length <= POINTS_MAX) return;
    field.values.shift();
    field.times_ms.shift();
  }
}
