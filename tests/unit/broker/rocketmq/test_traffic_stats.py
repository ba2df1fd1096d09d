"""315 and the rates of 202 and 208: measured, or refused by name."""

from __future__ import annotations

import json

import pytest

from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command

PULL = {
    "consumerGroup": "g",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "subscription": "*",
}


async def ask(connection, code: int, **fields: str) -> Command:
    return await connection.request(Command(code, fields=fields))


async def figures(connection, name: str, key: str) -> list[tuple[int, float]]:
    reply = await ask(connection, RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    assert reply.code == 0, reply.remark
    body = json.loads(reply.body)
    return [(body[member]["sum"], body[member]["tps"]) for member in ("statsMinute", "statsHour", "statsDay")]


async def send(connection, count: int) -> None:
    fields = {"b": "t", "e": "0", "d": "2"}
    for _ in range(count):
        assert (await connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"x"))).code == 0


async def test_what_a_topic_got_is_read_from_the_log(running) -> None:
    """Also what came before a restart of the broker, whoever sent it."""
    connection, clock = running.connect(), running.clock
    await send(connection, 6)
    clock.advance_ms(120_000)
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"t/1", b"t/2", b"t/1")))
    wanted = [(3, 3 / 60), (9, 9 / 3_600), (9, 9 / 86_400)]
    assert await figures(connection, "TOPIC_PUT_NUMS", "t") == wanted
    await running.restart()
    connection = running.connect()
    assert await figures(connection, "TOPIC_PUT_NUMS", "t") == wanted
    stats = await ask(connection, RequestCode.GET_TOPIC_STATS_INFO, topic="t")
    assert json.loads(stats.body)["topicPutTps"] == 0.05
    java = Command(RequestCode.GET_TOPIC_STATS_INFO, fields={"topic": "t"}, language="JAVA")
    assert (await connection.request(java)).body.endswith(b'},"topicPutTps":0.05}')
    clock.advance_ms(60_001)
    assert (await figures(connection, "TOPIC_PUT_NUMS", "t"))[0] == (0, 0.0)


async def test_what_a_group_pulled_is_counted(running) -> None:
    connection = running.connect()
    await send(connection, 6)
    pulled = await ask(connection, RequestCode.PULL_MESSAGE, topic="t", **PULL)
    assert pulled.code == 0
    assert await figures(connection, "GROUP_GET_NUMS", "t@g") == [(6, 0.1), (6, 6 / 3_600), (6, 6 / 86_400)]
    assert (await figures(connection, "GROUP_GET_SIZE", "t@g"))[0][0] == len(pulled.body)
    fields = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "6"}
    await ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
    stats = await ask(connection, RequestCode.GET_CONSUME_STATS, consumerGroup="g")
    assert json.loads(stats.body)["consumeTps"] == 0.1
    everybody = json.loads((await ask(connection, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")).body)
    assert everybody["consumeStatsList"][0]["g"][0]["consumeTps"] == 0.1


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "nowhere"),
        ("TOPIC_PUT_SIZE", "t"),
        ("GROUP_GET_NUMS", "t@nobody"),
        ("GROUP_GET_NUMS", "t"),
        ("BROKER_PUT_NUMS", "DefaultCluster"),
    ],
)
async def test_what_is_not_measured_is_refused_by_name(running, name: str, key: str) -> None:
    connection = running.connect()
    await send(connection, 1)
    reply = await ask(connection, RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert (reply.remark or "").startswith(f"The stats <{name}> <{key}> not exist")
    assert "TOPIC_PUT_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE" in (reply.remark or "")
