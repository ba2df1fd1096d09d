// @ts-check
/** Access: the rules in force, and a box that asks the server what one client may do and by which rule. */
import { post } from '../core/api.js';
import { count } from '../core/format.js';
import { html, useState } from '../core/lib.js';
import { usePaged, useSettled } from '../core/resource.js';
import { attempt } from '../core/say.js';
import { Field, Search } from '../parts/field.js';
import { Icon } from '../parts/icon.js';
import { Badge, Banner, Card, Facts, Page } from '../parts/page.js';
import { Empty } from '../parts/states.js';
import { List } from '../parts/table.js';

export function Access() {
  const [search, setSearch] = useState('');
  const settled = useSettled(search);
  const page = usePaged('/access/rules', { search: settled });
  const columns = [
    { name: 'No.', right: true, of: (/** @type {any} */ one) => count(one.number ?? one.line) },
    { name: 'Verdict', of: (/** @type {any} */ one) => html`<${Badge} kind=${allows(one) ? 'good' : 'bad'}>${allows(one) ? 'allow' : 'deny'}<//>` },
    { name: 'Who', lead: true, of: (/** @type {any} */ one) => html`<span class="mono">${one.who ?? one.user ?? one.subject ?? 'everybody'}</span>` },
    { name: 'May', of: (/** @type {any} */ one) => (Array.isArray(one.actions ?? one.action) ? (one.actions ?? one.action).join(', ') : one.actions ?? one.action ?? 'everything') },
    { name: 'Where', of: (/** @type {any} */ one) => html`<span class="mono">${Array.isArray(one.topics ?? one.topic) ? (one.topics ?? one.topic).join(', ') : one.topics ?? one.topic ?? one.resource ?? '#'}</span>` },
    { name: 'Written in', of: (/** @type {any} */ one) => html`<span class="mono small faint">${one.file ? `${one.file}${one.line ? `:${one.line}` : ''}` : '–'}</span>` },
  ];
  return html`<${Page} title="Access" about="Who may publish, subscribe and administrate: the rules as the server applies them now, the first match decides.">
    <${TestBox} />
    <${List} of=${page} columns=${columns} rowKey=${(/** @type {any} */ one) => `${one.file}${one.number ?? one.line}${one.who ?? one.user}${one.topic ?? one.topics}`} caption="Rules in force" noun="rules"
      toolbar=${html`<h2>Rules in force</h2><span class="grow"></span><${Search} value=${search} onInput=${setSearch} label="Search rules" />`}
      empty=${html`<${Empty} icon="access" title=${settled ? 'No rule matches' : 'No access list'}><p>${settled ? '' : 'Without an access list everybody on this machine may do everything, and nobody from elsewhere may connect.'}</p><//>`} />
  <//>`;
}

/** @param {any} one */
const allows = (one) => one.allow === true || one.effect === 'allow' || one.verdict === 'allow' || one.permission === 'allow';

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
    const found = await attempt('The server answered', () => post('/access/test', { user, client_id: client, action, topic }));
    setAnswer(found ? { ...found, asked: `${user || 'Anybody without a name'} ${found.allowed ? 'may' : 'may not'} ${action === 'publish' ? 'publish to' : 'subscribe to'} ${topic}` } : null);
  };
  return html`<${Card} title="May this client do that?"><form class="stack" onSubmit=${submit}>
    <div class="test-form"><${Field} label="User" value=${user} onInput=${setUser} mono placeholder="none" /><${Field} label="Client id" value=${client} onInput=${setClient} mono placeholder="any" />
      <${Field} label="Wants to" kind="select" value=${action} onInput=${setAction} options=${ACTIONS} /><${Field} label="Topic or filter" value=${topic} onInput=${setTopic} mono required placeholder="plant/line-1/temperature" />
      <button type="submit" class="button primary" disabled=${!topic.trim()}><${Icon} name="access" />Test</button></div>
    <div role="status">${answer && html`<${Banner} kind=${answer.allowed ? 'good' : 'bad'}><b>${answer.asked}.</b> ${answer.reason ?? ''}
      ${(answer.rule || answer.file) && html`<${Facts} of=${[['Rule', html`<span class="mono">${typeof answer.rule === 'object' ? JSON.stringify(answer.rule) : answer.rule ?? '–'}</span>`], ['Written in', html`<span class="mono">${answer.file ? `${answer.file}${answer.line ? `, line ${answer.line}` : ''}` : '–'}</span>`]]} />`}<//>`}</div>
  </form><//>`;
}
