"""When messages are due, the timer that delivers them, and what is counted."""

from __future__ import annotations

import asyncio

from broker.delayed.feature import DelayedFeature
from broker.store.errors import StoreFull
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.names import light_queue_name, parent_topic
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, MQTT_TOPIC_KEY

REASONS = ("not_a_number", "too_far", "too_many", "congested")


def frame(topic: bytes, delay: bytes) -> Command:
    """One MQTT message with a delay."""
    properties = ((MQTT_TOPIC_KEY, topic), (CLIENT_ID_KEY, b"c"), (b"delay-ms", delay))
    entry = encode_image(
        flags=FLAG_MQTT | 1, queue_index=0xFFFF, born_ms=1, topic=parent_topic(topic), properties=properties,
        body=b"x",
    )  # fmt: skip
    return Command(RequestCode.APPEND_MANY, body=b"".join([entry]))


def stored(bench, topic: bytes) -> int:
    queue = bench.store.queues.find(light_queue_name(topic))
    return 0 if queue is None else bench.store.reading.bounds(queue)[1]


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def test_it_delivers_when_the_time_has_come(running) -> None:
    """Acknowledged at once, seen later; the timer sleeps by itself in between."""
    running.broker.delayed.start()
    reply = await running.connect().request(frame(b"a/b", b"40"))
    assert reply.code == 0
    assert running.broker.delayed.messages.waiting == 1
    assert stored(running, b"a/b") == 0
    await asyncio.sleep(0.05)  # real time passes, the broker's clock does not
    assert stored(running, b"a/b") == 0
    running.clock.advance_ms(40)
    await until(lambda: stored(running, b"a/b") == 1)
    running.broker.delayed.stop()


async def test_a_failed_pass_is_repeated(running, monkeypatch) -> None:
    """Counted; nothing is lost."""
    monkeypatch.setattr("broker.delayed.feature.RETRY_S", 0.01)
    await running.connect().request(frame(b"a/b", b"40"))
    running.clock.advance_ms(40)
    due, calls = running.broker.delayed.messages.due, []

    def failing(now_ms: int) -> bool:
        calls.append(now_ms)
        if len(calls) < 3:
            raise StoreFull("full")
        return due(now_ms)

    monkeypatch.setattr(running.broker.delayed.messages, "due", failing)
    running.broker.delayed.start()
    await until(lambda: stored(running, b"a/b") == 1)
    assert running.registry.values()["rocketmq_delayed_failures_total"] == 2
    running.broker.delayed.stop()


async def test_a_delay_that_cannot_be_granted_is_refused_alone(running) -> None:
    """Too far away, or not a number."""
    connection = running.connect()
    for delay in (b"999999999999", b"soon"):
        assert (await connection.request(frame(b"a/b", delay))).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await connection.request(frame(b"a/b", b"0"))).code == 0
    assert stored(running, b"a/b") == 1
    values = running.registry.values()
    refused = {reason: values[f"rocketmq_delayed_refused_messages_total{{{reason}}}"] for reason in REASONS}
    assert refused == {"not_a_number": 1, "too_far": 1, "too_many": 0, "congested": 0}


async def test_what_waited_before_is_counted_by_second_in_upkeep(running) -> None:
    await running.connect().request(frame(b"a/b", b"40"))
    await running.restart()
    values = running.registry.values()
    assert values["rocketmq_delayed_second_messages_max"] == 0
    assert values["rocketmq_delayed_messages_by_delay{5m}"] == 1
    running.broker.maintain(running.clock.now_ms())
    assert running.registry.values()["rocketmq_delayed_second_messages_max"] == 1


async def test_waiting_messages_are_hidden_from_readers(running) -> None:
    """Their queue does not exist for them."""
    await running.connect().request(frame(b"a/b", b"40"))
    (queue,) = running.broker.delayed.messages.buckets.queues
    assert running.broker.topics.visible.hidden(queue)
    assert running.broker.topics.visible.end(queue) == 0


async def test_what_became_due_while_the_broker_was_down_is_delivered_first(running) -> None:
    """After a restart, without any request."""
    await running.connect().request(frame(b"a/b", b"40"))
    running.clock.advance_ms(1_000_000)
    await running.restart()
    assert running.broker.delayed.messages.waiting == 1
    running.broker.delayed.start()
    await until(lambda: stored(running, b"a/b") == 1)
    running.broker.delayed.stop()


async def test_an_internal_error_stops_no_other_message(running, monkeypatch) -> None:
    """It is reported, and the next pass runs."""
    monkeypatch.setattr("broker.delayed.feature.RETRY_S", 0.01)
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what["exception"]))
    await running.connect().request(frame(b"a/b", b"40"))
    running.clock.advance_ms(40)
    due, faults = running.broker.delayed.messages.due, [RuntimeError("a fault")]

    def failing(now_ms: int) -> bool:
        if faults:
            raise faults.pop()
        return due(now_ms)

    monkeypatch.setattr(running.broker.delayed.messages, "due", failing)
    running.broker.delayed.start()
    await until(lambda: stored(running, b"a/b") == 1)
    assert [str(error) for error in reported] == ["a fault"]
    running.broker.delayed.stop()


async def test_what_waits_is_on_the_metrics_page(running) -> None:
    delayed = running.broker.delayed
    assert isinstance(delayed, DelayedFeature)
    fields = {"producerGroup": "g", "topic": "t", "queueId": "0", "defaultTopicQueueNums": "1"}
    fields |= {"properties": "DELAY\x013\x02", "bornTimestamp": "1"}
    await running.connect().request(Command(RequestCode.SEND_MESSAGE, fields=fields, body=b"later"))
    values = running.registry.values()
    assert (values["rocketmq_delayed_messages"], values["rocketmq_delayed_delivered_messages_total"]) == (1, 0)
    assert not running.broker.topics.hidden.isdisjoint(delayed.messages.buckets.queues)
    delayed.start()
    delayed.stop()
    assert delayed.maintain(running.clock.now_ms()) == delayed.status() == {}
