// RocketMQ's Node.js gRPC client: sends, a simple consumer, a push consumer. Arguments: the folder with the package, the
// endpoint. Prints one JSON line and ends.
const path = require('node:path');
const { Producer, SimpleConsumer, PushConsumer, ConsumeResult } = require(
  path.join(process.argv[2], 'node_modules', 'rocketmq-client-nodejs'));
const endpoints = process.argv[3];
const DEADLINE_MS = 30_000;

async function main() {
  const producer = new Producer({ endpoints, namespace: '', topics: ['orders'] });
  await producer.startup();
  const bodies = ['0', '1', '2', '3'];
  for (const body of bodies) {
    await producer.send({ topic: 'orders', tag: 'a', keys: ['k' + body], body: Buffer.from(body) });
  }
  const subscriptions = new Map([['orders', '*']]);
  const simple = new SimpleConsumer({ endpoints, namespace: '', consumerGroup: 'simple', subscriptions });
  await simple.startup();
  const received = [];
  const deadline = Date.now() + DEADLINE_MS;
  while (received.length < bodies.length && Date.now() < deadline) {
    for (const message of await simple.receive(10, 15_000)) {
      received.push(message.body.toString());
      await simple.ack(message);
    }
  }
  const pushed = [];
  await new Promise((resolve, reject) => {
    const listener = {
      async consume(message) {
        pushed.push(message.body.toString());
        if (pushed.length === bodies.length) resolve();
        return ConsumeResult.SUCCESS;
      },
    };
    const consumer = new PushConsumer({
      endpoints, namespace: '', consumerGroup: 'pushed', subscriptions, messageListener: listener,
    });
    setTimeout(resolve, DEADLINE_MS);
    consumer.startup().catch(reject);
  });
  process.stdout.write(JSON.stringify({ received: received.sort(), pushed: pushed.sort() }) + '\n', () => process.exit(0));
}

main().catch(error => {
  process.stderr.write(`${error.stack}\n`, () => process.exit(1));
});
