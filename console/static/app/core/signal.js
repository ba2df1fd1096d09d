// @ts-check
/**
 * A value that several views watch: the session, the route, the theme, the live figures.
 * Invariant: watchers run in the order in which they began watching, and only when the value is another one.
 */
import { useEffect, useState } from './lib.js';

/**
 * @template T
 * @typedef {{ get: () => T, set: (value: T) => void, watch: (watcher: (value: T) => void) => () => void }} Signal
 */

/**
 * @template T
 * @param {T} first
 * @returns {Signal<T>}
 */
export function signal(first) {
  let value = first;
  /** @type {Set<(value: T) => void>} */
  const watchers = new Set();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const watcher of [...watchers]) watcher(value);
    },
    watch(watcher) {
      watchers.add(watcher);
      return () => void watchers.delete(watcher);
    },
  };
}

/**
 * The value of a signal; the component is drawn again when it changes.
 * @template T
 * @param {Signal<T>} source
 * @returns {T}
 */
export function useSignal(source) {
  const [value, setValue] = useState(source.get());
  useEffect(() => {
    setValue(() => source.get());
    return source.watch((next) => setValue(() => next));
  }, [source]);
  return value;
}
