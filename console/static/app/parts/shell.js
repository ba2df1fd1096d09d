// @ts-check
/** What is around every view: navigation, state of the server, theme, who is signed in. */
import { session, signOut } from '../core/api.js';
import { alarms, figures, stream } from '../core/events.js';
import { count, plural, span } from '../core/format.js';
import { html, useEffect, useRef, useState } from '../core/lib.js';
import { link, route } from '../core/router.js';
import { useSignal } from '../core/signal.js';
import { theme } from '../core/theme.js';
import { Badge, Page } from './page.js';
import { Icon } from './icon.js';
import { Palette, useKeys } from './palette.js';
import { BY_VIEW, PLACES } from './places.js';
import { Empty } from './states.js';

export function Shell() {
  const now = useSignal(route);
  const [open, setOpen] = useState(false);
  const [asking, setAsking] = useState(false);
  useKeys(() => setAsking(true));
  useEffect(() => setOpen(false), [now.view]);
  const place = BY_VIEW.get(now.view);
  return html`
    <a class="button primary skip" href="#page" onClick=${skip}>Skip to the page</a>
    <div class="frame">
      <${Side} view=${now.view} open=${open} onClose=${() => setOpen(false)} />
      ${open && html`<button type="button" class="scrim" aria-label="Close the navigation" onClick=${() => setOpen(false)}></button>`}
      <div>
        <${Bar} onMenu=${() => setOpen(true)} open=${open} onAsk=${() => setAsking(true)} />
        <main class="page" id="page" key=${now.view}>${place ? html`<${place.of} route=${now} />` : html`<${Nowhere} />`}</main>
      </div>
    </div>
    ${asking && html`<${Palette} onClose=${() => setAsking(false)} />`}`;
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  const heading = /** @type {HTMLElement | null} */ (document.querySelector('main h1'));
  heading?.focus();
}

function Nowhere() {
  return html`<${Page} title="No such page"><section class="card"><${Empty} icon="search" title="There is nothing at this address">
    <a class="button" href="#/overview">Go to the overview</a><//></section><//>`;
}

/** @param {{ view: string, open: boolean, onClose: () => void }} props */
function Side({ view, open, onClose }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const raised = useSignal(alarms).length;
  const data = useSignal(figures);
  useEffect(() => {
    if (!open) return undefined;
    /** @type {HTMLElement | null | undefined} */ (place.current?.querySelector('a.place'))?.focus();
    const leave = (/** @type {KeyboardEvent} */ event) => { if (event.key === 'Escape') onClose(); };
    addEventListener('keydown', leave);
    return () => removeEventListener('keydown', leave);
  }, [open]);
  return html`<nav class=${`side ${open ? 'open' : ''}`} aria-label="Console" id="side" ref=${place}>
    <a class="brand" href="#/overview"><img src="/console/static/favicon.svg" alt="" />LightMQ</a>
    ${PLACES.map(([group, places]) => html`<h2 id=${`n-${group}`}>${group}</h2>
      <ul aria-labelledby=${`n-${group}`}>${places.map((one) => html`<li><a class="place" href=${link(one.view)} aria-current=${one.view === view ? 'page' : undefined} onClick=${onClose}>
        <${Icon} name=${one.icon} />${one.name}${one.view === 'alarms' && raised > 0 && html`<span class="count"><${Badge} kind="bad">${count(raised)}<span class="spoken"> raised</span><//></span>`}</a></li>`)}</ul>`)}
    <div class="foot">${data?.version && html`LightMQ ${data.version}`}${data?.uptime_s && html`<br />up ${span(data.uptime_s * 1000)}`}</div>
  </nav>`;
}

/** @param {{ onMenu: () => void, open: boolean, onAsk: () => void }} props */
function Bar({ onMenu, open, onAsk }) {
  const data = useSignal(figures);
  const state = useSignal(stream);
  const raised = useSignal(alarms);
  const who = useSignal(session);
  const worst = raised.some((alarm) => alarm.severity === 'critical') ? 'bad' : raised.length ? 'warn' : 'good';
  return html`<header class="bar">
    <button type="button" class="button bare square burger" aria-label="Navigation" aria-expanded=${open} aria-controls="side" onClick=${onMenu}><${Icon} name="menu" /></button>
    <div class="where"><span class=${`dot ${state === 'open' ? worst : ''}`}></span>
      <span class="clip">${state === 'refused' ? 'Signed in' : state === 'connecting' ? 'Connecting…' : raised.length ? html`<a href="#/alarms">${plural(raised.length, 'alarm')}</a>` : 'All well'}</span>
      ${data?.node && html`<span class="faint wide clip">${data.node}${data.mode ? ` · ${data.mode}` : ''}</span>`}</div>
    <div class="spacer"></div>
    <button type="button" class="button wide" onClick=${onAsk} aria-label="Go to…" title="Go to a view or a topic"><${Icon} name="search" />Go to… <kbd>Ctrl K</kbd></button>
    <${ThemeSwitch} />
    ${who?.role === 'monitor' && html`<${Badge} kind="info">read-only<//>`}
    <${Who} />
  </header>`;
}

const NEXT = /** @type {const} */ ({ system: 'light', light: 'dark', dark: 'system' });
const SHOWN = { system: ['system', 'as the system'], light: ['sun', 'light'], dark: ['moon', 'dark'] };

function ThemeSwitch() {
  const now = useSignal(theme);
  const [icon, text] = SHOWN[now];
  return html`<button type="button" class="button bare square" aria-label=${`Theme: ${text}. Change to ${SHOWN[NEXT[now]][1]}`} title=${`Theme: ${text}`}
    data-theme-switch onClick=${() => theme.set(NEXT[now])}><${Icon} name=${icon} /></button>`;
}

function Who() {
  const who = useSignal(session);
  return html`<span class="wide small quiet clip" title=${`Signed in as ${who?.user}, role ${who?.role}`}><span class="spoken">Signed in as </span>${who?.user}</span>
    <button type="button" class="button bare square" aria-label="Sign out" title=${`Sign out ${who?.user}`} onClick=${() => void signOut()}><${Icon} name="leave" /></button>`;
}
