// RocketMQ's Node.js gRPC client, one scenario after the other, each with a topic of its name, which must exist.
// Arguments: the folder with the package, the endpoint, scenarios. With the variables MQ_KEY and MQ_SECRET calls are
// signed, with MQ_TLS connections use TLS. Prints one JSON line, {scenario: what happened}, and ends.
const path = require('node:path');
const { Producer, SimpleConsumer, PushConsumer, LitePushConsumerImpl, ConsumeResult } = require(
  path.join(process.argv[2], 'node_modules', 'rocketmq-client-nodejs'));
const DEADLINE_MS = 30_000;
const { MQ_KEY: accessKey, MQ_SECRET: accessSecret, MQ_TLS: tls } = process.env;
const options = { endpoints: process.argv[3], namespace: '', sslEnabled: Boolean(tls) };
if (accessKey) options.sessionCredentials = { accessKey, accessSecret };
const COMMIT = 1;

async function producing(topic, more = {}) {
  const producer = new Producer({ ...options, topics: [topic], ...more });
  await producer.startup();
  return producer;
}

async function received(topic, count) {
  const subscriptions = new Map([[topic, '*']]);
  const consumer = new SimpleConsumer({ ...options, consumerGroup: `${topic}-readers`, subscriptions });
  await consumer.startup();
  const found = [];
  const deadline = Date.now() + DEADLINE_MS;
  while (found.length < count && Date.now() < deadline) {
    for (const message of await consumer.receive(16, 15_000)) {
      found.push(message.body.toString());
      await consumer.ack(message);
    }
  }
  return found;
}

// What a push consumer gets until there are so many; it fails at the first delivery of `failing`, though not where
// order is kept: this client does not know the pauses of RocketMQ's servers, and makes a dead letter of what fails.
function pushed(count, failing, consume) {
  const found = [];
  return new Promise((resolve, reject) => {
    setTimeout(() => resolve(found), DEADLINE_MS);
    const messageListener = {
      async consume(message) {
        const body = message.body.toString();
        found.push(body);
        if (body === failing && message.deliveryAttempt === 1) return ConsumeResult.FAILURE;
        if (found.length >= count) resolve(found);
        return ConsumeResult.SUCCESS;
      },
    };
    consume(messageListener).catch(reject);
  });
}

function pushing(topic) {
  const subscriptions = new Map([[topic, '*']]);
  return messageListener => new PushConsumer({
    ...options, consumerGroup: `${topic}-pushed`, subscriptions, messageListener,
  }).startup();
}

const scenarios = {
  async simple(topic) {
    const producer = await producing(topic);
    for (const body of ['0', '1', '2']) {
      await producer.send({ topic, tag: 'a', keys: ['k' + body], body: Buffer.from(body) });
    }
    return (await received(topic, 3)).sort();
  },
  async push(topic) {
    const producer = await producing(topic);
    for (const body of ['0', '1', '2']) await producer.send({ topic, body: Buffer.from(body) });
    return (await pushed(4, '1', pushing(topic))).sort();
  },
  async fifo(topic) {
    const producer = await producing(topic);
    for (const body of ['0', '1', '2', '3']) {
      await producer.send({ topic, messageGroup: 'g', body: Buffer.from(body) });
    }
    return pushed(4, '', pushing(topic));
  },
  async delayed(topic) {
    const producer = await producing(topic);
    const deliveryTimestamp = new Date(Date.now() + 3_000);
    const receipt = await producer.send({ topic, deliveryTimestamp, body: Buffer.from('recalled') });
    await producer.send({ topic, deliveryTimestamp, body: Buffer.from('delivered') });
    await producer.recallMessage(topic, receipt.recallHandle);
    return received(topic, 1);
  },
  async priority(topic) {
    const producer = await producing(topic);
    for (const body of ['1', '2']) await producer.send({ topic, priority: Number(body), body: Buffer.from(body) });
    return received(topic, 2);
  },
  async transactions(topic) {
    let asked = () => {};
    const check = new Promise(resolve => { asked = resolve; });
    const checker = { async check() { asked(); return COMMIT; } };
    const producer = await producing(topic, { checker });
    for (const outcome of ['commit', 'roll back', 'leave']) {
      const transaction = producer.beginTransaction();
      await producer.send({ topic, body: Buffer.from(outcome) }, transaction);
      if (outcome === 'commit') await transaction.commit();
      if (outcome === 'roll back') await transaction.rollback();
    }
    await check;
    return (await received(topic, 2)).sort();
  },
  async lite(topic) {
    const producer = await producing(topic);
    return pushed(3, '', async messageListener => {
      const consumer = new LitePushConsumerImpl({
        ...options, consumerGroup: `${topic}-pushed`, bindTopic: topic, messageListener,
        subscriptions: new Map([[topic, '*']]),
      });
      await consumer.startup();
      await consumer.subscribeLite('s-1');
      for (const body of ['0', '1', '2']) {
        await producer.send({ topic, liteTopic: 's-2', body: Buffer.from('other') });
        await producer.send({ topic, liteTopic: 's-1', body: Buffer.from(body) });
      }
    });
  },
};

async function main() {
  const found = {};
  for (const name of process.argv.slice(4)) {
    try {
      found[name] = await scenarios[name](name);
    } catch (error) {
      found[name] = String(error.message);
      process.stderr.write(`${error.stack}\n`);
    }
  }
  process.stdout.write(JSON.stringify(found) + '\n', () => process.exit(0));
}

main();
