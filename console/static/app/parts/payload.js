// @ts-check
/** What a message carries, readable: JSON indented, text as it is, bytes as hexadecimal. Also the copy button. */
import { html, useState } from '../core/lib.js';
import { bytes } from '../core/format.js';
import { say } from '../core/say.js';
import { Icon } from './icon.js';

const SHOWN_MAX = 20_000;

/** @param {string} text */
export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** @param {string} encoded */
function hexadecimal(encoded) {
  const raw = atob(encoded);
  const lines = [];
  for (let at = 0; at < Math.min(raw.length, 1024); at += 16) {
    const row = [...raw.slice(at, at + 16)].map((letter) => letter.charCodeAt(0));
    const codes = row.map((code) => code.toString(16).padStart(2, '0')).join(' ');
    lines.push(`${at.toString(16).padStart(4, '0')}  ${codes.padEnd(47)}  ${row.map((code) => (code > 31 && code < 127 ? String.fromCharCode(code) : '·')).join('')}`);
  }
  return lines.join('\n');
}

/** @param {{ text: string, encoding?: string }} props */
export function Payload({ text, encoding = 'text' }) {
  const shown = encoding === 'base64' ? hexadecimal(text) : pretty(text).slice(0, SHOWN_MAX);
  return html`<${Code} text=${shown || '(empty)'} copy=${text} />
    ${text.length > SHOWN_MAX && html`<p class="small faint">The first ${bytes(SHOWN_MAX)} of ${bytes(text.length)}.</p>`}`;
}

/** @param {{ text: string, copy?: string }} props */
export function Code({ text, copy }) {
  return html`<div class="code"><pre tabindex="0">${text}</pre><${Copy} text=${copy ?? text} /></div>`;
}

/** @param {{ text: string, label?: string }} props */
export function Copy({ text, label = 'Copy' }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    } catch {
      say('Copying is not allowed here', 'Browsers permit it on https:// and on this machine itself.', true);
    }
  };
  return html`<button type="button" class="button bare square" aria-label=${done ? 'Copied' : label} onClick=${copy}><${Icon} name=${done ? 'check' : 'copy'} /></button>`;
}
