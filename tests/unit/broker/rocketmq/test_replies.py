"""Requests and their answers: between RocketMQ clients, and between them and MQTT clients."""

from __future__ import annotations

import asyncio
import json

import pytest

from remoting.client.connection import Connection
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from remoting.protocol.records.properties import (
    MessageProperties,
    decode_properties,
    encode_properties,
    from_pairs,
    to_pairs,
)
from remoting.protocol.records.record import RecordView
from remoting.protocol.records.stored_message import StoredMessage, iter_stored

SEND = {"a": "group", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "j": "0"}
ASKED = {b"REPLY_TO_CLIENT": b"asker@1", b"CORRELATION_ID": b"7", b"TTL": b"3000"}


def text(properties: dict[bytes, bytes]) -> str:
    return encode_properties(properties.items()).decode()


async def heartbeat(connection: Connection, client_id: str) -> None:
    body = {"clientID": client_id, "producerDataSet": [{"groupName": "askers"}]}
    reply = await connection.request(Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode()))
    assert reply.code == ResponseCode.SUCCESS


async def test_a_request_is_answered_over_its_senders_connection(running) -> None:
    asker, consumer = running.connect(), running.connect()
    pushed: list[Command] = []
    asker.on_push(pushed.append)
    await heartbeat(asker, "asker@1")
    sent = await asker.request(
        Command(RequestCode.SEND_MESSAGE_V2, fields=SEND | {"b": "questions", "i": text(ASKED)}, body=b"?")
    )
    assert sent.code == ResponseCode.SUCCESS
    assert running.broker.topics.table.get("DefaultCluster_REPLY_TOPIC").queue_count == 1
    properties = ASKED | {b"MSG_TYPE": b"reply"}
    fields = SEND | {"b": "DefaultCluster_REPLY_TOPIC", "i": text(properties)}
    answered = await consumer.request(Command(RequestCode.SEND_REPLY_MESSAGE_V2, fields=fields, body=b"!"))
    assert answered.code == ResponseCode.SUCCESS
    assert {"msgId", "queueId", "queueOffset"} <= set(answered.fields)
    (push,) = pushed
    assert push.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    assert push.is_oneway
    assert push.body == b"!"
    assert push.fields["topic"] == "DefaultCluster_REPLY_TOPIC"
    assert {"bornHost", "storeHost", "storeTimestamp", "producerGroup", "queueId", "sysFlag"} <= set(push.fields)
    shown = dict(decode_properties(push.fields["properties"].encode()))
    assert shown.items() >= properties.items()
    assert b"PUSH_REPLY_TIME" in shown


@pytest.mark.parametrize(
    ("properties", "code", "remark"),
    [
        ({}, ResponseCode.MESSAGE_ILLEGAL, "REPLY_TO_CLIENT"),
        (ASKED, ResponseCode.SYSTEM_ERROR, "channel of <asker@1> not found"),
    ],
)
async def test_a_responder_is_told_when_its_answer_is_not_delivered(running, properties, code, remark) -> None:
    fields = {
        "producerGroup": "g", "topic": "DefaultCluster_REPLY_TOPIC", "queueId": "0", "sysFlag": "0",
        "properties": text(properties),
    }  # fmt: skip
    reply = await running.connect().request(Command(RequestCode.SEND_REPLY_MESSAGE, fields=fields, body=b"!"))
    assert reply.code == code
    assert remark in reply.remark


def mqtt_publish(topic: bytes, body: bytes, properties: MessageProperties) -> Command:
    """A message of an MQTT client, as its proxy appends it."""
    image = encode_mqtt_image(topic, body, 1, 1_000, b"device", properties=to_pairs(properties))
    return Command(RequestCode.APPEND_MANY, body=image)


async def pulled(connection: Connection, topic: str, queue: int) -> list[StoredMessage]:
    """The messages of one queue as a RocketMQ client reads them."""
    fields = {
        "consumerGroup": "services", "topic": topic, "queueId": str(queue), "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    reply = await connection.request(Command(RequestCode.PULL_MESSAGE, fields=fields))
    return list(iter_stored(reply.body)) if reply.code == ResponseCode.SUCCESS else []


def newest(running, topic: str) -> RecordView | None:
    """The only record of a light queue."""
    queue = running.broker.topics.queues.find(topic, 0)
    records = [] if queue is None else running.store.reading.read(queue, 0, 9, 10_000).records
    return RecordView(records[-1]) if records else None


async def test_a_rocketmq_service_answers_an_mqtt_request(running) -> None:
    service = running.connect()
    asked = MessageProperties(response_topic=b"answers/7", correlation_data=b"\x00\x01", user=[(b"k", b"v")])
    await service.request(mqtt_publish(b"plant/7/ask", b"?", asked))
    table = running.broker.topics.table
    assert table.get("DefaultCluster_REPLY_TOPIC") is None
    messages = [one for queue in range(table.get("plant").queue_count) for one in await pulled(service, "plant", queue)]
    (message,) = messages
    shown = dict(message.properties)
    assert (shown[b"CLUSTER"], shown[b"REPLY_TO_CLIENT"]) == (b"DefaultCluster", b"mqtt:answers/7")
    assert table.get("DefaultCluster_REPLY_TOPIC").queue_count == 1, "the service finds a route for its answer"
    reply = {key: shown[key] for key in (b"REPLY_TO_CLIENT", b"CORRELATION_ID", b"TTL")}
    fields = SEND | {"b": "DefaultCluster_REPLY_TOPIC", "i": text(reply | {b"MSG_TYPE": b"reply", b"own": b"w"})}
    answered = await service.request(Command(RequestCode.SEND_REPLY_MESSAGE_V2, fields=fields, body=b"!"))
    assert answered.code == ResponseCode.SUCCESS
    view = newest(running, "%LMQ%answers%2F7")
    assert view is not None
    found = from_pairs(view.properties())
    assert found is not None
    assert (view.mqtt_topic, view.body, view.flags & 3) == (b"answers/7", b"!", 1)
    assert (found.correlation_data, found.user) == (b"\x00\x01", [(b"own", b"w")])


async def test_a_service_that_pops_finds_a_route_for_its_answer(running) -> None:
    service, table = running.connect(), running.broker.topics.table
    await service.request(mqtt_publish(b"plant/7/ask", b"?", MessageProperties(response_topic=b"answers/7")))
    fields = {"consumerGroup": "g", "topic": "plant", "queueId": "-1", "maxMsgNums": "1", "invisibleTime": "9000",
              "pollTime": "0", "bornTime": "0", "initMode": "0"}  # fmt: skip
    assert table.get("DefaultCluster_REPLY_TOPIC") is None
    assert (await service.request(Command(RequestCode.POP_MESSAGE, fields=fields))).code == ResponseCode.SUCCESS
    assert table.get("DefaultCluster_REPLY_TOPIC").queue_count == 1


async def test_an_mqtt_service_answers_a_rocketmq_request(running) -> None:
    asker, proxy = running.connect(), running.connect()
    pushed: list[Command] = []
    came = asyncio.Event()
    asker.on_push(lambda command: (pushed.append(command), came.set()))
    await heartbeat(asker, "asker@1#2")
    request = ASKED | {b"REPLY_TO_CLIENT": b"asker@1#2", b"originMqttTopic": b"plant/7/ask", b"qosLevel": b"2"}
    sent = await asker.request(
        Command(RequestCode.SEND_MESSAGE_V2, fields=SEND | {"b": "plant", "i": text(request)}, body=b"?")
    )
    assert sent.code == ResponseCode.SUCCESS
    view = newest(running, "%LMQ%plant%2F7%2Fask")
    assert view is not None
    found = from_pairs(view.properties())
    assert found is not None
    assert (view.mqtt_topic, view.flags & 3, found.correlation_data) == (b"plant/7/ask", 2, b"7")
    (message,) = await pulled(asker, "plant", int(sent.fields["queueId"]))
    assert message.queue_offset == int(sent.fields["queueOffset"])
    never_sent = (b"\x01", b"\xff\xfe", None)  # no client can have sent these
    for correlation in (found.correlation_data, *never_sent):
        answer = MessageProperties(correlation_data=correlation, user=[(b"own", b"v")])
        await proxy.request(mqtt_publish(found.response_topic, b"!", answer))
    await asyncio.wait_for(came.wait(), 10)
    (push,) = pushed
    assert (push.code, push.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"!")
    shown = dict(decode_properties(push.fields["properties"].encode()))
    assert shown.items() >= {b"CORRELATION_ID": b"7", b"MSG_TYPE": b"reply", b"own": b"v"}.items()
    assert {"producerGroup", "defaultTopic", "flag", "bornHost", "storeHost", "storeTimestamp"} <= set(push.fields)
    assert running.broker.tools.metrics.dropped.child("reply_malformed").value == len(never_sent)
    assert running.broker.tools.metrics.dropped.child("reply_not_delivered").value == 0


@pytest.mark.parametrize("ttl", ["-1", "soon", "1.5", "4294967295001", "9" * 40, " 5"])
@pytest.mark.parametrize("mqtt", [False, True])
async def test_a_request_with_a_ttl_that_is_no_time_is_refused_and_not_stored(running, ttl, mqtt) -> None:
    asker, table = running.connect(), running.broker.topics.table
    properties = ASKED | {b"TTL": ttl.encode()} | ({b"originMqttTopic": b"questions/7"} if mqtt else {})
    fields = SEND | {"b": "questions", "i": text(properties)}
    refused = await asker.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"?"))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "TTL" in refused.remark
    assert table.get("DefaultCluster_REPLY_TOPIC") is None
    assert all([await pulled(asker, "questions", queue) == [] for queue in range(4)])


@pytest.mark.parametrize("ttl", ["", "0", "4294967295000"])
async def test_a_request_may_have_any_time_or_none(running, ttl) -> None:
    fields = SEND | {"b": "questions", "i": text(ASKED | {b"TTL": ttl.encode()})}
    sent = await running.connect().request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"?"))
    assert sent.code == ResponseCode.SUCCESS


async def test_answers_from_before_a_restart_are_not_passed_on(running) -> None:
    asker = running.connect()
    await heartbeat(asker, "asker@1")
    await asker.request(Command(RequestCode.SEND_MESSAGE_V2, fields=SEND | {"b": "t", "i": text(ASKED)}, body=b"?"))
    topic, answer = b"DefaultCluster_REPLY_TOPIC/asker@1", MessageProperties(correlation_data=b"7")
    await asker.request(mqtt_publish(topic, b"old", answer))
    await running.restart()
    again = running.connect()
    pushed: list[bytes] = []
    again.on_push(lambda command: pushed.append(command.body))
    await heartbeat(again, "asker@1")
    await again.request(mqtt_publish(topic, b"new", answer))
    assert pushed == [b"new"]


async def test_an_answer_needs_the_right_to_the_response_topic_it_is_published_to(running) -> None:
    running.judge_by(lambda _identity, _action, resource: resource != "answers/7")
    for topic, code in (("answers/7", ResponseCode.NO_PERMISSION), ("answers/8", ResponseCode.SUCCESS)):
        asked = {b"REPLY_TO_CLIENT": f"mqtt:{topic}".encode(), b"CORRELATION_ID": b"-", b"MSG_TYPE": b"reply"}
        fields = SEND | {"b": "DefaultCluster_REPLY_TOPIC", "i": text(asked)}
        reply = await running.connect().request(Command(RequestCode.SEND_REPLY_MESSAGE_V2, fields=fields, body=b"!"))
        assert reply.code == code
