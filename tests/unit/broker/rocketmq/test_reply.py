"""An answer reaches the connection of who asked, or is refused."""

from __future__ import annotations

import json

import pytest

from remoting.client.connection import Connection
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.properties import decode_properties, encode_properties

SEND = {"a": "group", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "j": "0"}
ASKED = {b"REPLY_TO_CLIENT": b"asker@1", b"CORRELATION_ID": b"7", b"TTL": b"3000"}


def text(properties: dict[bytes, bytes]) -> str:
    return encode_properties(properties.items()).decode()


async def heartbeat(connection: Connection, client_id: str) -> None:
    body = {"clientID": client_id, "producerDataSet": [{"groupName": "askers"}]}
    reply = await connection.request(Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode()))
    assert reply.code == ResponseCode.SUCCESS


async def test_a_request_is_answered_by_way_of_its_senders_connection(running) -> None:
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
async def test_who_answers_hears_when_nobody_gets_it(running, properties, code, remark) -> None:
    fields = {
        "producerGroup": "g", "topic": "DefaultCluster_REPLY_TOPIC", "queueId": "0", "sysFlag": "0",
        "properties": text(properties),
    }  # fmt: skip
    reply = await running.connect().request(Command(RequestCode.SEND_REPLY_MESSAGE, fields=fields, body=b"!"))
    assert reply.code == code
    assert remark in reply.remark
