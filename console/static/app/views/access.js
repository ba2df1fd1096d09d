// @ts-check
/** Access: the rules in force, and a box that asks the server what one client may do and by which rule. */
import { post } from '../core/api.js';
import { html, useState } from '../core/lib.js';
import { usePaged } from '../core/resource.js';
import { attempt } from '../core/say.js';
import { Field } from '../parts/field.js';
import { Icon } from '../parts/icon.js';
import { Banner, Card, Facts, Page } from '../parts/page.js';
import { Empty } from '../parts/states.js';
import { List } from '../parts/table.js';

export function Access() {
  const page = usePaged('/access/rules', {}, { limit: 100 });
  const columns = [
    { name: 'For', of: (/** @type {any} */ one) => html`${one.who}${one.on === 'keys' ? html` <span class="small faint">access keys</span>` : ''}` },
    { name: 'Written in', of: (/** @type {any} */ one) => html`<span class="mono small faint nowrap">${one.place}</span>` },
    { name: 'Rule', lead: true, of: (/** @type {any} */ one) => html`<span class="mono">${one.rule}</span>` },
  ];
  return html`<${Page} title="Access" about="Who may publish, subscribe and administrate: the rules as the server applies them now.">
    <${TestBox} />
    <${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => `${one.broker} ${one.on} ${one.who} ${one.place} ${one.rule}`} caption="Rules in force" noun="rules" toolbar=${html`<h2>Rules in force</h2>`}
      empty=${html`<${Empty} icon="access" title="No access list"><p>Without one, everybody on this machine may do everything, and nobody from elsewhere may connect.</p><//>`} />
  <//>`;
}

/** @type {[string, string][]} */
const ACTIONS = [['publish', 'publish to'], ['subscribe', 'subscribe to']];

function TestBox() {
  const [user, setUser] = useState('');
  const [client, setClient] = useState('');
  const [action, setAction] = useState('publish');
  const [topic, setTopic] = useState('');
  const [answer, setAnswer] = useState(/** @type {any} */ (null));
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    const found = await attempt('', () => post('/access/test', { user, client_id: client, action, topic }));
    setAnswer(found ? { ...found, asked: `${user || 'Anybody without a name'} ${found.allowed ? 'may' : 'may not'} ${action === 'publish' ? 'publish to' : 'subscribe to'} ${topic}` } : null);
  };
  return html`<${Card} title="May this client do that?"><form class="stack" onSubmit=${submit}>
    <div class="test-form"><${Field} label="User" value=${user} onInput=${setUser} mono placeholder="none" /><${Field} label="Client id" value=${client} onInput=${setClient} mono placeholder="any" />
      <${Field} label="Wants to" kind="select" value=${action} onInput=${setAction} options=${ACTIONS} /><${Field} label="Topic or filter" value=${topic} onInput=${setTopic} mono required placeholder="plant/line-1/temperature" />
      <button type="submit" class="button primary" disabled=${!topic.trim()}><${Icon} name="access" />Test</button></div>
    <div role="status">${answer && html`<${Banner} kind=${answer.allowed ? 'good' : 'bad'}><b>${answer.asked}.</b> ${answer.text ?? ''}
      ${answer.rule && html`<${Facts} of=${[['Rule', html`<span class="mono">${answer.rule}</span>`], ['Written in', html`<span class="mono">${answer.place}</span>`]]} />`}<//>`}</div>
  </form><//>`;
}
