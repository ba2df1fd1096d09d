"""Heartbeats, membership pushes, queue locks over the wire, in the forms Java and C++ write."""

from __future__ import annotations

import asyncio

import msgspec

from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command


def beat(client_id: str, **more) -> Command:
    body = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": "p"}],
        "consumerDataSet": [{"groupName": "g", "consumeType": 1, "messageModel": "CLUSTERING"}],
        **more,
    }
    return Command(RequestCode.HEART_BEAT, body=msgspec.json.encode(body))


async def test_members_hear_of_each_other(running) -> None:
    one, two = running.connect(), running.connect()
    pushes = []
    one.on_push(pushes.append)
    assert (await one.request(beat("b"))).fields["IS_SUB_CHANGE"] == "true"
    assert (await one.request(beat("b"))).fields["IS_SUB_CHANGE"] == "false"
    pushes.clear()
    await two.request(beat("a"))
    members = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields={"consumerGroup": "g"})
    assert msgspec.json.decode((await one.request(members)).body) == {"consumerIdList": ["a", "b"]}
    assert [(push.code, push.fields["consumerGroup"]) for push in pushes] == [
        (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, "g")
    ]
    assert running.broker.topics.table.get("%RETRY%g") is not None
    await two.close()
    async with asyncio.timeout(5):
        while len(pushes) < 2:
            await asyncio.sleep(0)
    leave = Command(RequestCode.UNREGISTER_CLIENT, fields={"clientID": "b", "consumerGroup": "g", "producerGroup": "p"})
    assert (await one.request(leave)).code == 0
    members = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields={"consumerGroup": "g"})
    assert (await one.request(members)).code == ResponseCode.SYSTEM_ERROR


async def test_heartbeats_that_are_not(running) -> None:
    connection = running.connect()
    for body in (b"nonsense", b"[]", b"{}"):
        reply = await connection.request(Command(RequestCode.HEART_BEAT, body=body))
        assert reply.code == ResponseCode.INVALID_PARAMETER
    only_producer = Command(RequestCode.HEART_BEAT, body=b'{"clientID":"x","producerDataSet":[{"groupName":"p"}]}')
    assert (await connection.request(only_producer)).code == 0


async def test_queue_locks(running) -> None:
    connection = running.connect()

    async def lock(code: int, client: str):
        body = {"consumerGroup": "g", "clientId": client, "mqSet": [{"topic": "t", "brokerName": "b", "queueId": 0}]}
        reply = await connection.request(Command(code, body=msgspec.json.encode(body)))
        return msgspec.json.decode(reply.body)["lockOKMQSet"] if reply.body else reply.code

    assert len(await lock(RequestCode.LOCK_BATCH_MQ, "a")) == 1
    assert await lock(RequestCode.LOCK_BATCH_MQ, "b") == []
    assert await lock(RequestCode.UNLOCK_BATCH_MQ, "a") == 0
    assert len(await lock(RequestCode.LOCK_BATCH_MQ, "b")) == 1


async def test_bodies_of_old_java_clients_are_read(running) -> None:
    connection = running.connect()
    body = b"{clientID:'old',producerDataSet:[{groupName:'p'}],consumerDataSet:[]}"
    assert (await connection.request(Command(RequestCode.HEART_BEAT, body=body))).code == 0


async def test_a_subscription_is_checked_before_it_is_used(running) -> None:
    """46: in the forms a client may start with, an expression that cannot be parsed has its own code."""
    connection = running.connect()

    async def check(**subscription: str) -> int:
        body = {"clientId": "c", "group": "g", "subscriptionData": {"topic": "t", **subscription}}
        command = Command(RequestCode.CHECK_CLIENT_CONFIG, body=msgspec.json.encode(body))
        return (await connection.request(command)).code

    assert await check(subString="a || b", expressionType="TAG") == 0
    assert await check(subString="speed > 3 AND line = 'a'", expressionType="SQL92") == 0
    assert await check(subString="speed >", expressionType="SQL92") == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert await check(subString="x", expressionType="CLASS") == ResponseCode.SYSTEM_ERROR
    assert (await connection.request(Command(RequestCode.CHECK_CLIENT_CONFIG, body=b"{}"))).code == 0
