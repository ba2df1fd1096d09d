"""How far groups are behind: numbers per queue, times, light queues, what may not be seen and what is gone."""

from __future__ import annotations

import msgspec
import pytest

from broker.rocketmq import consume_stats
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image


async def ask(connection, code: int, language: str = "PYTHON", **fields: str) -> bytes:
    reply = await connection.request(Command(code, fields=fields, language=language))
    assert reply.code == 0, reply.remark
    return reply.body


async def commit(connection, group: str, topic: str, queue: int, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}
    assert (await connection.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields))).code == 0


async def send(connection, count: int) -> None:
    entries = [encode_mqtt_image(b"plant/%d" % (number % 2), b"x", 1, 0, b"c") for number in range(count)]
    reply = await connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(entries)))
    assert reply.code == 0


async def queues_of(connection, group: str) -> dict[tuple[str, int], dict[str, int]]:
    table = msgspec.json.decode(await ask(connection, RequestCode.GET_CONSUME_STATS, consumerGroup=group))
    found = {}
    for key, numbers in table["offsetTable"].items():
        queue = msgspec.json.decode(key)
        found[queue["topic"], queue["queueId"]] = numbers
    return found


async def test_a_group_in_messages_and_times(running) -> None:
    connection = running.connect()
    await send(connection, 6)
    running.clock.advance_ms(1_500)
    sizes = {
        index: running.broker.tools.store.reading.bounds(queue)[1] for index, queue in enumerate(ids(running, "plant"))
    }
    full = max(sizes, key=lambda index: sizes[index])
    await commit(connection, "g", "plant", full, 1)
    await commit(connection, "g", "%LMQ%plant%2F1", 0, 3)
    found = await queues_of(connection, "g")
    parent, light = found["plant", full], found["%LMQ%plant%2F1", 0]
    assert (parent["brokerOffset"], parent["consumerOffset"], parent["minOffset"]) == (sizes[full], 1, 0)
    assert parent["waitingMs"] == 1_500
    assert parent["lastTimestamp"] > 0
    assert consume_stats.messages_behind(parent) == sizes[full] - 1
    assert (light["brokerOffset"], light["consumerOffset"], light["waitingMs"]) == (3, 3, 0)
    assert set(await queues_of(connection, "nobody")) == set()
    only = await ask(connection, RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="plant")
    assert len(msgspec.json.decode(only)["offsetTable"]) == 1


async def test_all_groups_and_the_form_java_reads(running, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = running.connect()
    await send(connection, 4)
    await commit(connection, "a", "%LMQ%plant%2F0", 0, 0)
    await commit(connection, "b", "%LMQ%plant%2F0", 0, 1)
    body = msgspec.json.decode(await ask(connection, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false"))
    assert [list(each) for each in body["consumeStatsList"]] == [["a"], ["b"]]
    assert (body["totalDiff"], body["truncated"]) == (3, False)
    java = await ask(connection, RequestCode.GET_BROKER_CONSUME_STATS, language="JAVA", isOrder="false")
    assert b'[{"a":[{"offsetTable":{{"brokerName":' in java
    monkeypatch.setattr(consume_stats, "QUEUES_MAX", 1)
    body = msgspec.json.decode(await ask(connection, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false"))
    assert (len(body["consumeStatsList"]), body["truncated"]) == (1, True)


async def test_topics_that_are_gone_or_forbidden_are_left_out(running, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = running.connect()
    await send(connection, 2)
    running.broker.topics.table.ensure("t", 1)
    await commit(connection, "g", "plant", 0, 0)
    await commit(connection, "g", "t", 0, 0)
    running.broker.topics.table.delete("t")
    assert set(await queues_of(connection, "g")) == {("plant", 0)}

    def refuse(_peer: object, _command: object, action: str, _resource: str) -> None:
        if action != "locate":
            raise Refused(ResponseCode.NO_PERMISSION, "no")

    monkeypatch.setattr(running.broker.tools.authorizer, "authorize", refuse)
    assert await queues_of(connection, "g") == {}


def test_expired_messages_are_no_lag() -> None:
    assert consume_stats.messages_behind({"brokerOffset": 10, "consumerOffset": 2, "minOffset": 7}) == 3
    assert consume_stats.messages_behind({"brokerOffset": 10, "consumerOffset": 12, "minOffset": 0}) == 0


def ids(running, topic: str) -> list[int]:
    return list(running.broker.topics.table.queue_ids(topic))
