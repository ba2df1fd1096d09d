// What the client ali-ons can do with a server, one scenario after the other. Arguments: the folder that has its package,
// name server, then the scenarios to run (none: all). Prints `NAME ok` or `NAME failed: REASON` for each and ends with status 0. With
// ACCESS_KEY and SECRET_KEY in the environment, every client signs its requests.
'use strict';

const packages = { paths: [process.argv[2]] };
const { Consumer, Message, Producer } = require(require.resolve('ali-ons', packages));
const httpclient = require(require.resolve('urllib', packages));

const COUNT = 40;
const DEADLINE_MS = 60_000;
const [nameServer, ...wanted] = process.argv.slice(3);
const quiet = { debug() {}, info() {}, warn() {}, error() {} };
const common = {
  httpclient,
  nameSrv: nameServer,
  accessKeyId: process.env.ACCESS_KEY || 'anyone',
  accessKeySecret: process.env.SECRET_KEY || 'nothing',
  logger: quiet,
};

let producer;

function numbered(topic, number) {
  const made = new Message(topic, number % 2 ? 'odd' : 'even', String(number));
  made.keys = [`key-${number}`];
  made.properties.number = String(number);
  return made;
}

async function send(made) {
  const result = await producer.send(made);
  if (result.sendStatus !== 'SEND_OK') throw new Error(`status ${result.sendStatus}`);
}

async function sendNumbers(topic) {
  for (let number = 0; number < COUNT; number++) await send(numbered(topic, number));
}

// What a new group gets of a topic, in the order of arrival, once `enough` says so.
async function consume(topic, selector, enough, handle = async () => undefined) {
  const received = [];
  const consumer = new Consumer({ ...common, consumerGroup: `${topic}_readers`, instanceName: topic });
  consumer.on('error', () => undefined);
  let done;
  const all = new Promise(resolve => { done = resolve; });
  consumer.subscribe(topic, selector, async msg => {
    received.push({ body: msg.body.toString(), times: msg.reconsumeTimes });
    const action = await handle(msg);
    if (enough(received)) done();
    return action;
  });
  await consumer.ready();
  let timer;
  const late = new Promise((_resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`not everything came: ${received.length} messages`)), DEADLINE_MS);
  });
  try {
    await Promise.race([all, late]);
  } finally {
    clearTimeout(timer);
    await consumer.close();
  }
  return received;
}

const distinct = received => new Set(received.map(each => each.body));
const atLeast = wantedCount => received => distinct(received).size >= wantedCount;

async function expectNumbers(topic, selector, isWanted) {
  const numbers = [...Array(COUNT).keys()].filter(isWanted).map(String);
  const received = distinct(await consume(topic, selector, atLeast(numbers.length)));
  const wrong = [...received].filter(body => !numbers.includes(body));
  if (wrong.length) throw new Error(`${wrong} came too`);
}

const scenarios = {
  async sync(topic) {
    await sendNumbers(topic);
    await expectNumbers(topic, '*', () => true);
  },
  async tags(topic) {
    await sendNumbers(topic);
    await expectNumbers(topic, 'even || other', number => number % 2 === 0);
  },
  async sql(topic) {
    await sendNumbers(topic);
    const selector = { expressionType: 'SQL92', subString: 'number >= 10' };
    await expectNumbers(topic, selector, number => number >= 10);
  },
  async delay_level(topic) {
    const due = Date.now() + 5_000;
    const made = numbered(topic, 1);
    made.delayTimeLevel = 2;
    await send(made);
    await consume(topic, '*', atLeast(1));
    if (Date.now() < due - 50) throw new Error(`${due - Date.now()} ms too early`);
  },
  async retry(topic) {
    await send(numbered(topic, 1));
    const later = async msg => (msg.reconsumeTimes === 0 ? Consumer.ACTION_RETRY : undefined);
    const received = await consume(topic, '*', all => all.length >= 2, later);
    if (received[1].times !== 1) throw new Error(`repeat ${received[1].times}`);
  },
};

async function main() {
  producer = new Producer({ ...common, producerGroup: 'ali_ons_producer' });
  producer.on('error', () => undefined);
  await producer.ready();
  for (const [name, run] of Object.entries(scenarios)) {
    if (wanted.length && !wanted.includes(name)) continue;
    try {
      await run(`ali_ons_${name}`);
      console.log(`${name} ok`);
    } catch (error) {
      console.log(`${name} failed: ${String(error && error.message || error).replace(/\n/g, ' ')}`);
    }
  }
  process.exit(0);
}

main().catch(error => {
  console.log(`no producer: ${error.message}`);
  process.exit(1);
});
