"""What tools ask about groups, over the wire, and what consumers hear when their offsets are moved."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from tests.unit.broker.groups.test_feature import beat


async def ask(connection, code: int, language: str = "JAVA", **fields: str) -> Command:
    return await connection.request(Command(code, fields=fields, language=language))


async def topic_with_messages(running, connection, count: int = 5) -> None:
    await ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, topic="t", readQueueNums="2", writeQueueNums="2")
    for _ in range(count):
        sent = {"topic": "t", "queueId": "0", "producerGroup": "p", "sysFlag": "0", "bornTimestamp": "1", "flag": "0"}
        assert (await connection.request(Command(RequestCode.SEND_MESSAGE, fields=sent, body=b"x"))).code == 0
        running.clock.advance_ms(1_000)


async def commit(connection, offset: int) -> None:
    fields = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": str(offset)}
    assert (await ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, **fields)).code == 0


async def committed(connection) -> str:
    fields = {"consumerGroup": "g", "topic": "t", "queueId": "0"}
    return (await ask(connection, RequestCode.QUERY_CONSUMER_OFFSET, **fields)).fields["offset"]


async def test_connections(running) -> None:
    connection = running.connect()
    assert (
        await ask(connection, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
    ).code == ResponseCode.CONSUMER_NOT_ONLINE
    assert (
        await ask(connection, RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="p")
    ).code == ResponseCode.SYSTEM_ERROR
    subscription = {"topic": "t", "subString": "a || b", "tagsSet": ["a", "b"]}
    consumer = {"groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
    consumer |= {"subscriptionDataSet": [subscription], "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}
    await connection.request(beat("one", consumerDataSet=[consumer]))
    body = msgspec.json.decode((await ask(connection, 203, consumerGroup="g")).body)
    shown = {"clientId": "one", "clientAddr": "in-process", "language": "PYTHON", "version": 479}
    assert body["connectionSet"] == [shown]
    assert body["subscriptionTable"] == {"t": subscription}
    assert (body["consumeType"], body["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert body["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    producers = msgspec.json.decode((await ask(connection, 204, producerGroup="p")).body)
    assert producers == {"connectionSet": [shown]}
    assert msgspec.json.decode((await ask(connection, 300, topic="t")).body) == {"groupList": ["g"]}


async def test_topics_and_groups_that_belong_together(running) -> None:
    connection = running.connect()
    await topic_with_messages(running, connection)
    await commit(connection, 3)
    assert msgspec.json.decode((await ask(connection, 300, topic="t")).body) == {"groupList": ["g"]}
    assert msgspec.json.decode((await ask(connection, 300, topic="other")).body) == {"groupList": []}
    assert msgspec.json.decode((await ask(connection, 343, group="g")).body)["topicList"] == ["t"]
    assert msgspec.json.decode((await ask(connection, 343, group="h")).body)["topicList"] == []
    assert "TBW102" in msgspec.json.decode((await ask(connection, 305)).body)["topicList"]


@pytest.mark.parametrize(
    ("wish", "offset"),
    [
        ({"timestamp": "-1"}, 5),
        ({"timestamp": "0", "isForce": "false"}, 0),
        ({"timestamp": "3000", "isForce": "true"}, 3),
        ({"timestamp": "4000", "isForce": "true"}, 4),
        ({"timestamp": "4000", "isForce": "false"}, 3),
        ({"timestamp": "0", "queueId": "0", "offset": "4"}, 4),
        ({"timestamp": "0", "queueId": "0", "offset": "99"}, 5),
    ],
)
async def test_offsets_move(running, wish, offset) -> None:
    connection = running.connect()
    begin_ms = running.clock.now_ms()
    await topic_with_messages(running, connection)
    await commit(connection, 3)
    if wish["timestamp"] not in ("0", "-1"):
        wish = {**wish, "timestamp": str(begin_ms + int(wish["timestamp"]))}
    reply = await ask(connection, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, group="g", topic="t", **wish)
    table = {
        msgspec.json.decode(key)["queueId"]: value for key, value in fastjson.loads(reply.body)["offsetTable"].items()
    }
    assert table[0] == offset
    assert (1 in table) == ("queueId" not in wish)
    assert await committed(connection) == str(offset)


async def test_who_consumes_is_told_in_its_own_form(running) -> None:
    java, other = running.connect(), running.connect()
    told: dict[str, Command] = {}
    java.on_push(lambda push: told.__setitem__("java", push))
    other.on_push(lambda push: told.__setitem__("other", push))
    await topic_with_messages(running, java)
    first, second = beat("one"), beat("two")
    first.language, second.language = "JAVA", "CPP"
    await java.request(first)
    await other.request(second)
    told.clear()
    await ask(java, 222, group="g", topic="t", timestamp="-1", isForce="true")
    async with asyncio.timeout(5):
        while len(told) < 2:
            await asyncio.sleep(0)
    assert {push.code for push in told.values()} == {RequestCode.RESET_CONSUMER_CLIENT_OFFSET}
    assert told["java"].fields["group"] == "g"
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": "t"}
    assert told["java"].body.startswith(b'{"offsetTable":{{"brokerName"')
    assert {**queue, "offset": 5} in msgspec.json.decode(told["other"].body)["offsetTable"]


async def test_an_unknown_topic_is_said(running) -> None:
    reply = await ask(running.connect(), 222, group="g", topic="none", timestamp="-1")
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_group_is_deleted_with_its_offsets_where_that_is_asked_for(running) -> None:
    connection, broker = running.connect(), running.broker
    broker.topics.table.ensure("t", 2)

    async def delete(group: str, **more: str) -> Command:
        return await connection.request(
            Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields={"groupName": group, **more})
        )

    assert (await delete("none")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    for group, clean, left in (("kept", "false", 1), ("gone", "true", 0)):
        broker.groups.groups.ensure(group)
        broker.groups.offsets.commit([(group, "t", 1, 7)])
        assert (await delete(group, cleanOffset=clean)).code == ResponseCode.SUCCESS
        assert broker.groups.groups.get(group) is None
        assert len(broker.groups.offsets.of_group(group)) == left
    await running.restart()
    assert running.broker.groups.groups.get("kept") is None
    assert len(running.broker.groups.offsets.of_group("kept")) == 1
    assert not running.broker.groups.offsets.of_group("gone")


async def test_a_group_with_members_is_not_deleted(running) -> None:
    connection = running.connect()
    await connection.request(beat("c1"))
    reply = await connection.request(Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields={"groupName": "g"}))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "members" in reply.remark
    assert running.broker.groups.groups.get("g") is not None
