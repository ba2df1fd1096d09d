"""Requests of consumers and tools about groups: assignment of queues, connections, offsets, deletion of a group."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.groups.request_modes import POP, RequestMode
from broker.rocketmq.group_requests import STRATEGIES, averagely, by_circle, popped_queues
from remoting.protocol.bodies.controller_body import QueueData, TopicRoute
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost
from tests.unit.broker.groups.test_feature import beat


async def assigned(running, client_id: str, **more: object) -> tuple[Command, list[tuple[str, int]]]:
    body = {"topic": "t", "consumerGroup": "g", "clientId": client_id, "strategyName": "AVG"} | more
    body.setdefault("messageModel", "CLUSTERING")
    reply = await running.connect().request(Command(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(body).encode()))
    if reply.code != ResponseCode.SUCCESS:
        return reply, []
    found = json.loads(reply.body)["messageQueueAssignments"]
    assert all(each["mode"] == "PULL" and each["messageQueue"]["topic"] == "t" for each in found)
    return reply, [(each["messageQueue"]["brokerName"], each["messageQueue"]["queueId"]) for each in found]


async def join(running, *client_ids: str) -> None:
    for client_id in client_ids:
        body = {"clientID": client_id, "consumerDataSet": [{"groupName": "g"}]}
        await running.connect().request(Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode()))


@given(st.integers(0, 40), st.integers(1, 12), st.sampled_from(list(STRATEGIES)))
def test_every_queue_has_one_reader_and_shares_differ_by_one(queues: int, members: int, name: str) -> None:
    wanted = [("a", index) for index in range(queues)]
    shares = [list(STRATEGIES[name](wanted, place, members)) for place in range(members)]
    assert sorted(queue for share in shares for queue in share) == wanted
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_shares_are_those_of_rocketmqs_strategies() -> None:
    """AllocateMessageQueueAveragely and …ByCircle with five queues and two members."""
    queues = [("a", index) for index in range(5)]
    assert averagely(queues, 0, 2) == queues[:3]
    assert averagely(queues, 1, 2) == queues[3:]
    assert by_circle(queues, 0, 2) == [queues[0], queues[2], queues[4]]
    assert by_circle(queues, 1, 2) == [queues[1], queues[3]]


async def test_members_share_the_queues_and_other_clients_get_none(running) -> None:
    running.broker.topics.table.ensure("t", 4)
    await join(running, "c1", "c2")
    assert (await assigned(running, "c1"))[1] == [("broker-a", 0), ("broker-a", 1)]
    assert (await assigned(running, "c2", strategyName=None))[1] == [("broker-a", 2), ("broker-a", 3)]
    assert (await assigned(running, "c2", strategyName="AVG_BY_CIRCLE"))[1] == [("broker-a", 1), ("broker-a", 3)]
    assert (await assigned(running, "stranger"))[1] == []
    assert len((await assigned(running, "stranger", messageModel="BROADCASTING"))[1]) == 4


async def test_members_of_a_group_that_pops_share_all_queues_or_some(running) -> None:
    running.broker.topics.table.ensure("t", 4)
    await join(running, "c1", "c2", "c3")
    modes = running.broker.groups.groups.modes

    async def queues_of(client_id: str) -> list[int]:
        body = {"topic": "t", "consumerGroup": "g", "clientId": client_id, "strategyName": "AVG"}
        reply = await running.connect().request(Command(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(body).encode()))
        found = json.loads(reply.body)["messageQueueAssignments"]
        assert {each["mode"] for each in found} <= {"POP"}
        return [each["messageQueue"]["queueId"] for each in found]

    modes.put("g", "t", RequestMode(POP))
    assert [await queues_of(client) for client in ("c1", "c2", "stranger")] == [[-1], [-1], []]
    modes.put("g", "t", RequestMode(POP, 1))
    assert [await queues_of(client) for client in ("c1", "c2", "c3")] == [[0, 1, 2], [2, 3], [0, 1, 3]]


def test_with_more_members_than_queues_each_pops_from_one() -> None:
    queues = [("a", 0), ("b", 0)]
    assert popped_queues(queues, 4, 5, RequestMode(POP, 1), averagely) == [("a", 0)]
    assert popped_queues(queues, 0, 5, RequestMode(POP), averagely) == [("a", -1), ("b", -1)]
    assert list(popped_queues((), 0, 5, RequestMode(POP, 1), averagely)) == []


async def test_the_queues_of_other_broker_groups_are_among_them(running) -> None:
    async def find_route(_topic: str) -> TopicRoute:
        return TopicRoute(
            queue_datas=[QueueData("broker-b", 2, 2, 6), QueueData("broker-a", 1, 4, 6), QueueData("broker-c", 4, 4, 2)]
        )

    running.broker.registration.find_route = find_route
    await join(running, "c1")
    assert (await assigned(running, "c1"))[1] == [("broker-a", 0), ("broker-b", 0), ("broker-b", 1)]


async def lost(_topic: str) -> None:
    await asyncio.sleep(0)
    raise ConnectionLost("away")


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"strategyName": "MACHINE_ROOM"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": None}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_what_cannot_be_allocated_is_refused(running, more, code) -> None:
    assert (await assigned(running, "c1", **more))[0].code == code


async def test_without_a_controller_nothing_is_taken_away(running) -> None:
    running.broker.topics.table.ensure("t", 4)
    running.broker.registration.find_route = lost
    await join(running, "c1")
    reply, _queues = await assigned(running, "c1")
    assert reply.code == ResponseCode.SYSTEM_BUSY
    assert "no controller" in reply.remark


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
    ("wanted", "offset"),
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
async def test_offsets_move(running, wanted, offset) -> None:
    connection = running.connect()
    begin_ms = running.clock.now_ms()
    await topic_with_messages(running, connection)
    await commit(connection, 3)
    if wanted["timestamp"] not in ("0", "-1"):
        wanted = {**wanted, "timestamp": str(begin_ms + int(wanted["timestamp"]))}
    reply = await ask(connection, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, group="g", topic="t", **wanted)
    table = {
        msgspec.json.decode(key)["queueId"]: value for key, value in fastjson.loads(reply.body)["offsetTable"].items()
    }
    assert table[0] == offset
    assert (1 in table) == ("queueId" not in wanted)
    assert await committed(connection) == str(offset)


async def test_consumers_are_pushed_to_in_their_own_form(running) -> None:
    java, other = running.connect(), running.connect()
    pushed: dict[str, Command] = {}
    java.on_push(lambda push: pushed.__setitem__("java", push))
    other.on_push(lambda push: pushed.__setitem__("other", push))
    await topic_with_messages(running, java)
    first, second = beat("one"), beat("two")
    first.language, second.language = "JAVA", "CPP"
    await java.request(first)
    await other.request(second)
    pushed.clear()
    await ask(java, 222, group="g", topic="t", timestamp="-1", isForce="true")
    async with asyncio.timeout(5):
        while len(pushed) < 2:
            await asyncio.sleep(0)
    assert {push.code for push in pushed.values()} == {RequestCode.RESET_CONSUMER_CLIENT_OFFSET}
    assert pushed["java"].fields["group"] == "g"
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": "t"}
    assert pushed["java"].body.startswith(b'{"offsetTable":{{"brokerName"')
    assert {**queue, "offset": 5} in msgspec.json.decode(pushed["other"].body)["offsetTable"]


async def test_an_unknown_topic_is_reported(running) -> None:
    reply = await ask(running.connect(), 222, group="g", topic="none", timestamp="-1")
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_group_is_deleted_with_its_offsets_where_that_is_asked_for(running) -> None:
    connection, broker = running.connect(), running.broker
    broker.topics.table.ensure("t", 2)

    async def delete(group: str, **more: str) -> Command:
        return await connection.request(
            Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields={"groupName": group, **more})
        )

    assert (await delete("none")).code == ResponseCode.SUCCESS
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
