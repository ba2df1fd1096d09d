// @ts-check
/** Ctrl+K: go to a view, a topic or a client by typing; `/` moves to the search of the view. */
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

/** @param {string} typed @returns {{ name: string, icon: string, href: string, key: string }[]} */
export function offers(typed) {
  const word = typed.trim().toLowerCase();
  const views = PLACES.flatMap(([, places]) => places)
    .filter((place) => `${place.name} ${place.words ?? ''}`.toLowerCase().includes(word))
    .map((place) => ({ name: place.name, icon: place.icon, href: link(place.view), key: place.view }));
  if (!word) return views;
  const text = typed.trim();
  return [...views,
    { name: `Live tail of topic ${text}`, icon: 'topics', href: link('topics', { topic: text.replace(/\/?#$/, '') }), key: 'topic' },
    { name: `Live values of ${text}`, icon: 'live', href: link('live', { filter: text }), key: 'live-of' },
    { name: `Clients like ${text}`, icon: 'clients', href: link('clients', { search: text }), key: 'client' },
    { name: `Trace message ${text}`, icon: 'trace', href: link('trace', { message_id: text }), key: 'message' }];
}

/** @param {{ onClose: () => void }} props */
export function Palette({ onClose }) {
  const [typed, setTyped] = useState('');
  const [at, setAt] = useState(0);
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const found = offers(typed);
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
  <//>`;
}
