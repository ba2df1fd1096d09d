// @ts-check
/**
 * A group's past as a drawing: one lane for each replica; thin where it was in the SyncStateSet, thick where it was
 * master, empty where it was out; a vertical line at each new epoch. A table of the same follows for screen readers.
 */
import { clock, moment, span } from '../core/format.js';
import { html, useState } from '../core/lib.js';
import { useNow } from '../core/resource.js';

/** @typedef {{ time_ms: number, master: string | null, sync_state_set: string[], master_epoch?: number }} Change */

const WIDTH = 1000;
const LANE = 34;
const TOP = 26;
/** @type {[string, string][]} */
export const WINDOWS = [['900000', '15 minutes'], ['3600000', '1 hour'], ['86400000', '1 day'], ['0', 'everything']];

/**
 * Stretches of one state of one replica. Pure.
 * @param {Change[]} changes Oldest first.
 * @param {string} replica
 * @param {number} from_ms
 * @param {number} to_ms
 * @returns {{ from: number, to: number, state: 'master' | 'in-sync', epoch: number | undefined }[]}
 */
export function stretches(changes, replica, from_ms, to_ms) {
  /** @type {{ from: number, to: number, state: 'master' | 'in-sync', epoch: number | undefined }[]} */
  const found = [];
  changes.forEach((change, index) => {
    const from = Math.max(change.time_ms, from_ms);
    const to = Math.min(changes[index + 1]?.time_ms ?? to_ms, to_ms);
    const state = change.master === replica ? 'master' : change.sync_state_set.includes(replica) ? 'in-sync' : null;
    if (!state || to <= from) return;
    const last = found[found.length - 1];
    if (last && last.state === state && last.to === from && last.epoch === change.master_epoch) last.to = to;
    else found.push({ from, to, state, epoch: change.master_epoch });
  });
  return found;
}

/** @param {{ group: string, changes: Change[], replicas: string[], windowMs: number }} props */
export function History({ group, changes, replicas, windowMs }) {
  const now = useNow(2000);
  const [shown, setShown] = useState(false);
  const to = now;
  // Nothing is known from before the first change, so it is not drawn as time in which nobody was in sync.
  const known = Math.min(changes[0]?.time_ms ?? to, to - 20_000);
  const from = windowMs ? Math.max(to - windowMs, known) : known;
  const place = (/** @type {number} */ time) => ((time - from) / (to - from)) * WIDTH;
  const height = TOP + replicas.length * LANE + 4;
  const epochs = changes.filter((change, index) => index > 0 && change.time_ms >= from && change.master_epoch !== changes[index - 1].master_epoch);
  const marks = ticks(from, to);
  return html`<div class="history">
    <div class="lanes" aria-hidden="true">
      <div class="lane-names">${replicas.map((replica) => html`<span class="mono clip" title=${replica}>${replica}</span>`)}</div>
      <div class="lane-box"><svg viewBox=${`0 0 ${WIDTH} ${height}`} preserveAspectRatio="none" class="lane-art">
        ${marks.map((mark) => html`<line class="tick" x1=${place(mark)} x2=${place(mark)} y1=${TOP - 6} y2=${height} />`)}
        ${replicas.map((replica, row) => html`<g>
          <line class="base" x1="0" x2=${WIDTH} y1=${TOP + row * LANE + LANE / 2} y2=${TOP + row * LANE + LANE / 2} />
          ${stretches(changes, replica, from, to).map((one) => html`<rect class=${one.state} x=${place(one.from)} width=${Math.max(place(one.to) - place(one.from), 1.5)}
            y=${TOP + row * LANE + (one.state === 'master' ? 7 : 12)} height=${one.state === 'master' ? LANE - 14 : LANE - 24}><title>${`${replica}: ${one.state} from ${moment(one.from)} for ${span(one.to - one.from)}, epoch ${one.epoch ?? '–'}`}</title></rect>`)}</g>`)}
        ${epochs.map((change) => html`<line class="epoch" x1=${place(change.time_ms)} x2=${place(change.time_ms)} y1=${TOP - 8} y2=${height} />`)}
      </svg>
      ${marks.map((mark) => html`<span class="tick-name" style=${{ left: `${(place(mark) / WIDTH) * 100}%` }}>${tickText(mark, to - from)}</span>`)}
      ${apart(epochs, place).map((change) => html`<span class="epoch-name" style=${{ left: `clamp(2rem, ${(place(change.time_ms) / WIDTH) * 100}%, calc(100% - 2rem))` }}>epoch ${change.master_epoch}</span>`)}
      </div>
    </div>
    <div class="row between small"><div class="legend"><span class="key"><span class="mark master"></span>master</span><span class="key"><span class="mark in-sync"></span>in the SyncStateSet</span><span class="key"><span class="mark epoch"></span>new epoch</span></div>
      <button type="button" class="button bare" aria-expanded=${shown} onClick=${() => setShown(!shown)}>${shown ? 'Hide' : 'Show'} the changes of ${group}</button></div>
    ${shown && html`<ol class="rows">${[...changes].reverse().slice(0, 50).map((change) => html`<li class="row"><span class="mono faint">${moment(change.time_ms)}</span>
      <span>${change.master ? html`<b>${change.master}</b> is master` : html`<b class="warned">no master</b>`}, epoch ${change.master_epoch ?? '–'}; in sync: ${change.sync_state_set.join(', ') || 'nobody'}</span></li>`)}</ol>`}
  </div>`;
}

/** Labels that would overlap the one before are left out. @param {Change[]} epochs @param {(time: number) => number} place */
function apart(epochs, place) {
  let last = -Infinity;
  return epochs.filter((change) => {
    if (place(change.time_ms) - last < 90) return false;
    last = place(change.time_ms);
    return true;
  });
}

/** @param {number} from @param {number} to */
function ticks(from, to) {
  const steps = [60e3, 300e3, 900e3, 3600e3, 3 * 3600e3, 6 * 3600e3, 86400e3, 7 * 86400e3];
  const step = steps.find((one) => (to - from) / one <= 7) ?? (to - from) / 5;
  const first = Math.ceil(from / step) * step;
  return Array.from({ length: Math.max(0, Math.floor((to - first) / step) + 1) }, (_, index) => first + index * step);
}

/** @param {number} mark @param {number} length */
const tickText = (mark, length) => (length > 2 * 86400e3 ? moment(mark).slice(0, 10) : clock(mark).slice(0, 5));
