// @ts-check
/** An icon of the sprite; decoration, so screen readers skip it: the text beside it or the button's label speaks. */
import { html } from '../core/lib.js';

const SPRITE = new URL('../../icons.svg', import.meta.url).pathname;

/** @param {{ name: string, class?: string }} props */
export function Icon({ name, class: kind = '' }) {
  return html`<svg class=${`icon ${kind}`} aria-hidden="true" focusable="false"><use href=${`${SPRITE}#${name}`} /></svg>`;
}
