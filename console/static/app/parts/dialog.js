// @ts-check
/**
 * Dialogs and drawers on the browser's own `<dialog>`: it keeps the focus inside, closes by Escape and gives the focus
 * back to what opened it.
 */
import { html, useEffect, useRef, useState } from '../core/lib.js';
import { Field, useName } from './field.js';
import { Icon } from './icon.js';

/** @param {{ title: any, onClose: () => void, kind?: 'box' | 'drawer', sub?: any, children?: any }} props */
export function Dialog({ title, onClose, kind = 'box', sub, children }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const name = useName('d');
  useEffect(() => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    const dialog = element.current;
    dialog?.showModal();
    return () => {
      if (dialog?.open) dialog.close();
      if (before?.isConnected) before.focus();
    };
  }, []);
  return html`<dialog class=${kind} ref=${element} aria-labelledby=${name}
    onCancel=${(/** @type {Event} */ event) => { event.preventDefault(); onClose(); }}
    onMouseDown=${(/** @type {MouseEvent} */ event) => { if (event.target === element.current) onClose(); }}>
    <div class="sheet">
      <header><div><h2 id=${name}>${title}</h2>${sub && html`<p class="quiet small">${sub}</p>`}</div>
        <button type="button" class="button bare square" aria-label="Close" onClick=${onClose}><${Icon} name="close" /></button></header>
      ${children}
    </div>
  </dialog>`;
}

/**
 * Ask before an act that cannot be taken back. With `type` the reader has to write a word first.
 * @param {{ title: string, act: string, onAct: () => Promise<any>, onClose: () => void, danger?: boolean, type?: string,
 *   disabled?: boolean, children?: any }} props
 */
export function Confirm({ title, act, onAct, onClose, danger = true, type, disabled = false, children }) {
  const [busy, setBusy] = useState(false);
  const [typed, setTyped] = useState('');
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    await onAct();
    setBusy(false);
    onClose();
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form class="stack" onSubmit=${submit}>
      ${children}
      ${type && html`<${Field} label=${`Type ${type} to confirm`} value=${typed} onInput=${setTyped} mono />`}
      <div class="row end">
        <button type="button" class="button" onClick=${onClose}>Cancel</button>
        <button type="submit" class=${`button primary ${danger ? 'danger' : ''}`} disabled=${busy || disabled || (Boolean(type) && typed !== type)}>${act}</button>
      </div>
    </form>
  <//>`;
}
