// @ts-check
/** Toasts, in a live region that is always there so that screen readers hear what is put in; above open dialogs. */
import { html, useEffect, useRef } from '../core/lib.js';
import { dismiss, toasts } from '../core/say.js';
import { useSignal } from '../core/signal.js';
import { Icon } from './icon.js';

export function Toasts() {
  const shown = useSignal(toasts);
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    // The top layer has its own order: whoever comes last is above, and a dialog may have come since.
    const element = place.current;
    if (!element?.showPopover) return;
    if (element.matches(':popover-open')) element.hidePopover();
    if (shown.length) element.showPopover();
  }, [shown]);
  return html`
    <div class="spoken" role="status" aria-live="polite">${shown.map((toast) => html`<p key=${toast.id}>${toast.text} ${toast.detail}</p>`)}</div>
    <div class="toasts" popover="manual" ref=${place}>${shown.map((toast) => html`
    <div key=${toast.id} class=${`toast ${toast.bad ? 'bad' : ''}`}><${Icon} name=${toast.bad ? 'bad' : 'check'} />
      <div class="grow"><b>${toast.text}</b>${toast.detail && html`<div class="quiet">${toast.detail}</div>`}</div>
      <button type="button" class="link" aria-label="Dismiss" onClick=${() => dismiss(toast.id)}><${Icon} name="close" /></button></div>`)}</div>`;
}
