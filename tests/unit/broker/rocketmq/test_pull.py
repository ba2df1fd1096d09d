"""Code 11: every outcome, the tag filter, the exact long poll, light queues by name."""

from __future__ import annotations

import asyncio
import json

from broker.groups.groups import GroupConfig
from broker.rocketmq.stored_message import origin_of
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import RecordView
from remoting.protocol.records.stored_message import iter_stored
from tests.unit.broker.groups.test_feature import beat


def pulling(topic: str, offset: int = 0, *, queue: int = 0, wait_ms: int = 0, tags: str = "*", **more: str) -> Command:
    fields = {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": str(queue),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(4 | (2 if wait_ms else 0)),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(wait_ms),
        "subscription": tags,
        **more,
    }
    return Command(RequestCode.PULL_MESSAGE, fields=fields)


async def send(connection, tags: str = "", topic: str = "t") -> None:
    properties = f"TAGS\x01{tags}\x02" if tags else ""
    fields = {"b": topic, "e": "0", "d": "1", "i": properties}
    reply = await connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=tags.encode()))
    assert reply.code == 0, reply.remark


async def test_the_outcomes(running) -> None:
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    empty = await connection.request(pulling("t"))
    assert (empty.code, empty.remark) == (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
    for tags in ("red", "blue"):
        await send(connection, tags)
    found = await connection.request(pulling("t"))
    assert (found.code, found.fields["nextBeginOffset"], found.fields["maxOffset"]) == (0, "2", "2")
    red = await connection.request(pulling("t", tags="red || green"))
    assert [message.body for message in iter_stored(red.body)] == [b"red"]
    none = await connection.request(pulling("t", tags="green"))
    assert (none.code, none.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")
    end = await connection.request(pulling("t", 2))
    assert (end.code, end.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")
    beyond = await connection.request(pulling("t", 9))
    assert (beyond.code, beyond.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")


async def test_a_new_master_moves_no_reader_before_it_is_sure(running) -> None:
    """What a reader saw at the former master may wait to be confirmed here: sent back, it would consume it again."""
    connection = running.connect()
    await send(connection, "red")
    identity = running.broker.tools.identity
    identity.started_position = running.store.end_position + 1
    waits = await connection.request(pulling("t", 9))
    assert (waits.code, waits.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "9")
    assert (await connection.request(pulling("t"))).fields["nextBeginOffset"] == "1"
    identity.started_position -= 1
    beyond = await connection.request(pulling("t", 9))
    assert (beyond.code, beyond.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")


async def test_a_pull_waits_for_the_heartbeat_with_its_subscription(running) -> None:
    """RocketMQ's push consumer pulls without its tags: after a change of them the old ones would lose messages."""
    connection = running.connect()
    await send(connection, "blue")

    async def subscribe(tags: str, version: int) -> None:
        subscribed = [{"topic": "t", "subString": tags, "subVersion": version}]
        data = [{"groupName": "g", "subscriptionDataSet": subscribed}]
        assert (await connection.request(beat("c", consumerDataSet=data))).code == 0

    await subscribe("red", 5)
    newer = pulling("t", sysFlag="0", subVersion="6")
    assert (await connection.request(newer)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    await subscribe("blue", 6)
    assert [message.body for message in iter_stored((await connection.request(newer)).body)] == [b"blue"]


async def test_an_sql_filter_looks_at_the_properties(running) -> None:
    """In the request, and as the group's heartbeats have it."""
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    for tags in ("red", "blue"):
        await send(connection, tags)
    chosen = await connection.request(pulling("t", tags="TAGS = 'blue'", expressionType="SQL92"))
    assert [message.body for message in iter_stored(chosen.body)] == [b"blue"]
    none = await connection.request(pulling("t", tags="speed > 3", expressionType="SQL92"))
    assert (none.code, none.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")
    subscription = {"topic": "t", "subString": "TAGS IS NOT NULL AND TAGS <> 'blue'", "expressionType": "SQL92"}
    await connection.request(beat("one", consumerDataSet=[{"groupName": "g", "subscriptionDataSet": [subscription]}]))
    noted = await connection.request(pulling("t", sysFlag="0"))
    assert [message.body for message in iter_stored(noted.body)] == [b"red"]


async def test_refusals_carry_rocketmqs_codes(running) -> None:
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    assert (await connection.request(pulling("none"))).code == ResponseCode.TOPIC_NOT_EXIST
    assert (await connection.request(pulling("t", queue=1))).code == ResponseCode.INVALID_PARAMETER
    assert (await connection.request(pulling("t", expressionType="CLASS"))).code == ResponseCode.SYSTEM_ERROR
    wrong = pulling("t", tags="speed >", expressionType="SQL92")
    assert (await connection.request(wrong)).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert (await connection.request(pulling("t", sysFlag="0"))).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert (await connection.request(pulling("t", queueOffset="x"))).code == ResponseCode.INVALID_PARAMETER


async def test_a_long_poll_ends_with_the_message_or_on_time(running) -> None:
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    waiting = asyncio.ensure_future(connection.request(pulling("t", wait_ms=20_000)))
    while not len(running.broker.reading.long_polls):
        await asyncio.sleep(0)
    await send(connection)
    assert (await asyncio.wait_for(waiting, 5)).code == 0
    began = asyncio.get_running_loop().time()
    late = await connection.request(pulling("t", 1, wait_ms=60))
    assert late.code == ResponseCode.PULL_NOT_FOUND
    assert 0.055 <= asyncio.get_running_loop().time() - began < 2


async def test_a_light_queue_is_pulled_by_name_even_before_it_exists(running) -> None:
    connection = running.connect()
    waiting = asyncio.ensure_future(connection.request(pulling("%LMQ%a%2F1", wait_ms=20_000)))
    while not len(running.broker.reading.long_polls):
        await asyncio.sleep(0)
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", body=b"hot")))
    (message,) = iter_stored((await asyncio.wait_for(waiting, 5)).body)
    assert (message.topic, message.body, message.queue_id, message.queue_offset) == (b"a", b"hot", 0, 0)
    assert dict(message.properties)[b"originMqttTopic"] == b"a/1"
    assert dict(message.properties)[b"qosLevel"] == b"1"


async def test_the_offset_in_a_pull_is_committed(running) -> None:
    connection = running.connect()
    await send(connection)
    await connection.request(pulling("t", 1, sysFlag="5", commitOffset="1"))
    fields = {"consumerGroup": "g", "topic": "t", "queueId": "0"}
    reply = await connection.request(Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
    assert reply.fields["offset"] == "1"


async def test_named_light_queues_carry_their_offsets(running) -> None:
    connection = running.connect()
    for _ in range(2):
        fields = {"b": "t", "e": "0", "d": "1", "i": "INNER_MULTI_DISPATCH\x01%LMQ%x,%LMQ%y\x02"}
        await connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"m"))
    messages = iter_stored((await connection.request(pulling("%LMQ%y"))).body)
    assert [dict(message.properties)[b"INNER_MULTI_QUEUE_OFFSET"] for message in messages] == [b"0,0", b"1,1"]


async def test_damage_moves_the_offset_past_it(running) -> None:
    """The answer has the reason; messages before and after the damage are served."""
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    for tags in ("red", "blue", "green"):
        await send(connection, tags)
    (queue_id,) = running.broker.topics.table.queue_ids("t")
    position = RecordView(running.store.reading.read(queue_id, 1, 1, 1).records[0]).position
    path = next(path for path in (running.store.directory / "log").iterdir() if path.name.isdigit())
    with path.open("r+b") as file:
        file.seek(position + 90)
        file.write(b"\xff")
    before = await connection.request(pulling("t"))
    assert (before.code, before.fields["nextBeginOffset"]) == (0, "1")
    at = await connection.request(pulling("t", 1))
    assert (at.code, at.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
    assert f"position {position}" in at.remark
    behind = await connection.request(pulling("t", 2))
    assert [message.body for message in iter_stored(behind.body)] == [b"green"]


async def test_a_group_that_may_not_consume_is_refused(running) -> None:
    connection = running.connect()
    await send(connection)
    groups = running.broker.groups.groups
    groups.put(GroupConfig(group_name="g", consume_enable=False))
    assert (await connection.request(pulling("t", consumerGroup="g"))).code == ResponseCode.NO_PERMISSION
    groups.put(GroupConfig(group_name="g", consume_broadcast_enable=False))
    assert (await connection.request(pulling("t", consumerGroup="g"))).code == ResponseCode.SUCCESS
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "g", "messageModel": "BROADCASTING"}]}
    await connection.request(Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode()))
    reply = await connection.request(pulling("t", consumerGroup="g"))
    assert (reply.code, reply.remark) == (16, "the consumer group[g] forbids broadcasting")


async def test_a_class_filter_is_refused(running) -> None:
    reply = await running.connect().request(pulling("t", sysFlag="8"))
    assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_messages_show_where_they_come_from(running) -> None:
    connection = running.connect()
    await send(connection)
    (message,) = iter_stored((await connection.request(pulling("t"))).body)
    assert dict(message.properties).items() >= dict(origin_of(running.config.cluster_name)).items()
