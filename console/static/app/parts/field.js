// @ts-check
/** Fields of forms, each with its label. */
import { html, useRef } from '../core/lib.js';
import { Icon } from './icon.js';

let numbers = 0;

/** A name for an element that stays the same while its component lives. @param {string} [prefix] */
export function useName(prefix = 'f') {
  const held = useRef('');
  if (!held.current) held.current = `${prefix}${++numbers}`;
  return held.current;
}

/**
 * @param {{ label: string, value: any, onInput: (value: string) => void, hint?: string, kind?: string, type?: string,
 *   options?: [string, string][], placeholder?: string, required?: boolean, rows?: number, auto?: string, mono?: boolean,
 *   min?: number, list?: string[] }} props
 */
export function Field({ label, value, onInput, hint, kind = 'input', type = 'text', options = [], placeholder, required, rows, auto = 'off', mono, min, list }) {
  const id = useName();
  const told = hint ? `${id}h` : undefined;
  const listId = list ? `${id}l` : undefined;
  /** @param {Event} event */
  const input = (event) => onInput(/** @type {HTMLInputElement} */ (event.target).value);
  const common = { id, value, class: `input ${mono ? 'mono' : ''}`, required, 'aria-describedby': told, onInput: input };
  return html`<div class="field">
    <label class="label" for=${id}>${label}</label>
    ${kind === 'select' && html`<select ...${common}>${options.map(([key, text]) => html`<option value=${key} selected=${key === value}>${text}</option>`)}</select>`}
    ${kind === 'textarea' && html`<textarea ...${common} rows=${rows ?? 4} placeholder=${placeholder} spellcheck=${false}></textarea>`}
    ${kind === 'input' && html`<input ...${common} type=${type} placeholder=${placeholder} autocomplete=${auto} min=${min} list=${listId} spellcheck=${false} autocapitalize="off" />`}
    ${list && html`<datalist id=${listId}>${list.map((text) => html`<option value=${text} />`)}</datalist>`}
    ${hint && html`<span class="hint" id=${told}>${hint}</span>`}
  </div>`;
}

/** @param {{ label: string, checked: boolean, onChange: (checked: boolean) => void }} props */
export function Check({ label, checked, onChange }) {
  return html`<label class="check"><input type="checkbox" checked=${checked}
    onChange=${(/** @type {Event} */ event) => onChange(/** @type {HTMLInputElement} */ (event.target).checked)} />${label}</label>`;
}

/** The search of a list; `/` moves here. @param {{ value: string, onInput: (value: string) => void, label: string }} props */
export function Search({ value, onInput, label }) {
  return html`<div class="searchbox" role="search"><${Icon} name="search" />
    <input class="input" type="search" value=${value} placeholder=${label} aria-label=${label} autocomplete="off" spellcheck=${false} data-search
      onInput=${(/** @type {Event} */ event) => onInput(/** @type {HTMLInputElement} */ (event.target).value)} /></div>`;
}
