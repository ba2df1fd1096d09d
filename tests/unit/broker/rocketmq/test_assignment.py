"""The server's allocation: every queue has one reader, as RocketMQ's strategies give them out."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.rocketmq.assignment import STRATEGIES, averagely, by_circle
from remoting.protocol.bodies.route_body import QueueData, TopicRoute
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost


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


async def test_members_share_the_queues_and_a_stranger_gets_none(running) -> None:
    running.broker.topics.table.ensure("t", 4)
    await join(running, "c1", "c2")
    assert (await assigned(running, "c1"))[1] == [("broker-a", 0), ("broker-a", 1)]
    assert (await assigned(running, "c2", strategyName=None))[1] == [("broker-a", 2), ("broker-a", 3)]
    assert (await assigned(running, "c2", strategyName="AVG_BY_CIRCLE"))[1] == [("broker-a", 1), ("broker-a", 3)]
    assert (await assigned(running, "stranger"))[1] == []
    assert len((await assigned(running, "stranger", messageModel="BROADCASTING"))[1]) == 4


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
