// @ts-check
/**
 * The course of a reading: a line, behind it what windows found (from the lowest to the highest value, with the mean),
 * and dots where something happened. Decoration: the tile around it says the figures.
 */
import { html } from '../core/lib.js';

const HEIGHT = 56;
/** Above and below, so that dots lie inside. */
const ROOM = 5;

/**
 * @param {{ times_ms: number[], values: number[], spans?: import('../core/results.js').Span[], marks?: { at_ms: number, value: number }[] }} props
 */
export function Course({ times_ms, values, spans = [], marks = [] }) {
  const from = times_ms[0] ?? spans[0]?.from_ms ?? 0;
  const to = Math.max(times_ms[times_ms.length - 1] ?? 0, spans.length && !times_ms.length ? spans[spans.length - 1].to_ms : 0);
  const shown = spans.filter((span) => span.to_ms > from && span.from_ms < to);
  const dots = marks.filter((mark) => mark.at_ms >= from && mark.at_ms <= to);
  if (to <= from || values.length + shown.length < 2) return html`<svg class="sparkline course" aria-hidden="true"></svg>`;
  const heights = [...values, ...shown.flatMap((span) => [span.low, span.high]), ...dots.map((mark) => mark.value)];
  const least = Math.min(...heights);
  const range = Math.max(...heights) - least;
  const x = (/** @type {number} */ time_ms) => (((Math.min(Math.max(time_ms, from), to) - from) / (to - from)) * 100).toFixed(2);
  const y = (/** @type {number} */ value) => (range === 0 ? HEIGHT / 2 : HEIGHT - ROOM - ((value - least) / range) * (HEIGHT - 2 * ROOM)).toFixed(2);
  const line = values.map((value, index) => `${x(times_ms[index])} ${y(value)}`).join('L');
  return html`<svg class="sparkline course" viewBox=${`0 0 100 ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
    ${shown.map((span) => html`<path class="band" d=${`M${x(span.from_ms)} ${y(span.high)}H${x(span.to_ms)}V${y(span.low)}H${x(span.from_ms)}Z`} />`)}
    ${values.length > 1 && html`<path class=${shown.length ? 'line thin' : 'line'} d=${`M${line}`} />`}
    ${shown.length === 0 && values.length > 1 && html`<path class="area" d=${`M${line}L100 ${HEIGHT}L0 ${HEIGHT}Z`} />`}
    ${shown.map((span) => html`<path class="mean" d=${`M${x(span.from_ms)} ${y(span.mean)}H${x(span.to_ms)}`} />`)}
    ${dots.map((mark) => html`<path class="halo" d=${`M${x(mark.at_ms)} ${y(mark.value)}h0`} /><path class="spot" d=${`M${x(mark.at_ms)} ${y(mark.value)}h0`} />`)}
  </svg>`;
}
