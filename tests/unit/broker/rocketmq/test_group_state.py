"""What tools ask about groups and clients beyond their lag."""

from __future__ import annotations

import json

from broker.groups.request_modes import POP, RequestMode
from broker.rocketmq.group_state import BEYOND
from remoting.access.rights import ADMIN
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from tests.unit.broker.rocketmq.test_group_requests import ask, commit, topic_with_messages


async def answer(connection, code: int, **fields: str) -> dict:
    reply = await ask(connection, code, **fields)
    assert reply.code == ResponseCode.SUCCESS, reply
    return json.loads(reply.body)


async def commit_for(connection, group: str, index: int, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": "t", "queueId": str(index), "commitOffset": str(offset)}
    assert (await ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, **fields)).code == 0


async def beat(connection, **more: object) -> None:
    body = {"clientID": "c1", **more}
    assert (await connection.request(Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode()))).code == 0


async def test_times_of_what_a_group_has_read(running) -> None:
    connection = running.connect()
    begun_ms = running.clock.now_ms()
    await topic_with_messages(running, connection, 5)
    await commit(connection, 2)
    spans = (await answer(connection, RequestCode.QUERY_CONSUME_TIME_SPAN, group="g", topic="t"))["consumeTimeSpanSet"]
    assert [each["messageQueue"] for each in spans] == [
        {"brokerName": "broker-a", "queueId": index, "topic": "t"} for index in range(2)
    ]
    read, empty = spans
    assert read["minTimeStamp"] == begun_ms
    assert read["maxTimeStamp"] == begun_ms + 4_000
    assert read["consumeTimeStamp"] == begun_ms + 1_000
    assert read["delayTime"] == 3_000
    assert [empty[name] for name in ("minTimeStamp", "maxTimeStamp", "consumeTimeStamp", "delayTime")] == [
        -1,
        -1,
        -1,
        0,
    ]
    await commit(connection, 5)
    caught_up = await answer(connection, RequestCode.QUERY_CONSUME_TIME_SPAN, group="g", topic="t")
    assert caught_up["consumeTimeSpanSet"][0]["delayTime"] == 0
    reply = await ask(connection, RequestCode.QUERY_CONSUME_TIME_SPAN, group="g", topic="unknown")
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST


async def test_all_offsets_and_the_least_of_them(running) -> None:
    connection = running.connect()
    await topic_with_messages(running, connection, 5)
    await commit_for(connection, "g", 0, 4)
    await commit_for(connection, "h", 0, 2)
    await commit_for(connection, "h", 1, 0)
    offsets = await answer(connection, RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert offsets == {"offsetTable": {"t@g": {"0": 4}, "t@h": {"0": 2, "1": 0}}}
    code, found = RequestCode.QUERY_CORRECTION_OFFSET, "correctionOffsets"
    assert (await answer(connection, code, topic="t", compareGroup="g"))[found] == {"0": 2, "1": 0}
    assert (await answer(connection, code, topic="t", filterGroups="h"))[found] == {"0": 4}
    behind = await answer(connection, code, topic="t", filterGroups="h", compareGroup="h")
    assert behind[found] == {"0": BEYOND}


async def test_offsets_are_cloned_to_a_group_without_members(running) -> None:
    connection = running.connect()
    await topic_with_messages(running, connection, 5)
    await commit_for(connection, "g", 0, 4)
    code, fields = RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": "copy"}
    assert (await ask(connection, code, **fields, topic="others")).code == 0
    assert running.broker.groups.groups.get("copy") is None
    assert (await ask(connection, code, **fields)).code == 0
    assert running.broker.groups.offsets.of_group("copy") == {("t", 0): 4}
    assert running.broker.groups.groups.get("copy") is not None
    running.broker.groups.groups.modes.put("copy", "t", RequestMode(POP))
    assert (await ask(connection, code, **fields)).code != 0
    await beat(connection, consumerDataSet=[{"groupName": "copy"}])
    assert "members" in (await ask(connection, code, **fields)).remark


async def test_connected_producers_by_group(running) -> None:
    connection = running.connect()
    await beat(connection, producerDataSet=[{"groupName": "p"}, {"groupName": "q"}])
    data = (await answer(connection, RequestCode.GET_ALL_PRODUCER_INFO))["data"]
    assert {group: [each["clientId"] for each in clients] for group, clients in data.items()} == {
        "p": ["c1"], "q": ["c1"],
    }  # fmt: skip
    assert data["p"][0]["lastUpdateTimestamp"] == running.clock.now_ms()


async def test_subscription_and_configuration_of_a_group(running) -> None:
    connection = running.connect()
    code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    assert (await answer(connection, code, group="g", topic="t"))["subscriptionData"] is None
    subscribed = {"topic": "t", "subString": "a || b"}
    await beat(connection, consumerDataSet=[{"groupName": "g", "subscriptionDataSet": [subscribed]}])
    assert await answer(connection, code, group="g", topic="t") == {
        "group": "g", "topic": "t", "subscriptionData": subscribed,
    }  # fmt: skip
    config = await answer(connection, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
    assert (config["groupName"], config["retryMaxTimes"]) == ("g", 16)


async def test_who_asks_for_a_group_that_does_not_exist_creates_it_if_it_may_consume_with_it(running) -> None:
    """As by a heartbeat: RocketMQ's proxy asks first of all. Not so an administrator, or who may ask a replica."""
    connection, groups = running.connect(), running.broker.groups.groups
    code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    reply = await ask(connection, code, group="new", fromReplica="true")
    assert (reply.code, groups.get("new")) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, None)
    assert (await answer(connection, code, group="new"))["groupName"] == "new"
    assert groups.get("new") is not None
    running.broker.tools.authorizer.policy = lambda _identity, action, _resource: action == ADMIN
    assert (await ask(connection, code, group="looked-at")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    running.broker.tools.authorizer.policy = lambda _identity, action, _resource: False
    assert (await ask(connection, code, group="looked-at")).code == ResponseCode.NO_PERMISSION
    assert groups.get("looked-at") is None
