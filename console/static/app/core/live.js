// @ts-check
/**
 * Messages as they arrive, over one WebSocket for each subscription that a view holds.
 * Invariants: what is kept is bounded, and what was dropped (here or at the server) is counted; a lost connection is
 * made again with growing pauses; nothing is drawn more often than ten times a second.
 */
import { session } from './api.js';
import { useEffect, useRef, useState } from './lib.js';

/**
 * @typedef {{ topic: string, payload: string, encoding: string, qos: number, retain: boolean, time_ms: number,
 *   offset: number, message_id: string, properties: Record<string, any>, key: number }} LiveMessage
 */
/** @typedef {'connecting' | 'open' | 'waiting' | 'refused'} LiveState */

const RETRY_MS_MAX = 10_000;
let numbers = 0;

/**
 * @param {string} filter
 * @param {number} history
 * @param {{ message: (message: LiveMessage) => void, dropped: (count: number) => void,
 *   state: (state: LiveState, detail: string) => void }} to
 * @returns {() => void} ends the subscription
 */
export function subscribe(filter, history, to) {
  let ended = false;
  let pause = 500;
  /** @type {WebSocket | null} */
  let socket = null;
  let timer = 0;
  const connect = () => {
    to.state('connecting', '');
    socket = new WebSocket(`${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/api/v1/live`);
    socket.onopen = () => {
      pause = 500;
      socket?.send(JSON.stringify({ subscribe: filter, history }));
    };
    socket.onmessage = (event) => {
      const data = JSON.parse(event.data);
      if (data.message) to.message({ ...data.message, key: ++numbers });
      if (data.dropped) to.dropped(data.dropped);
      if (data.subscribed !== undefined) to.state('open', '');
      if (data.problem) refuse(data.problem.detail);
    };
    socket.onclose = (event) => {
      if (ended) return;
      if (event.code === 1008 || event.code === 4403) return refuse(event.reason);
      to.state('waiting', event.reason);
      timer = window.setTimeout(connect, pause);
      pause = Math.min(pause * 2, RETRY_MS_MAX);
    };
  };
  /** @param {string} detail */
  const refuse = (detail) => {
    ended = true;
    to.state('refused', detail);
    socket?.close();
  };
  connect();
  return () => {
    ended = true;
    clearTimeout(timer);
    socket?.close();
  };
}

/**
 * The newest messages of a filter.
 * @param {string} filter Empty subscribes to nothing.
 * @param {{ history?: number, keep?: number, paused?: boolean, each?: (message: LiveMessage) => void }} [options]
 * @returns {{ messages: LiveMessage[], dropped: number, received: number, state: LiveState, detail: string, clear: () => void }}
 */
export function useLive(filter, options = {}) {
  const keep = options.keep ?? 200;
  const paused = useRef(false);
  paused.current = options.paused ?? false;
  const each = useRef(options.each);
  each.current = options.each;
  const box = useRef({ messages: /** @type {LiveMessage[]} */ ([]), dropped: 0, received: 0, state: /** @type {LiveState} */ ('connecting'), detail: '', dirty: false });
  const [, draw] = useState(0);
  useEffect(() => {
    const held = box.current;
    Object.assign(held, { messages: [], dropped: 0, received: 0, detail: '', dirty: true });
    if (!filter || !session.get()) return undefined;
    const end = subscribe(filter, options.history ?? 0, {
      message(message) {
        held.received += 1;
        each.current?.(message);
        if (paused.current) return;
        held.messages.push(message);
        if (held.messages.length > keep * 2) held.messages.splice(0, held.messages.length - keep);
        held.dirty = true;
      },
      dropped(number) { held.dropped += number; held.dirty = true; },
      state(state, detail) { Object.assign(held, { state, detail, dirty: true }); },
    });
    const timer = setInterval(() => {
      if (!held.dirty) return;
      held.dirty = false;
      draw((turn) => turn + 1);
    }, 100);
    return () => { clearInterval(timer); end(); };
  }, [filter, options.history, keep]);
  const held = box.current;
  return {
    messages: held.messages.slice(-keep), dropped: held.dropped, received: held.received, state: held.state, detail: held.detail,
    clear() { held.messages = []; held.dropped = 0; draw((turn) => turn + 1); },
  };
}
