// @ts-check
/** Ctrl+K: go to a view, a topic or a client by typing; `/` moves to the search of the view. */
import { useResource, useSettled } from '../core/resource.js';
import { html, useEffect, useRef, useState } from '../core/lib.js';
import { go, link } from '../core/router.js';
import { Dialog } from './dialog.js';
import { Icon } from './icon.js';
import { PLACES } from './places.js';

/** @param {() => void} ask */
export function useKeys(ask) {
  useEffect(() => {
    const press = (/** @type {KeyboardEvent} */ event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
        event.preventDefault();
        if (!document.querySelector('dialog[open]')) ask();
      }
      const typing = event.target instanceof HTMLElement && event.target.closest('input, textarea, select, [contenteditable]');
      if (event.key === '/' && !typing && !event.ctrlKey && !event.metaKey) {
        const search = /** @type {HTMLElement | null} */ (document.querySelector('main [data-search]'));
        if (search) { event.preventDefault(); search.focus(); }
      }
    };
    addEventListener('keydown', press);
    return () => removeEventListener('keydown', press);
  }, []);
}

const FOUND_MAX = 4;
const REST = 2;

/** @typedef {{ name: string, icon: string, href: string, key: string }} Offer */

/**
 * What the server has with this text in its name: topics at any depth, connected clients, consumer groups.
 * @param {string} typed
 * @returns {{ found: Offer[], searching: boolean, more: boolean }}
 */
function useFound(typed) {
  const text = useSettled(typed.trim());
  const path = (/** @type {string} */ of) => (text.length >= REST ? of : null);
  const query = { search: text, limit: FOUND_MAX };
  const topics = useResource(path('/topics'), query);
  const clients = useResource(path('/clients'), query);
  const groups = useResource(path('/groups'), query);
  const more = [topics, clients, groups].some((of) => of.data?.next);
  if (text !== typed.trim() || text.length < REST) return { found: [], searching: text !== typed.trim(), more: false };
  const items = (/** @type {any} */ of) => of.data?.items ?? [];
  return {
    more,
    searching: topics.loading || clients.loading || groups.loading,
    found: [
      ...items(topics).map((/** @type {any} */ one) => ({ name: `Topic ${one.topic}`, icon: 'topics', href: link('topics', { topic: one.topic }), key: `topic ${one.topic}` })),
      ...items(clients).map((/** @type {any} */ one) => ({ name: `Client ${one.id}`, icon: 'clients', href: link('clients', {}, one.id), key: `client ${one.id}` })),
      ...items(groups).map((/** @type {any} */ one) => ({ name: `Group ${one.name}`, icon: 'groups', href: link('groups', {}, one.name), key: `group ${one.name}` }))],
  };
}

/** @param {string} typed @param {Offer[]} [known] What the server has of this name. @returns {Offer[]} */
export function offers(typed, known = []) {
  const word = typed.trim().toLowerCase();
  const views = PLACES.flatMap(([, places]) => places)
    .filter((place) => `${place.name} ${place.words ?? ''}`.toLowerCase().includes(word))
    .map((place) => ({ name: place.name, icon: place.icon, href: link(place.view), key: place.view }));
  if (!word) return views;
  const text = typed.trim();
  return [...views, ...known,
    { name: `Wait for messages of topic ${text}`, icon: 'topics', href: link('topics', { topic: text.replace(/\/?#$/, '') }), key: 'topic' },
    { name: `Live values of ${text}`, icon: 'live', href: link('live', { filter: text }), key: 'live-of' },
    { name: `Clients like ${text}`, icon: 'clients', href: link('clients', { search: text }), key: 'client' },
    { name: `Trace message ${text}`, icon: 'trace', href: link('trace', { message_id: text }), key: 'message' }];
}

/** @param {{ onClose: () => void }} props */
export function Palette({ onClose }) {
  const [typed, setTyped] = useState('');
  const [at, setAt] = useState(0);
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const server = useFound(typed);
  const found = offers(typed, server.found);
  useEffect(() => { input.current?.focus(); }, []);
  useEffect(() => { document.getElementById(`offer-${at}`)?.scrollIntoView({ block: 'nearest' }); }, [at]);
  /** @param {string} href */
  const choose = (href) => { onClose(); go(href); };
  /** @param {KeyboardEvent} event */
  const press = (event) => {
    if (event.key === 'ArrowDown') setAt((at + 1) % found.length);
    else if (event.key === 'ArrowUp') setAt((at + found.length - 1) % found.length);
    else if (event.key === 'Enter' && found[at]) choose(found[at].href);
    else return;
    event.preventDefault();
  };
  return html`<${Dialog} title="Go to" onClose=${onClose}>
    <input class="input" ref=${input} value=${typed} role="combobox" aria-expanded="true" aria-controls="offers" aria-activedescendant=${`offer-${at}`} aria-autocomplete="list"
      aria-label="View, topic, client or message" placeholder="View, topic, client or message" autocomplete="off" spellcheck=${false}
      onInput=${(/** @type {Event} */ event) => { setTyped(/** @type {HTMLInputElement} */ (event.target).value); setAt(0); }} onKeyDown=${press} />
    <ul class="offers" id="offers" role="listbox" aria-label="Places">${found.map((one, index) => html`<li key=${one.key} id=${`offer-${index}`} role="option" aria-selected=${index === at}
      class=${index === at ? 'on' : ''} onClick=${() => choose(one.href)}><${Icon} name=${one.icon} />${one.name}</li>`)}</ul>
    ${typed.trim().length >= REST && server.found.length === 0 && html`<p class="small quiet" role="status">${server.searching ? 'Searching topics, clients and groups…' : server.more ? 'Nothing found so far; search on in the view.' : 'No topic, client or group found with this in its name.'}</p>`}
  <//>`;
}
