"""A load over RocketMQ's protocol: producers that batch, and consumers that pull every queue of a topic.

Invariant: a consumer begins at the end of each queue before the first message is sent, commits nothing, and every
connection opened here is closed at the end. Loop rule: everything on one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from threading import Event

from lightmq.cli.bench.meter import LoadReceiver, LoadSender, body
from lightmq.cli.bench.plan import TURN_S, Drain, LoadPlan, announce, ended_by_ctrl_c
from lightmq.cli.connections import Broker, ServerTarget, brokers
from remoting import clock
from remoting.client.admin import topic_fields
from remoting.client.batching import AsyncProducer, Message, ProducerSettings, Sent
from remoting.client.connection import dial_as
from remoting.client.consumer import AsyncConsumer
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection

QUEUES = 4
PULL_COUNT = 512
SETTINGS = ProducerSettings(linger_ms=1)


def measure(target: ServerTarget, plan: LoadPlan) -> tuple[list[LoadSender], list[LoadReceiver], float]:
    """Carry out the plan; the counts and the seconds of sending. Ctrl-C ends the sending early. Raises LightMQError."""
    with brokers(target) as found:
        addresses = [_with_topic(broker, plan.topic) for broker in found]
    return asyncio.run(_measure(target, plan, addresses))


def _with_topic(broker: Broker, topic: str) -> str:
    """Create the topic on a broker; its address."""
    broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=topic_fields(topic, QUEUES)))
    return broker.address


async def _measure(
    target: ServerTarget, plan: LoadPlan, addresses: list[str]
) -> tuple[list[LoadSender], list[LoadReceiver], float]:
    dial = dial_as(target.security.signer, target.security.client_tls)
    async with contextlib.AsyncExitStack() as stack:

        async def connected(address: str) -> Connection:
            connection = await dial(address)
            stack.push_async_callback(connection.close)
            return connection

        receivers = [LoadReceiver(plan.run) for _ in range(plan.subscribers)]
        pulls: list[asyncio.Task[None]] = []
        for receiver in receivers:
            for address in addresses:
                connection = await connected(address)
                for queue in range(QUEUES):
                    consumer = AsyncConsumer(connection, "lightmq-bench", plan.topic, queue)
                    start = await consumer.max_offset()
                    pulls.append(asyncio.create_task(_pull(consumer, start, receiver)))
        producers = [
            LoadProducer(AsyncProducer(await connected(addresses[number % len(addresses)]), SETTINGS), plan)
            for number in range(plan.publishers)
        ]
        with ended_by_ctrl_c() as ended:
            announce(plan)
            begun_s = clock.monotonic_s()
            await _send(producers, plan, begun_s, ended)
        await _drained(Drain(lambda: sum(each.counted.open for each in producers)))
        seconds = clock.monotonic_s() - begun_s
        wanted = sum(each.counted.acknowledged for each in producers) * plan.subscribers
        await _drained(Drain(lambda: wanted - sum(each.received for each in receivers)))
        for pull in pulls:
            pull.cancel()
        stopped = await asyncio.gather(*pulls, return_exceptions=True)
        failed = [each for each in stopped if isinstance(each, LightMQError)]
        if failed:
            raise failed[0]
    return [each.counted for each in producers], receivers, seconds


class LoadProducer:
    """A producer and what became of its messages."""

    def __init__(self, producer: AsyncProducer, plan: LoadPlan) -> None:
        self.counted = LoadSender()
        self._producer = producer
        self._plan = plan

    async def send(self, number: int) -> None:
        """Send one message. Raises LightMQError when it is not even accepted here."""
        at_ns = clock.monotonic_ns()
        self.counted.sent += 1
        message = Message(topic=self._plan.topic, body=body(self._plan.run, number, self._plan.size_bytes))
        (await self._producer.send(message)).add_done_callback(lambda done: self._decided(at_ns, done))

    def _decided(self, at_ns: int, done: asyncio.Future[Sent]) -> None:
        error = None if done.cancelled() else done.exception()
        self.counted.decided(at_ns, str(error) if error is not None else "")


async def _send(producers: list[LoadProducer], plan: LoadPlan, begun_s: float, ended: Event) -> None:
    number, passed_s = 0, 0.0
    while passed_s < plan.seconds and not ended.is_set():
        passed_s = clock.monotonic_s() - begun_s
        upto = plan.upto(passed_s, number, sum(each.counted.open for each in producers))
        while number < upto:
            await producers[number % len(producers)].send(number)
            number += 1
        await asyncio.sleep(TURN_S)


async def _drained(drain: Drain) -> None:
    while not drain.over():  # noqa: ASYNC110  # what arrives is counted in many places
        await asyncio.sleep(TURN_S)


async def _pull(consumer: AsyncConsumer, offset: int, receiver: LoadReceiver) -> None:
    while True:
        result = await consumer.pull(offset, PULL_COUNT)
        for message in result.messages:
            receiver.take(message.body)
        offset = result.next_offset
