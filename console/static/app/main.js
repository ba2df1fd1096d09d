// @ts-check
/** Start of the page: a token in the address signs in and leaves the address before anything is asked of the server. */
import { resume, session, signIn } from './core/api.js';
import { close, open } from './core/events.js';
import { html, render } from './core/lib.js';
import { route } from './core/router.js';
import { say } from './core/say.js';
import { useSignal } from './core/signal.js';
import './core/theme.js';
import { Loading } from './parts/states.js';
import { Shell } from './parts/shell.js';
import { Toasts } from './parts/toasts.js';
import { SignIn } from './views/signin.js';

function App() {
  const now = useSignal(session);
  if (now === undefined) return html`<main class="signin"><${Loading} rows=${3} /></main>`;
  return html`${now ? html`<${Shell} />` : html`<${SignIn} />`}<${Toasts} />`;
}

/** The token of a printed link, removed from the address and from the history entry. */
function takeToken() {
  const found = /^#token=([^&]+)(?:&(.*))?$/.exec(location.hash);
  if (!found) return '';
  const rest = new URLSearchParams(found[2] ?? '').get('to') ?? '';
  history.replaceState(null, '', `${location.pathname}${rest.startsWith('/') ? `#${rest}` : ''}`);
  route.set({ view: 'overview', rest: '', params: {} });
  dispatchEvent(new HashChangeEvent('hashchange'));
  return decodeURIComponent(found[1]);
}

/** @param {string} token */
async function enter(token) {
  try {
    await signIn({ token });
  } catch (failure) {
    await resume();
    if (!session.get()) say('This link does not sign in any more', 'Print a new one with: lightmq console token --renew', true);
    console.warn('sign-in by link:', failure instanceof Error ? failure.message : failure);
  }
}

async function start() {
  const token = takeToken();
  session.watch((now) => { if (now) open(); else close(); });
  const place = document.getElementById('app');
  if (place) render(html`<${App} />`, place);
  // The link may also be opened where this page is already: then only the part behind # changes.
  addEventListener('hashchange', () => {
    const given = takeToken();
    if (given) void enter(given);
  });
  if (token) await enter(token);
  else await resume();
}

void start();
