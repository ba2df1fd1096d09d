// @ts-check
/** Topics: the tree, level by level as it is opened; beside it one topic with its live tail, publish box and history. */
import { part } from '../core/api.js';
import { count } from '../core/format.js';
import { html, useEffect, useState } from '../core/lib.js';
import { adjust } from '../core/router.js';
import { usePaged, useResource, useSettled } from '../core/resource.js';
import { Field, Search } from '../parts/field.js';
import { Icon } from '../parts/icon.js';
import { Page } from '../parts/page.js';
import { Empty, Shown } from '../parts/states.js';
import { Pager } from '../parts/table.js';
import { PublishBox } from '../parts/publish.js';
import { Messages, Tail } from '../parts/tail.js';

/** @param {{ route: import('../core/router.js').Route }} props */
export function Topics({ route }) {
  const topic = route.params.topic ?? '';
  const tab = route.params.tab ?? 'tail';
  const choose = (/** @type {string} */ chosen) => adjust({ topic: chosen, tab: tab === 'publish' ? 'publish' : '' });
  return html`<${Page} title="Topics" about="Open a level to see what is below it; choose a topic to watch its messages arrive.">
    <div class="split">
      <${Tree} chosen=${topic} onChoose=${choose} />
      <div class="stack"><${Chosen} key=${topic} topic=${topic} tab=${tab} /></div>
    </div><//>`;
}

/** @param {{ chosen: string, onChoose: (topic: string) => void }} props */
function Tree({ chosen, onChoose }) {
  const [search, setSearch] = useState('');
  const settled = useSettled(search);
  return html`<section class="card" aria-label="Topic tree">
    <div class="toolbar"><${Search} value=${search} onInput=${setSearch} label="Search by any part of the name" /></div>
    <div class="tree">
      <button type="button" class=${`leaf all ${chosen === '' ? 'on' : ''}`} aria-pressed=${chosen === ''} onClick=${() => onChoose('')}><${Icon} name="topics" />All topics</button>
      <${Level} key=${settled} parent="" search=${settled} chosen=${chosen} onChoose=${onChoose} />
    </div>
  </section>`;
}

/** @param {{ parent: string, search: string, chosen: string, onChoose: (topic: string) => void }} props */
function Level({ parent, search, chosen, onChoose }) {
  const level = usePaged('/topics', { parent, search }, { limit: 100, everyMs: parent ? 0 : 5000 });
  return html`<${Shown} of=${level} rows=${3} isEmpty=${level.items.length === 0 && !level.more} empty=${html`<p class="small quiet pad">${search ? `No topic has “${search}” in its name.` : 'No topics yet. The first message makes the first one.'}</p>`}>${() => html`
    ${level.items.length === 0 && html`<p class="small quiet pad">No match among the names looked at so far; the next page looks further.</p>`}
    <ul class="level">${level.items.map((node) => html`<${Node} key=${node.topic} node=${node} chosen=${chosen} onChoose=${onChoose} />`)}</ul>
    <${Pager} of=${level} noun="topics" />`}<//>`;
}

/** @param {{ node: any, chosen: string, onChoose: (topic: string) => void }} props */
function Node({ node, chosen, onChoose }) {
  const [open, setOpen] = useState(chosen.startsWith(`${node.topic}/`));
  const has = Boolean(node.children);
  return html`<li>
    <div class="node">
      ${has ? html`<button type="button" class="twist" aria-expanded=${open} aria-label=${`${open ? 'Close' : 'Open'} ${node.topic}`} onClick=${() => setOpen(!open)}><${Icon} name=${open ? 'down' : 'right'} /></button>` : html`<span class="twist"></span>`}
      <button type="button" class=${`leaf ${chosen === node.topic ? 'on' : ''}`} aria-pressed=${chosen === node.topic} title=${node.topic} onClick=${() => onChoose(node.topic)}>
        <span class="clip mono">${node.level || html`<i>(empty)</i>`}</span>
        ${node.retained ? html`<span class="pin" title="Has a retained message"><${Icon} name="retained" /><span class="spoken">retained</span></span>` : ''}
        <span class="figure number">${node.exists ? count(node.messages) : has ? `${count(node.below)} below` : ''}</span>
      </button>
    </div>
    ${open && html`<${Level} parent=${node.topic} search="" chosen=${chosen} onChoose=${onChoose} />`}
  </li>`;
}

/** @type {[string, string][]} */
const TABS = [['tail', 'Live tail'], ['publish', 'Publish'], ['history', 'History']];

/** @param {{ topic: string, tab: string }} props */
function Chosen({ topic, tab }) {
  const [filter, setFilter] = useState(topic ? topic : '#');
  useEffect(() => setFilter(topic || '#'), [topic]);
  const tabs = topic ? TABS : TABS.slice(0, 2);
  const shown = tabs.some(([key]) => key === tab) ? tab : 'tail';
  return html`<section class="card" aria-label=${topic || 'All topics'}>
    <header class="title"><h2 class="mono clip" title=${topic}>${topic || 'All topics'}</h2></header>
    <div class="tabs" role="tablist" aria-label="What is shown" onKeyDown=${(/** @type {KeyboardEvent} */ event) => turn(event, tabs.map(([key]) => key), shown)}>
      ${tabs.map(([key, name]) => html`<button type="button" role="tab" id=${`tab-${key}`} aria-controls="tabpanel" aria-selected=${key === shown} tabindex=${key === shown ? 0 : -1} onClick=${() => adjust({ tab: key })}>${name}</button>`)}
    </div>
    <div role="tabpanel" id="tabpanel" aria-labelledby=${`tab-${shown}`}>
      ${shown === 'tail' && html`<${Tail} filter=${filter} onFilter=${setFilter} topic=${topic} />`}
      ${shown === 'publish' && html`<div class="body pad"><${PublishBox} topic=${topic} /></div>`}
      ${shown === 'history' && html`<${Past} topic=${topic} />`}
    </div>
  </section>`;
}

/** Arrow keys move between tabs. @param {KeyboardEvent} event @param {string[]} keys @param {string} shown */
function turn(event, keys, shown) {
  const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
  if (!step) return;
  event.preventDefault();
  const next = keys[(keys.indexOf(shown) + step + keys.length) % keys.length];
  adjust({ tab: next });
  requestAnimationFrame(() => document.getElementById(`tab-${next}`)?.focus());
}

/** @param {{ topic: string }} props */
function Past({ topic }) {
  const [number, setNumber] = useState('50');
  const found = useResource(`/topics/${part(topic)}`, { history: number });
  const messages = found.data?.messages ?? [];
  return html`<div class="toolbar pad"><div class="window"><${Field} label="How many" kind="select" value=${number} onInput=${setNumber} options=${[['20', 'the last 20'], ['50', 'the last 50'], ['200', 'the last 200']]} /></div>
      <span class="grow"></span><button type="button" class="button" onClick=${found.reload}><${Icon} name="refresh" />Read again</button></div>
    <${Shown} of=${found} isEmpty=${messages.length === 0} empty=${html`<${Empty} icon="message" title="No message is kept"><p>What was published to <code>${topic}</code> is older than the log's retention, or is on the levels below.</p><//>`}>${() => html`<${Messages} of=${messages} />`}<//>`;
}
