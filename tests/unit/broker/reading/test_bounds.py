"""QUEUE_BOUNDS: confirmed ends by topic or filter, waiting until a queue has grown."""

from __future__ import annotations

import asyncio

from remoting.protocol.bodies.pull_body import QueueBoundsRequest, decode_bounds_reply, encode_bounds_request
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command


async def ask(connection, **request):
    body = encode_bounds_request(QueueBoundsRequest(**request))
    reply = await connection.request(Command(RequestCode.QUEUE_BOUNDS, body=body))
    assert reply.code == 0, reply.remark
    return decode_bounds_reply(reply.body)


async def test_a_filter_is_answered_with_the_topics_it_covers(running) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"b/1", b"$x/1")))
    running.broker.groups.groups.ensure("readers")
    for topic_filter, topics in (
        ("a/+", {"a"}),
        ("+/1", {"a", "b"}),
        ("#", {"a", "b"}),
        ("$x/#", {"%24x"}),
        ("no/#", set()),
    ):
        found = await ask(connection, filter=topic_filter)
        assert {item.topic for item in found.queues} == topics, topic_filter
        assert found.light is None
    exact = await ask(connection, filter="a/1", at_ms=0)
    assert (exact.light.min, exact.light.max, exact.light.at) == (0, 1, 0)
    assert sum(item.max for item in exact.queues) == 1
    assert exact.confirm == running.store.confirm_position


async def test_a_wait_ends_when_a_queue_grows(running) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    first = await ask(connection, topics=["a"])
    known = {"a": {str(item.queue): item.max for item in first.queues}}
    waiting = asyncio.ensure_future(ask(connection, topics=["a"], known=known, wait_ms=20_000))
    while not len(running.broker.reading.long_polls):
        await asyncio.sleep(0)
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    found = await asyncio.wait_for(waiting, 5)
    assert sum(item.max for item in found.queues) == 2


async def test_a_wait_for_a_topic_that_does_not_exist_yet_ends_with_it(running) -> None:
    connection = running.connect()
    waiting = asyncio.ensure_future(ask(connection, filter="new/#", known={}, wait_ms=20_000))
    while not len(running.broker.reading.long_polls):
        await asyncio.sleep(0)
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"new/1")))
    found = await asyncio.wait_for(waiting, 5)
    assert sum(item.max for item in found.queues) == 1


async def test_a_wait_without_growth_ends_on_time(running) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    found = await ask(running.connect(), topics=["none"], known={}, wait_ms=50)
    assert found.queues == []
    assert loop.time() - began >= 0.045


async def test_an_invalid_filter_is_refused(running) -> None:
    body = encode_bounds_request(QueueBoundsRequest(filter="a/#/b"))
    reply = await running.connect().request(Command(RequestCode.QUEUE_BOUNDS, body=body))
    assert reply.code == ResponseCode.INVALID_PARAMETER


async def test_readers_are_advertised_unless_a_policy_decides(running) -> None:
    connection = running.connect()
    assert (await ask(connection, topics=[])).readers is None
    running.broker.tools.identity.readers_address = lambda: "127.0.0.1:7"
    assert (await ask(connection, topics=[])).readers == "127.0.0.1:7"
    running.judge_by(lambda *_: True)
    assert (await ask(connection, topics=[])).readers is None


async def test_an_answer_says_which_log_it_is_about_and_a_topic_made_again_has_other_queues(running) -> None:
    """The identity of the log and the id of a queue together are the identity of a topic's life."""
    connection = running.connect()
    running.broker.reading.start()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    first = await ask(connection, topics=["a"])
    assert len(bytes.fromhex(first.log)) == 16
    reply = await connection.request(Command(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "a"}))
    assert reply.code == 0, reply.remark
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    second = await ask(connection, topics=["a"])
    assert second.log == first.log
    assert {item.id for item in second.queues}.isdisjoint(item.id for item in first.queues)
