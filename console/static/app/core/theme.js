// @ts-check
/** Light or dark: the system's preference until the reader chooses; the choice stays in this browser. */
import { signal } from './signal.js';

/** @typedef {'system' | 'light' | 'dark'} Theme */
const KEY = 'lightmq.theme';

/** @returns {Theme} */
function stored() {
  try {
    const found = localStorage.getItem(KEY);
    return found === 'light' || found === 'dark' ? found : 'system';
  } catch {
    return 'system';
  }
}

export const theme = signal(stored());
/** Counts changes of what is really shown, for canvases that cannot follow CSS by themselves. */
export const repaint = signal(0);
const preference = matchMedia('(prefers-color-scheme: dark)');

function apply() {
  const now = theme.get();
  if (now === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = now;
  repaint.set(repaint.get() + 1);
}

theme.watch((now) => {
  try {
    localStorage.setItem(KEY, now);
  } catch {
    // A browser without storage forgets the choice; the page works.
  }
  apply();
});
preference.addEventListener('change', apply);
apply();

export const isDark = () => (theme.get() === 'system' ? preference.matches : theme.get() === 'dark');

/** The colour that a custom property stands for at the moment, as a canvas takes it. @param {string} name */
export function colour(name) {
  const probe = document.createElement('span');
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
