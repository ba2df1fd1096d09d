"""Publishes without frames: the records, queues, limits and refusals of APPEND_MANY, and one order with them."""

from __future__ import annotations

import asyncio

import pytest

from broker.direct.appends import DirectAppends
from mqtt_proxy.mqtt.codec.packets import Publish
from mqtt_proxy.mqtt.codec.publish import images as images_of
from remoting import inprocess
from remoting.protocol.bodies.follow_body import decode_follow_reply, encode_follow
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.record import RecordView, iter_records


def publishes(*topics: bytes, qos: int = 1, retain: bool = False, payload: bytes = b"x") -> list[Publish]:
    return [Publish(topic, payload, qos, retain, False, 1) for topic in topics]


async def stored(running, *runs: tuple[bytes, int, list[Publish]]) -> Exception | None:
    """What is said of the images of (client id, born_ms, publishes)."""
    done = asyncio.get_running_loop().create_future()
    images = b"".join([images_of(sent, client_id, born_ms, False)[0] for client_id, born_ms, sent in runs])
    DirectAppends(running.broker).append(images, done.set_result)
    assert not done.done(), "never inside the call"
    return await asyncio.wait_for(done, 5)


def records(running, topic: bytes) -> list[RecordView]:
    queue = running.store.queues.open(names.light_queue_name(topic))
    return [RecordView(view) for view in running.store.reading.read(queue, 0, 100, 1 << 20).records]


async def test_the_record_is_the_one_a_frame_makes(running) -> None:
    await running.connect().request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", flags=5)))
    assert await stored(running, (b"device", 1_000, publishes(b"a/1", retain=True))) is None
    framed, direct = records(running, b"a/1")
    assert framed.meta == direct.meta
    assert framed.body == direct.body
    assert framed.flags == direct.flags
    assert framed.born_ms == direct.born_ms
    assert len(framed.dispatch()) == len(direct.dispatch()) == 2
    assert running.registry.values()["rocketmq_messages_in_total"] == 2


async def test_runs_are_appended_in_order_behind_gathered_frames(running) -> None:
    connection = running.connect()
    connection.oneway(Command(RequestCode.APPEND_MANY, body=running.publish(b"t", body=b"0")))
    await asyncio.sleep(0)
    one, two = publishes(b"t", payload=b"1"), publishes(b"t", payload=b"2", qos=0)
    assert await stored(running, (b"c", 1, one), (b"d", 1, two)) is None
    assert [bytes(record.body) for record in records(running, b"t")] == [b"0", b"1", b"2"]


async def test_what_a_frame_is_refused_for_is_refused_here(running) -> None:
    limits = running.config.limits
    long = await stored(running, (b"c", 1, publishes(b"t", payload=b"x" * (limits.message_size_bytes_max + 1))))
    assert isinstance(long, Refused)
    assert "message body" in long.remark
    named = await stored(running, (b"c" * limits.properties_bytes_max, 1, publishes(b"t")))
    assert isinstance(named, Refused)
    assert "properties" in named.remark
    malformed = asyncio.get_running_loop().create_future()
    DirectAppends(running.broker).append(bytes(80), malformed.set_result)
    assert (await asyncio.wait_for(malformed, 5)).code == ResponseCode.MESSAGE_ILLEGAL
    assert running.store.end_position == running.store.confirm_position


@pytest.mark.parametrize("topic", [b"", b"a/#"])
async def test_a_bad_topic_is_refused_alone(running, topic: bytes) -> None:
    refused = await stored(running, (b"c", 1, publishes(topic)))
    assert isinstance(refused, Refused)
    assert await stored(running, (b"c", 1, publishes(b"t"))) is None


async def test_a_store_that_fails_is_said(running) -> None:
    running.faults.arm("log.write", OSError(5, "broken"), times=None)
    refused = await stored(running, (b"c", 1, publishes(b"t")))
    assert isinstance(refused, Refused)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    refused = await stored(running, (b"c", 1, publishes(b"never/seen")))
    assert isinstance(refused, Refused)


async def test_a_quota_closes_the_port_and_a_policy_does_not(running) -> None:
    """Who publishes was judged by the proxy of this process; what is retained is counted by the broker alone."""
    port = DirectAppends(running.broker)
    running.judge_by(lambda *_: False)
    assert port.open
    running.broker.retained.quota.active = True
    assert not port.open


async def test_a_proxy_of_this_process_is_told_without_frames(running) -> None:
    mine = running.store.queues.open(names.light_queue_name(b"a/1"))
    connection = inprocess.connect(running.router, port=DirectAppends(running.broker))
    heard: list = []
    pushes: list = []
    connection.on_push(pushes.append)
    connection.on_news(lambda moved, blobs: heard.append((list(moved), list(blobs))))
    reply = await connection.request(Command(RequestCode.FOLLOW, body=encode_follow([mine])))
    assert decode_follow_reply(reply.body) == [0]
    assert await stored(running, (b"c", 1, publishes(b"a/1", b"b/2", b"a/1"))) is None
    assert await stored(running, (b"c", 1, publishes(b"b/2"))) is None
    ((moved, blobs),) = heard
    assert moved == [(mine, 2)]
    assert [record.mqtt_topic for blob in blobs for record in iter_records(blob)] == [b"a/1", b"b/2", b"a/1"]
    assert not pushes
    await connection.close()
    assert await stored(running, (b"c", 1, publishes(b"a/1"))) is None
    assert len(heard) == 1
