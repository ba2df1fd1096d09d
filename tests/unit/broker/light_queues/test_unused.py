"""Light queues end once their messages have expired and nobody uses them; a name that returns begins a new queue."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.light_queues.unused import SWEEPS_PER_EXPIRY
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from remoting.protocol.records.record import FLAG_RETAIN
from tests.support.clock import ManualClock
from tests.support.plants import Plant, catches
from tests.unit.broker import conftest
from tests.unit.broker.conftest import BrokerBench
from tests.unit.broker.light_queues.sessions import feature, open_session, subscribe, unsubscribe

RETENTION_MS, EXPIRY_MS = 10_000, 600_000
FILLER = b"filler/0"
IN_USE = "broker.light_queues.feature:LightQueueFeature._in_use"


@pytest.fixture
async def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BrokerBench]:
    """A broker whose log files expire soon."""
    settings = dataclasses.replace(
        conftest.SETTINGS, segment_size_bytes=65_536, first_segment_size_bytes=65_536, retention_ms=RETENTION_MS,
        index_tail_entries=256,
    )  # fmt: skip
    monkeypatch.setattr(conftest, "SETTINGS", settings)
    bench = BrokerBench(tmp_path / "data", ManualClock())
    yield bench
    bench.store.close()


async def publish(running: BrokerBench, topic: bytes, body: bytes = b"x", flags: int = 1) -> None:
    image = encode_mqtt_image(topic, body, flags, 1_000, b"device")
    assert (await running.connect().request(Command(Code.APPEND_MANY, body=image))).code == 0


async def expire(running: BrokerBench) -> None:
    """Let all messages so far expire, and fill the log with others."""
    await running.settle()
    before = running.store.end_position
    for _ in range(6):
        await publish(running, FILLER, bytes(30_000))
    running.clock.advance_ms(2 * RETENTION_MS)
    for _ in range(400):
        running.store.maintain(running.clock.now_ms())
        await running.settle()
        running.store._site.thread.drain()
        await asyncio.sleep(0)
        if running.store.begin_position >= before:
            return
    raise AssertionError("nothing expired")


async def end(running: BrokerBench, wait_ms: int = EXPIRY_MS) -> int:
    """Look at all queues, wait, and end those without use."""
    found = feature(running)
    running.clock.advance_ms(EXPIRY_MS // SWEEPS_PER_EXPIRY)
    ended = found.step(running.clock.now_ms())
    running.clock.advance_ms(wait_ms)
    ended += found.step(running.clock.now_ms())
    await running.settle()
    return ended


def queue(running: BrokerBench, topic: str) -> int | None:
    return running.store.queues.find(b"%LMQ%" + topic.replace("/", "%2F").encode())


async def test_a_topic_without_messages_ends_and_returns_as_a_new_queue(small: BrokerBench) -> None:
    await publish(small, b"plant/1")
    before = queue(small, "plant/1")
    assert await end(small) == 0, "its message has not expired"
    await expire(small)
    assert await end(small, EXPIRY_MS - 1) == 0
    small.clock.advance_ms(1)
    feature(small).step(small.clock.now_ms())
    assert queue(small, "plant/1") is None
    await publish(small, b"plant/1", b"again")
    after = queue(small, "plant/1")
    assert before is not None
    assert after is not None
    assert after > before
    assert small.store.reading.bounds(after) == (0, 1)
    assert bytes(small.store.reading.read(after, 0, 1, 100).records[0]).endswith(b"again\0\0\0")


async def test_what_has_ended_has_ended_after_a_restart_and_without_index_and_snapshot(small: BrokerBench) -> None:
    for number in range(50):
        await publish(small, b"plant/%d" % number)
    await expire(small)
    assert await end(small) == 50
    free = small.store.queues.ids_end
    await small.restart()
    assert queue(small, "plant/7") is None
    assert small.store.queues.ids_end == free
    await small.settle()
    small.store.close()
    shutil.rmtree(small.store.directory / "index")
    shutil.rmtree(small.store.directory / "state")
    small.start()
    assert queue(small, "plant/7") is None
    await publish(small, b"plant/7")
    assert queue(small, "plant/7") == free


async def test_a_queue_that_is_used_stays(small: BrokerBench) -> None:
    session = await open_session(small, "reader", "reader")
    assert (await subscribe(small, session, "plant/subscribed")).code < 0x80
    for name in (b"plant/subscribed", b"plant/offset", b"plant/gone"):
        await publish(small, name)
    await publish(small, b"plant/retained", flags=1 | FLAG_RETAIN)
    connection = small.connect()
    fields = {"consumerGroup": "g", "topic": "%LMQ%plant%2Foffset", "queueId": "0", "commitOffset": "1"}
    assert (await connection.request(Command(Code.UPDATE_CONSUMER_OFFSET, fields=fields))).code == 0
    await expire(small)
    assert await end(small) == 1
    kept = ("plant/subscribed", "plant/offset", "plant/retained")
    assert queue(small, "plant/gone") is None
    assert all(queue(small, name) is not None for name in kept)
    await unsubscribe(session, "plant/subscribed")
    assert await end(small, EXPIRY_MS - EXPIRY_MS // SWEEPS_PER_EXPIRY - 1) == 0, "its subscription has only just ended"


@catches(
    Plant("left-is-gone", "broker.light_queues.unused:UnusedQueues._offsets_to_end", "queue in self._left_ms or", ""),
)
async def test_a_queue_whose_subscriber_has_just_left_stays(small: BrokerBench) -> None:
    """It has been empty for long, and was looked at for that, when the subscription ends; a proxy may come back."""
    session = await open_session(small, "reader", "reader")
    await subscribe(small, session, "plant/1")
    await publish(small, b"plant/1")
    await expire(small)
    found, sweep_ms = feature(small), EXPIRY_MS // SWEEPS_PER_EXPIRY
    small.clock.advance_ms(sweep_ms)
    found.step(small.clock.now_ms())
    small.clock.advance_ms(EXPIRY_MS - 1_000)
    await unsubscribe(session, "plant/1")
    small.clock.advance_ms(1_000)
    assert found.step(small.clock.now_ms()) == 0
    assert queue(small, "plant/1") is not None
    small.clock.advance_ms(EXPIRY_MS)
    assert found.step(small.clock.now_ms()) + await end(small) == 1


@catches(
    Plant("filters-are-unused", IN_USE, "subscriptions.filters.find(topic) == queue_id or", ""),
    Plant("lite-topics-are-unused", IN_USE, "return parent is not None and parent.takes_lite", "return False"),
    Plant("waiting-is-no-use", IN_USE, "or self._long_polls.waited_for(queue_id)", ""),
)
async def test_what_a_filter_a_parent_topic_or_a_request_needs_stays(small: BrokerBench) -> None:
    """The queue of a wildcard filter, which has an expiry of its own; a lite topic; one that a pull waits for."""
    session, connection = await open_session(small, "reader", "reader"), small.connect()
    await subscribe(small, session, "plant/+/filter")
    await unsubscribe(session, "plant/+/filter")
    named = {"topic": "agents", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    named["attributes"] = "+message.type=LITE"
    assert (await connection.request(Command(Code.UPDATE_AND_CREATE_TOPIC, fields=named))).code == 0
    group = Command(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"g","consumeEnable":true}')
    assert (await connection.request(group)).code == 0
    for name in (b"plant/x/filter", b"agents/one", b"plant/polled"):
        await publish(small, name)
    await expire(small)
    fields = {
        "consumerGroup": "g", "topic": "%LMQ%plant%2Fpolled", "queueId": "0", "queueOffset": "1", "maxMsgNums": "1",
        "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "20000000", "subscription": "*",
    }  # fmt: skip
    pulling = asyncio.create_task(small.connect().request(Command(Code.PULL_MESSAGE, fields=fields)))
    while not feature(small)._long_polls.waited_for(queue(small, "plant/polled")):
        assert not pulling.done(), pulling.result()
        await asyncio.sleep(0)
    assert await end(small) == 1, "the topic that only the filter matches"
    assert all(
        queue(small, name) is not None for name in ("plant/+/filter".replace("+", "%2B"), "agents/one", "plant/polled")
    )
    pulling.cancel()


async def test_an_offset_ends_with_its_queue_and_none_of_an_ended_queue_is_taken(small: BrokerBench) -> None:
    await publish(small, b"plant/1")
    connection = small.connect()
    fields = {"consumerGroup": "g", "topic": "%LMQ%plant%2F1", "queueId": "0", "commitOffset": "1"}
    commit = Command(Code.UPDATE_CONSUMER_OFFSET, fields=fields)
    assert (await connection.request(commit)).code == 0
    await expire(small)
    assert await end(small) == 0
    assert await end(small, small.config.unused_offset_expiry_s * 1_000) == 1
    offsets = small.broker.groups.offsets
    assert offsets.get("g", "%LMQ%plant%2F1", 0) is None
    assert (await connection.request(commit)).code == 0
    assert offsets.get("g", "%LMQ%plant%2F1", 0) is None, "it is behind the end of a queue that is not there"
    assert small.broker.tools.metrics.dropped.child("offset_of_ended_queue").value == 1


async def test_a_message_in_the_same_turn_keeps_its_queue(small: BrokerBench) -> None:
    """What is placed before a queue is looked at goes into that queue; what comes after it goes into the next one."""
    await publish(small, b"plant/1")
    await expire(small)
    found, before = feature(small), queue(small, "plant/1")
    found.step(small.clock.now_ms())
    small.clock.advance_ms(EXPIRY_MS)
    placed = small.broker.publishing.placement.placed(encode_mqtt_image(b"plant/1", b"x", 1, 1_000, b"device"))
    small.broker.publishing.appender.add(placed, lambda *_: None)
    assert found.step(small.clock.now_ms()) == 0
    assert queue(small, "plant/1") == before
    assert small.store.reading.next_offset(before or 0) == 2


async def test_a_master_that_is_not_sure_of_its_log_ends_nothing(
    small: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(small, b"plant/1")
    await expire(small)
    found = feature(small)
    monkeypatch.setattr(small.broker.tools.identity, "started_position", small.store.end_position + 1)
    for _ in range(2):
        assert found.step(small.clock.now_ms()) == 0
        small.clock.advance_ms(EXPIRY_MS)
    assert queue(small, "plant/1") is not None


async def test_ids_of_ended_queues_are_not_looked_at_again(small: BrokerBench) -> None:
    """A sweep takes as many steps as the queues there are need, however many ids were given out before."""
    for first in range(0, 10_000, 500):
        small.store.queues.delete(small.store.queues.open_all([b"%%LMQ%%%d" % (first + at) for at in range(500)]))
    await publish(small, b"plant/late")
    assert small.store.queues.ids_end > 10_000
    found = feature(small)
    steps = 0
    while not found.unused.due(small.clock.now_ms()):
        small.clock.advance_ms(1_000)
    found.step(small.clock.now_ms())
    while found.unused.working:
        steps += 1
        found.step(small.clock.now_ms())
    assert steps <= 2
