// @ts-check
/** The views and where they stand in the navigation; the one table that navigation, palette and routing read. */
import { Access } from '../views/access.js';
import { Alarms } from '../views/alarms.js';
import { Audit } from '../views/audit.js';
import { Clients } from '../views/clients.js';
import { Cluster } from '../views/cluster.js';
import { DeadLetters } from '../views/deadletters.js';
import { Delayed } from '../views/delayed.js';
import { Groups } from '../views/groups.js';
import { Live } from '../views/live.js';
import { Overview } from '../views/overview.js';
import { Quotas } from '../views/quotas.js';
import { Retained } from '../views/retained.js';
import { Spark } from '../views/spark.js';
import { Topics } from '../views/topics.js';
import { Trace } from '../views/trace.js';

/** @typedef {{ view: string, name: string, icon: string, of: any, words?: string }} Place */
/** @type {[string, Place[]][]} */
export const PLACES = [
  ['Now', [
    { view: 'overview', name: 'Overview', icon: 'overview', of: Overview, words: 'home rates throughput' },
    { view: 'live', name: 'Live values', icon: 'live', of: Live, words: 'sensors tiles dashboard' },
    { view: 'alarms', name: 'Alarms', icon: 'alarms', of: Alarms, words: 'alerts warnings' },
  ]],
  ['Messages', [
    { view: 'topics', name: 'Topics', icon: 'topics', of: Topics, words: 'tree tail publish history' },
    { view: 'retained', name: 'Retained', icon: 'retained', of: Retained, words: 'last value' },
    { view: 'delayed', name: 'Delayed', icon: 'delayed', of: Delayed, words: 'timers scheduled' },
    { view: 'dead-letters', name: 'Dead letters', icon: 'dead', of: DeadLetters, words: 'dlq failed resend' },
    { view: 'trace', name: 'Trace', icon: 'trace', of: Trace, words: 'follow one message' },
  ]],
  ['Readers', [
    { view: 'clients', name: 'Clients', icon: 'clients', of: Clients, words: 'connections sessions devices kick' },
    { view: 'groups', name: 'Queues & groups', icon: 'groups', of: Groups, words: 'lag consumers offsets reset skip' },
    { view: 'spark', name: 'Spark', icon: 'spark', of: Spark, words: 'queries streaming batch' },
  ]],
  ['Server', [
    { view: 'cluster', name: 'Cluster', icon: 'cluster', of: Cluster, words: 'brokers roles epochs controllers proxies' },
    { view: 'access', name: 'Access', icon: 'access', of: Access, words: 'acl rules permissions test' },
    { view: 'quotas', name: 'Quotas & refusals', icon: 'quotas', of: Quotas, words: 'limits rejected reasons' },
    { view: 'audit', name: 'Audit', icon: 'audit', of: Audit, words: 'acts who did what' },
  ]],
];

/** @type {Map<string, Place>} */
export const BY_VIEW = new Map(PLACES.flatMap(([, places]) => places.map((place) => [place.view, place])));
