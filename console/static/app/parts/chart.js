// @ts-check
/**
 * A chart over time, drawn by uPlot on a canvas. The text beside it (the legend with the latest figures) says the same
 * to who cannot see it.
 */
import { html, uPlot, useEffect, useRef } from '../core/lib.js';
import { digits } from '../core/format.js';
import { colour, repaint } from '../core/theme.js';
import { useSignal } from '../core/signal.js';

/** @typedef {{ name: string, values: (number | null)[], ink?: number }} Series */

/**
 * @param {{ title: string, times_s: number[], series: Series[], format?: (value: number) => string, height?: number,
 *   area?: boolean, whole?: boolean }} props `whole`: the axis has whole numbers only, as of messages.
 */
export function Chart({ title, times_s, series, format = digits, height = 190, area = true, whole = false }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const painted = useSignal(repaint);
  const shape = `${series.map((one) => one.name).join('|')} ${height} ${painted}`;
  const data = [times_s, ...series.map((one) => one.values)];
  useEffect(() => {
    const place = box.current;
    if (!place) return undefined;
    const made = new uPlot(options(place.clientWidth, height, series, format, area, whole), /** @type {any} */ (data), place);
    plot.current = made;
    const watcher = new ResizeObserver(() => {
      if (place.clientWidth > 0 && place.clientWidth !== made.width) made.setSize({ width: place.clientWidth, height });
    });
    watcher.observe(place);
    return () => { watcher.disconnect(); made.destroy(); plot.current = null; };
  }, [shape]);
  useEffect(() => { plot.current?.setData(data); });
  const latest = series.map((one) => `${one.name} ${text(one.values, format)}`).join(', ');
  return html`<div class="chart" role="img" aria-label=${`${title}: ${latest}`} ref=${box}></div>`;
}

/** @param {{ series: Series[], format?: (value: number) => string }} props */
export function Legend({ series, format = digits }) {
  return html`<div class="legend">${series.map((one) => html`<span class=${`key ink-${one.ink ?? 1}`}><span class="swatch"></span>${one.name} <b>${text(one.values, format)}</b></span>`)}</div>`;
}

/** @param {(number | null)[]} values @param {(value: number) => string} format */
function text(values, format) {
  for (let index = values.length - 1; index >= Math.max(0, values.length - 5); index -= 1) {
    const value = values[index];
    if (value !== null && value !== undefined) return format(value);
  }
  return '–';
}

const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();

/** @param {number} width @param {number} height @param {Series[]} series @param {(value: number) => string} format @param {boolean} area @param {boolean} whole */
function options(width, height, series, format, area, whole) {
  const faint = colour('--text-3');
  const grid = { stroke: colour('--grid'), width: 1 };
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: faint, grid, font, ticks: { show: false } };
  return /** @type {any} */ ({
    width: Math.max(width, 120), height, legend: { show: false }, padding: [10, 18, 0, 0],
    cursor: { y: false, points: { size: 7 } },
    scales: { x: { range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => [Math.min(low, high - 60), high] }, y: { range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => bounds(low, high) } },
    axes: [
      { ...axis, grid: { show: false }, size: 26, space: 70, values: (/** @type {any} */ _, /** @type {number[]} */ marks) => marks.map(timeMark(marks)) },
      { ...axis, size: 58, space: 34, ...(whole ? { incrs: WHOLE } : {}), values: (/** @type {any} */ _, /** @type {number[]} */ marks) => marks.map((mark) => format(mark)) },
    ],
    series: [{}, ...series.map((one) => {
      const ink = colour(`--series-${one.ink ?? 1}`);
      return { label: one.name, stroke: ink, width: 1.6, points: { show: false }, spanGaps: false,
        fill: area && series.length === 1 ? ink.replace('rgb(', 'rgba(').replace(')', ', 0.10)') : undefined };
    })],
  });
}

/** A scale that begins at zero and is never of height zero. @param {number} low @param {number} high @returns {[number, number]} */
function bounds(low, high) {
  if (low === null || high === null || !Number.isFinite(high)) return [0, 1];
  return [Math.min(0, low), high <= 0 ? 1 : high * 1.12];
}

/** @param {number[]} marks */
function timeMark(marks) {
  const fine = marks.length > 1 && marks[1] - marks[0] < 60;
  return (/** @type {number} */ mark) => {
    const when = new Date(mark * 1000);
    const two = (/** @type {number} */ value) => String(value).padStart(2, '0');
    return `${two(when.getHours())}:${two(when.getMinutes())}${fine ? `:${two(when.getSeconds())}` : ''}`;
  };
}
