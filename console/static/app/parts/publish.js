// @ts-check
/** The publish box: one message, acknowledged by the log before success is shown. */
import { mayAct, post } from '../core/api.js';
import { count } from '../core/format.js';
import { html, useEffect, useState } from '../core/lib.js';
import { link } from '../core/router.js';
import { attempt } from '../core/say.js';
import { Check, Field } from './field.js';
import { Icon } from './icon.js';
import { Banner } from './page.js';
import { pretty } from './payload.js';

/** @param {string} text `name: value` lines. @returns {Record<string, string>} */
export function properties(text) {
  return Object.fromEntries(text.split('\n').map((line) => line.trim()).filter(Boolean).map((line) => {
    const at = line.indexOf(':');
    return at < 0 ? [line, ''] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  }));
}

/** @param {{ topic: string }} props */
export function PublishBox({ topic }) {
  const [to, setTo] = useState(topic);
  const [payload, setPayload] = useState('{"value": 21.5}');
  const [qos, setQos] = useState('1');
  const [retain, setRetain] = useState(false);
  const [delay, setDelay] = useState('');
  const [extra, setExtra] = useState('');
  const [sent, setSent] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  useEffect(() => setTo(topic), [topic]);
  if (!mayAct()) return html`<${Banner}>You are signed in to look only. Publishing needs an access key that may publish.<//>`;
  const wrong = /[+#]/.test(to) ? 'A topic to publish to has no + or #.' : '';
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    const body = { topic: to, payload, qos: Number(qos), retain, properties: properties(extra), delay_ms: Math.max(0, Math.round(Number(delay) * 1000)) };
    const answer = await attempt(`Published to ${to}`, () => post('/messages', body));
    setSent(answer ? { ...answer, delayed: Boolean(body.delay_ms) } : null);
    setBusy(false);
  };
  return html`<form class="stack publish" onSubmit=${submit}>
    <${Field} label="Topic" value=${to} onInput=${setTo} required mono hint=${wrong || undefined} placeholder="plant/line-1/temperature" />
    <${Field} label="Message" kind="textarea" rows=${5} value=${payload} onInput=${setPayload} />
    <div class="row"><button type="button" class="button bare" onClick=${() => setPayload(pretty(payload))}>Format JSON</button></div>
    <div class="grid fields">
      <${Field} label="Quality of service" kind="select" value=${qos} onInput=${setQos} options=${[['0', '0 · at most once'], ['1', '1 · at least once'], ['2', '2 · exactly once']]} />
      <${Field} label="Deliver after (seconds)" type="number" min=${0} value=${delay} onInput=${setDelay} placeholder="at once" />
      <div class="field"><span class="label">Keep as last value</span><${Check} label="Retain" checked=${retain} onChange=${setRetain} /></div>
    </div>
    <details><summary class="quiet small">User properties</summary><${Field} label="One a line, name: value" kind="textarea" rows=${3} value=${extra} onInput=${setExtra} /></details>
    <div class="row"><button type="submit" class="button primary" disabled=${busy || !to.trim() || Boolean(wrong)}><${Icon} name="send" />${busy ? 'Publishing…' : 'Publish'}</button>
      <span role="status" class="small quiet">${sent && html`Acknowledged${sent.delayed ? '' : ` at offset ${count(sent.offset)}`}. ${sent.message_id && !sent.delayed && html`<a href=${link('trace', { message_id: sent.message_id })}>Follow it</a>`}`}</span></div>
  </form>`;
}
