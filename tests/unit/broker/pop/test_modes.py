"""A group pulls or pops a topic, and how it is switched."""

from __future__ import annotations

import pytest

from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from tests.unit.broker.pop.client import GROUP, TOPIC, ack, expire, pop, popping, pull, refused, send, set_mode


async def test_a_group_pulls_or_pops_a_topic_until_it_is_switched(running) -> None:
    connection = running.connect()
    await send(connection, b"1", queue=0)
    (message,) = await pop(connection)
    commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "0"}
    assert (await pull(connection)).code == ResponseCode.ILLEGAL_OPERATION
    reply = await connection.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=commit))
    assert reply.code == ResponseCode.ILLEGAL_OPERATION
    assert refused(running, "mode") == 2
    assert (await set_mode(connection, "PULL")).code == ResponseCode.SYSTEM_BUSY, "one is in flight"
    await expire(running)
    assert (await set_mode(connection, "PULL")).code == ResponseCode.SYSTEM_BUSY, "it is to be delivered again"
    (message,) = await pop(connection)
    assert await ack(connection, message) == ResponseCode.SUCCESS
    assert (await set_mode(connection, "PULL")).code == ResponseCode.SUCCESS
    assert (await connection.request(popping())).code == ResponseCode.ILLEGAL_OPERATION
    assert (refused(running, "mode"), refused(running, "busy")) == (3, 2)
    await running.restart()
    connection = running.connect()
    assert (await pull(connection, queueOffset=1)).code == ResponseCode.PULL_NOT_FOUND
    await send(connection, b"2", queue=0)
    assert (
        await connection.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=commit | {"commitOffset": "1"}))
    ).code == 0
    assert (await set_mode(connection, "POP")).code == ResponseCode.SUCCESS
    assert [each.body for each in await pop(connection)] == [b"2"], "it continues where it was"


async def test_a_group_that_committed_offsets_is_not_popped_by_chance(running) -> None:
    connection = running.connect()
    await send(connection, b"1", queue=0)
    commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "0"}
    assert (await connection.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=commit))).code == 0
    assert (await connection.request(popping())).code == ResponseCode.ILLEGAL_OPERATION
    assert (await pull(connection)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"mode": "BOTH"}, ResponseCode.INVALID_PARAMETER),
        ({"mode": 7}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "%RETRY%billing"}, ResponseCode.NO_PERMISSION),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
    ],
)
async def test_an_invalid_mode_is_refused(running, more, code) -> None:
    connection = running.connect()
    await send(connection, b"1")
    assert (await set_mode(connection, **({"mode": "POP"} | more))).code == code
