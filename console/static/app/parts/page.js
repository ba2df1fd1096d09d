// @ts-check
/** The frame of a view: title, what it is for, acts. On arrival the title takes the focus and is thereby read out. */
import { html, useEffect, useRef } from '../core/lib.js';
import { Icon } from './icon.js';

/** Whether the reader has moved on from the first view: only then is the focus taken. */
let arrived = false;

/** @param {{ title: any, name?: string, about?: any, actions?: any, children?: any }} props */
export function Page({ title, name, about, actions, children }) {
  const heading = useRef(/** @type {HTMLElement | null} */ (null));
  const spoken = name ?? (typeof title === 'string' ? title : '');
  useEffect(() => {
    document.title = `${spoken} · LightMQ`;
    if (arrived) heading.current?.focus({ preventScroll: true });
    else arrived = true;
    scrollTo(0, 0);
  }, [spoken]);
  return html`
    <div class="head">
      <div>
        <h1 tabindex="-1" ref=${heading}>${title}</h1>
        ${about && html`<p>${about}</p>`}
      </div>
      ${actions && html`<div class="actions">${actions}</div>`}
    </div>
    ${children}`;
}

/** A surface with a title. @param {{ title?: any, extra?: any, class?: string, plain?: boolean, children?: any, label?: string }} props */
export function Card({ title, extra, class: kind = '', plain = false, children, label }) {
  return html`<section class=${`card ${kind}`} aria-label=${label ?? (typeof title === 'string' ? title : undefined)}>
    ${(title || extra) && html`<header><h2>${title}</h2>${extra}</header>`}
    ${plain ? children : html`<div class="body">${children}</div>`}
  </section>`;
}

/** @param {{ kind?: string, children?: any }} props */
export function Banner({ kind = 'info', children }) {
  const icon = kind === 'good' ? 'check' : kind === 'bad' ? 'bad' : kind === 'warn' ? 'warn' : 'info';
  return html`<div class=${`banner ${kind}`}><${Icon} name=${icon} /><div>${children}</div></div>`;
}

/** @param {{ kind?: string, children?: any }} props */
export function Badge({ kind = '', children }) {
  return html`<span class=${`badge ${kind}`}>${children}</span>`;
}

/** Names with their values. @param {{ of: [any, any][] }} props */
export function Facts({ of }) {
  return html`<dl class="facts">${of.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}
