"""POP from the request (`broker.pop.requests`) to the acknowledgement, or to the retry topic, over a broker on a real
store."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from broker.pop.handles import retry_topic
from broker.pop.popping import MESSAGES_MAX
from broker.pop.revival import FIRST_POP_TIME
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import iter_stored
from tests.unit.broker.pop.client import (
    GROUP,
    INVISIBLE_MS,
    TOPIC,
    ack,
    expire,
    feature,
    pop,
    popping,
    pull,
    refusals,
    refused,
    send,
)


async def test_a_message_is_given_once_and_complete_when_acknowledged(running) -> None:
    connection = running.connect()
    await send(connection, b"1", b"2", b"3")
    messages = await pop(connection)
    assert sorted(message.body for message in messages) == [b"1", b"2", b"3"]
    assert await pop(connection) == [], "they are in flight"
    assert feature(running).status() == {"pop_in_flight": 3}
    for message in messages:
        assert await ack(connection, message) == ResponseCode.SUCCESS
    await expire(running)
    assert await pop(connection) == []
    assert feature(running).status() == {"pop_in_flight": 0}


async def test_what_is_not_acknowledged_comes_again_and_delays_nothing_else(running) -> None:
    connection = running.connect()
    await send(connection, b"hung", queue=0)
    (hung,) = await pop(connection)
    await send(connection, b"next", queue=0)
    (behind,) = await pop(connection)
    assert await ack(connection, behind) == ResponseCode.SUCCESS
    await expire(running)
    (again,) = await pop(connection)
    assert (again.body, again.topic, again.stored.reconsume_times) == (b"hung", retry_topic(GROUP, TOPIC), 1)
    shown = dict(again.stored.properties)
    assert (shown[b"RETRY_TOPIC"], shown[FIRST_POP_TIME]) == (b"orders", hung.handle.split()[1].encode())
    assert await ack(connection, hung) == ResponseCode.NO_MESSAGE, (
        "its time is over, the copy belongs to another client"
    )
    assert await ack(connection, again) == ResponseCode.SUCCESS
    await expire(running)
    assert await pop(connection) == []
    assert running.registry.values()["rocketmq_pop_expired_total{retry}"] == 1


async def test_all_of_it_survives_a_restart(running) -> None:
    connection = running.connect()
    await send(connection, b"1", b"2", b"3", queue=0)
    first, second, _third = await pop(connection)
    assert await ack(connection, first) == ResponseCode.SUCCESS
    await running.restart()
    connection = running.connect()
    assert await pop(connection) == []
    assert await ack(connection, first) == ResponseCode.NO_MESSAGE
    assert await ack(connection, second) == ResponseCode.SUCCESS
    await expire(running)
    await running.restart()
    assert [message.body for message in await pop(running.connect())] == [b"3"]


async def test_a_message_tried_too_often_is_a_dead_letter(running) -> None:
    connection = running.connect()
    groups = running.broker.groups.groups
    groups.put(msgspec.structs.replace(groups.ensure(GROUP), retry_max_times=2))
    await send(connection, b"poison")
    for _ in range(3):
        (message,) = await pop(connection)
        assert message.body == b"poison"
        await expire(running)
    assert await pop(connection) == []
    (dead,) = iter_stored((await pull(connection, f"%DLQ%{GROUP}")).body)
    assert (dead.body, dict(dead.properties)[b"RETRY_TOPIC"]) == (b"poison", TOPIC.encode())


async def test_a_pop_waits_for_a_message_and_ends_on_time(running) -> None:
    connection, other = running.connect(), running.connect()
    await send(connection, b"old", queue=0)
    assert len(await pop(connection)) == 1
    waiting = asyncio.ensure_future(pop(connection, pollTime=5_000))
    info = Command(RequestCode.POLLING_INFO, fields={"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1"})
    while (await other.request(info)).fields["pollingNum"] != "1":
        await asyncio.sleep(0)
    await send(other, b"new", queue=3)
    assert [message.body for message in await asyncio.wait_for(waiting, 10)] == [b"new"]
    assert (await other.request(info)).fields["pollingNum"] == "0"
    reply = await connection.request(popping(pollTime=20))
    assert reply.code == ResponseCode.POLLING_TIMEOUT


async def test_a_waiting_pop_gets_what_comes_again(running) -> None:
    connection, other = running.connect(), running.connect()
    await send(connection, b"again")
    assert len(await pop(connection)) == 1
    waiting = asyncio.ensure_future(pop(other, pollTime=5_000))
    await asyncio.sleep(0)
    await expire(running)
    assert [message.body for message in await asyncio.wait_for(waiting, 10)] == [b"again"]


async def test_too_many_waiting_pops_are_refused(limited) -> None:
    connection, other = limited.connect(), limited.connect()
    await send(connection, b"1")
    assert len(await pop(connection)) == 1
    waiting = asyncio.ensure_future(pop(other, pollTime=5_000))
    while not limited.broker.reading.long_polls:
        await asyncio.sleep(0)
    assert (await connection.request(popping(pollTime=5_000))).code == ResponseCode.POLLING_FULL
    await send(connection, b"2")
    assert len(await waiting) == 1


async def test_a_notification_tells_that_there_is_a_message(running) -> None:
    connection, other = running.connect(), running.connect()
    await send(connection, b"1")
    ask = popping(RequestCode.NOTIFICATION)
    assert (await connection.request(ask)).fields == {"hasMsg": "true", "pollingFull": "false"}
    await pop(connection)
    assert (await connection.request(ask)).fields["hasMsg"] == "false"
    waiting = asyncio.ensure_future(connection.request(popping(RequestCode.NOTIFICATION, pollTime=5_000)))
    await asyncio.sleep(0)
    await send(other, b"2")
    assert (await asyncio.wait_for(waiting, 10)).fields["hasMsg"] == "true"


async def test_a_peek_takes_nothing(running) -> None:
    connection = running.connect()
    await send(connection, b"1")
    for _ in range(2):
        reply = await connection.request(popping(RequestCode.PEEK_MESSAGE))
        assert [stored.body for stored in iter_stored(reply.body)] == [b"1"]
    assert feature(running).status() == {"pop_in_flight": 0}
    assert (await pull(connection)).code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND), "still free to pull"


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"maxMsgNums": MESSAGES_MAX + 1}, ResponseCode.INVALID_PARAMETER, "count"),
        ({"invisibleTime": 0}, ResponseCode.INVALID_PARAMETER, "time"),
        ({"invisibleTime": 2**32}, ResponseCode.INVALID_PARAMETER, "time"),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER, "queue"),
        ({"topic": "%LMQ%a"}, ResponseCode.INVALID_PARAMETER, "topic"),
        ({"topic": f"%RETRY%{GROUP}+{TOPIC}"}, ResponseCode.INVALID_PARAMETER, "topic"),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST, "topic"),
        ({"invisibleTime": "soon"}, ResponseCode.INVALID_PARAMETER, "malformed"),
        ({"pollTime": "x"}, ResponseCode.INVALID_PARAMETER, "malformed"),
        ({"expType": "SQL92", "exp": "a >"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "filter"),
        ({"order": True, "attemptId": "x" * 256}, ResponseCode.INVALID_PARAMETER, "attempt"),
    ],
)
async def test_an_invalid_pop_is_refused_and_counted_once(running, fields, code, reason) -> None:
    connection = running.connect()
    await send(connection, b"1")
    assert (await connection.request(popping(**fields))).code == code
    assert (refused(running, reason), refusals(running)) == (1, 1)
    assert len(await pop(connection)) == 1


async def test_what_a_deleted_group_had_is_given_up(running) -> None:
    connection = running.connect()
    await send(connection, b"1")
    await pop(connection)
    running.broker.groups.groups.delete(GROUP)
    await expire(running)
    assert running.registry.values()["rocketmq_pop_expired_total{gone}"] == 1
    assert (await pull(connection)).code != ResponseCode.ILLEGAL_OPERATION


async def test_the_timer_revives_messages(running) -> None:
    connection = running.connect()
    await send(connection, b"1")
    await pop(connection)
    running.clock.advance_ms(INVISIBLE_MS)
    feature(running).start()
    try:
        assert [message.body for message in await pop(connection, pollTime=10_000)] == [b"1"]
    finally:
        feature(running).stop()


async def test_a_topic_that_was_deleted_and_created_again_is_read_from_its_beginning(running) -> None:
    connection = running.connect()
    await send(connection, b"1", b"2", b"3", queue=0)
    old = await pop(connection)
    await expire(running)
    assert running.broker.topics.table.get(retry_topic(GROUP, TOPIC)) is not None
    deletion = Command(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": TOPIC})
    assert (await connection.request(deletion)).code == ResponseCode.SUCCESS
    assert running.broker.topics.table.get(retry_topic(GROUP, TOPIC)) is None
    await send(connection, b"new", queue=0)
    assert [message.body for message in await pop(connection)] == [b"new"], "not the copies of the deleted topic's"
    assert await ack(connection, old[0]) != ResponseCode.SUCCESS
    await expire(running)
    assert [message.body for message in await pop(connection)] == [b"new"]
