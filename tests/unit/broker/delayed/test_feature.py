"""When messages are due, the timer that delivers them, and what is counted."""

from __future__ import annotations

import asyncio

import pytest

from broker.delayed.feature import DelayedFeature, due_ms
from broker.store.errors import StoreFull
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.names import light_queue_name, parent_topic
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, MQTT_TOPIC_KEY, RecordView

NOW = 1_000_000
REASONS = ("not_a_number", "too_far", "too_many", "congested")


def image(*properties: tuple[bytes, bytes], flags: int = 0) -> RecordView:
    """An image with these properties."""
    return RecordView(encode_image(flags=flags, born_ms=1, topic=b"t", properties=properties, body=b"x"))


@pytest.mark.parametrize(
    ("key", "value", "due"),
    [
        (b"TIMER_DELAY_MS", b"1500", NOW + 1_500),
        (b"TIMER_DELAY_SEC", b"3", NOW + 3_000),
        (b"TIMER_DELIVER_MS", b"5", 5),
        (b"DELAY", b"1", NOW + 1_000),
        (b"DELAY", b"4", NOW + 30_000),
        (b"DELAY", b"18", NOW + 7_200_000),
        (b"DELAY", b"99", NOW + 7_200_000),
        (b"DELAY", b"0", None),
        (b"delay-ms", b"5", None),
        (b"OTHER", b"TIMER_DELAY_MS", None),
    ],
)
def test_rocketmq_properties(key: bytes, value: bytes, due: int | None) -> None:
    """Relative ones count from now."""
    assert due_ms(image((b"first", b"x"), (key, value)), NOW) == due


def test_a_timer_property_takes_precedence_over_a_level() -> None:
    """And a delay over a time."""
    one = image((b"DELAY", b"2"), (b"TIMER_DELAY_SEC", b"7"), (b"TIMER_DELIVER_MS", b"9"))
    assert due_ms(one, NOW) == NOW + 7_000


def test_mqtt_has_its_own_property() -> None:
    """RocketMQ's names mean nothing there."""
    assert due_ms(image((b"delay-ms", b"250"), (b"DELAY", b"3"), flags=FLAG_MQTT), NOW) == NOW + 250
    assert due_ms(image((b"DELAY", b"3"), flags=FLAG_MQTT), NOW) is None


@pytest.mark.parametrize("value", [b"-1", b"1.5", b"soon", b" 1", b"9" * 16, "٣".encode()])
def test_what_is_not_a_number_is_refused(value: bytes) -> None:
    """It is never taken for now."""
    for key, flags in ((b"delay-ms", FLAG_MQTT), (b"DELAY", 0), (b"TIMER_DELIVER_MS", 0)):
        with pytest.raises(Refused, match=key.decode()):
            due_ms(image((key, value), flags=flags), NOW)


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
