// @ts-check
/** A figure with its unit, and its recent course as a small line. */
import { html } from '../core/lib.js';

/**
 * @param {{ values: (number | null)[], label?: string, height?: number, zero?: boolean }} props
 * `zero` draws from zero, as for rates; without it the line fills the height, as for temperatures.
 */
export function Sparkline({ values, label, height = 38, zero = true }) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return html`<svg class="sparkline" aria-hidden="true"></svg>`;
  const numbers = /** @type {number[]} */ (known);
  const most = Math.max(...numbers);
  const least = zero ? Math.min(0, ...numbers) : Math.min(...numbers);
  const range = most - least || Math.abs(most) || 1;
  const flat = most === least && !zero;
  const top = 4;
  const place = (/** @type {number} */ value) => (flat ? height / 2 : height - 1 - ((value - least) / range) * (height - top - 1));
  const step = 100 / (values.length - 1);
  const points = values.map((value, index) => (value === null ? null : `${(index * step).toFixed(2)} ${place(value).toFixed(2)}`));
  const line = `M${points.filter(Boolean).join('L')}`;
  const first = values.findIndex((value) => value !== null) * step;
  return html`<svg class="sparkline" viewBox=${`0 0 100 ${height}`} preserveAspectRatio="none" role=${label ? 'img' : undefined}
    aria-label=${label} aria-hidden=${label ? undefined : 'true'}>
    <path class="area" d=${`${line}L100 ${height}L${first.toFixed(2)} ${height}Z`} /><path class="line" d=${line} /></svg>`;
}

/**
 * @param {{ name: any, value: [string, string] | string, unit?: string, note?: any, values?: (number | null)[], href?: string,
 *   ink?: number, zero?: boolean }} props
 */
export function Tile({ name, value, unit = '', note, values, href, ink = 1, zero = true }) {
  const [figure, prefix] = Array.isArray(value) ? value : [value, ''];
  const inside = html`
    <div class="name">${name}</div>
    <div class="value">${figure}<span class="unit">${`${prefix ?? ''}${prefix && unit && !unit.startsWith('/') ? ' ' : ''}${unit}`}</span></div>
    ${note && html`<div class="note">${note}</div>`}
    ${values && html`<${Sparkline} values=${values} zero=${zero} />`}`;
  const kind = `card tile ${ink > 1 ? `ink-${ink}` : ''}`;
  return href ? html`<a class=${kind} href=${href}>${inside}</a>` : html`<div class=${kind}>${inside}</div>`;
}
