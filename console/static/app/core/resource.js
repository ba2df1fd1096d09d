// @ts-check
/**
 * What a view shows comes through here: one answer of the API, or one page of a list.
 * Invariants: an answer to an older question never replaces a newer one; a hidden tab asks nothing; a refresh in the
 * background keeps what is shown.
 */
import { get } from './api.js';
import { useCallback, useEffect, useRef, useState } from './lib.js';

/** @typedef {{ data: any, error: any, loading: boolean, reload: () => void }} Resource */

/**
 * @param {string | null} path `null` asks nothing.
 * @param {import('./api.js').Query} [query]
 * @param {number} [everyMs] How often it is asked again; 0 for once.
 * @returns {Resource}
 */
export function useResource(path, query = {}, everyMs = 0) {
  const [state, setState] = useState({ data: /** @type {any} */ (null), error: /** @type {any} */ (null), key: '' });
  const key = `${path} ${JSON.stringify(query)}`;
  const ask = useRef(() => {});
  useEffect(() => {
    if (path === null) return undefined;
    const controller = new AbortController();
    let busy = false;
    const run = async () => {
      if (busy) return;
      busy = true;
      try {
        const data = await get(path, query, controller.signal);
        setState({ data, error: null, key });
      } catch (error) {
        if (!controller.signal.aborted) setState((old) => ({ data: old.key === key ? old.data : null, error, key }));
      } finally {
        busy = false;
      }
    };
    ask.current = run;
    void run();
    const timer = everyMs > 0 ? setInterval(() => { if (!document.hidden) void run(); }, everyMs) : 0;
    return () => {
      controller.abort();
      clearInterval(timer);
    };
  }, [key, everyMs]);
  const reload = useCallback(() => ask.current(), []);
  const fresh = state.key === key;
  const failed = fresh ? state.error : null;
  return { data: fresh ? state.data : null, error: failed, loading: path !== null && !fresh, reload };
}

/**
 * @typedef {Resource & { items: any[], total: number | null, page: number, more: boolean, limit: number,
 *   forward: () => void, back: () => void }} Paged
 */

/**
 * A list, page by page: the server holds the list, this holds one page and the cursors that lead back.
 * @param {string | null} path
 * @param {import('./api.js').Query} [query]
 * @param {{ limit?: number, everyMs?: number }} [options]
 * @returns {Paged}
 */
export function usePaged(path, query = {}, options = {}) {
  const limit = options.limit ?? 50;
  const key = `${path} ${JSON.stringify(query)}`;
  const [trail, setTrail] = useState({ key, cursors: [''] });
  const cursors = trail.key === key ? trail.cursors : [''];
  const cursor = cursors[cursors.length - 1];
  const answer = useResource(path, { ...query, limit, cursor: cursor || undefined }, options.everyMs ?? 0);
  const next = answer.data?.next ?? '';
  return {
    ...answer,
    items: answer.data?.items ?? [],
    total: answer.data?.total ?? null,
    page: cursors.length,
    more: Boolean(next),
    limit,
    forward: () => { if (next) setTrail({ key, cursors: [...cursors, next] }); },
    back: () => { if (cursors.length > 1) setTrail({ key, cursors: cursors.slice(0, -1) }); },
  };
}

/**
 * A stored message with its payload, found among the newest of its topic; null when there were too many since.
 * @param {string} topic
 * @param {number} position Its place in the log.
 */
export function useStored(topic, position) {
  const found = useResource(`/topics/${encodeURIComponent(topic)}`, { history: 200 });
  return { ...found, message: found.data?.messages.find((/** @type {any} */ one) => one.position === position) ?? null };
}

/** The time, once a second (or as told), for ages that are shown. @param {number} [everyMs] */
export function useNow(everyMs = 1000) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

/** A value that follows another one after a pause, so that typing does not ask at each letter. @template T @param {T} value @param {number} [ms] @returns {T} */
export function useSettled(value, ms = 250) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(() => value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}
