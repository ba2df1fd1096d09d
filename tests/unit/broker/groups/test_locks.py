"""Queue locks: one owner, renewal and expiry, restarts, fencing tokens, and offsets of others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from broker.groups.locks import HOLD_MS, LOCK_EXPIRY_MS, FencingTokens, QueueLocks
from remoting.client.connection import Connection
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command

QUEUE = ("t", 0)


def test_a_lock_is_renewed_refused_freed_and_expires(bench) -> None:
    locks = QueueLocks(bench.store, 0)
    assert list(locks.lock("g", [QUEUE], "a", 0)[0]) == [QUEUE]
    assert list(locks.lock("g", [QUEUE], "a", 10)[0]) == [QUEUE]
    assert locks.lock("g", [QUEUE], "b", 20) == ({}, 0)
    assert list(locks.lock("other", [QUEUE], "b", 20)[0]) == [QUEUE]
    assert list(locks.lock("g", [QUEUE], "b", 10 + LOCK_EXPIRY_MS)[0]) == [QUEUE]
    assert locks.unlock("g", [QUEUE], "a") == 0
    assert locks.owner("g", *QUEUE) == "b"
    assert locks.unlock("g", [QUEUE], "b") == bench.store.end_position
    assert locks.owner("g", *QUEUE) is None
    locks.expire(20 + LOCK_EXPIRY_MS)
    assert len(locks) == 0


def test_a_lock_survives_a_restart_with_its_token_and_waits_for_its_owner(bench) -> None:
    locks = QueueLocks(bench.store, 0)
    token = locks.lock("g", [QUEUE], "a", 0)[0][QUEUE]
    locks.lock("g", [("t", 1)], "a", 0)
    locks.unlock("g", [("t", 1)], "a")
    again = QueueLocks(bench.reopen(), 1_000)
    assert (len(again), again.owner("g", *QUEUE)) == (1, "a")
    assert again.lock("g", [QUEUE], "b", 999 + LOCK_EXPIRY_MS)[0] == {}
    assert again.lock("g", [QUEUE], "a", 999 + LOCK_EXPIRY_MS)[0] == {QUEUE: token}
    later = again.lock("g", [QUEUE], "b", 2_000 + 2 * LOCK_EXPIRY_MS)[0][QUEUE]
    assert later > token
    again.expire(10**9)
    assert len(QueueLocks(bench.reopen(), 10**9)) == 0


def test_tokens_of_a_queue_rise_with_every_owner(bench) -> None:
    locks = QueueLocks(bench.store, 0)
    tokens = []
    for number in range(4):
        tokens.append(locks.lock("g", [QUEUE], f"c{number}", 0)[0][QUEUE])
        locks.unlock("g", [QUEUE], f"c{number}")
    assert tokens == sorted(set(tokens))


def test_tokens_rise_from_a_master_over_who_stands_in_for_it_to_the_next_one() -> None:
    master, acting, following = FencingTokens(3), FencingTokens(3, acting=True), FencingTokens(4)
    assert master.next() < master.next() < acting.next() < acting.next() < following.next()
    following.saw(2**60)
    assert following.next() == 2**60 + 1


def test_what_a_replica_granted_is_taken_over_once(bench) -> None:
    """The larger token counts; told again, it is old."""
    locks = QueueLocks(bench.store, 0)
    (token,) = locks.lock("g", [QUEUE], "a", 0)[0].values()
    late = FencingTokens(bench.store.epoch, acting=True).next()
    assert locks.take_over([("g", *QUEUE, token - 1, "b")], 0) <= bench.store.end_position
    assert locks.owner("g", *QUEUE) == "a"
    assert locks.take_over([("g", *QUEUE, late, "b")], 10) == bench.store.end_position
    assert locks.lock("g", [QUEUE], "b", 20)[0] == {QUEUE: late}
    assert locks.lock("g", [QUEUE], "a", 10 + LOCK_EXPIRY_MS)[0] == {}, "the new owner has its time from the merge on"
    locks.unlock("g", [QUEUE], "b")
    locks.take_over([("g", *QUEUE, late, "b")], 30)
    assert locks.owner("g", *QUEUE) is None
    assert locks.lock("g", [QUEUE], "a", 40)[0][QUEUE] > late
    assert QueueLocks(bench.reopen(), 0).owner("g", *QUEUE) == "a"


def test_what_a_replica_saw_given_up_is_free(bench) -> None:
    locks = QueueLocks(bench.store, 0)
    (token,) = locks.lock("g", [QUEUE], "a", 0)[0].values()
    locks.take_over([("g", *QUEUE, token - 1, "")], 0)
    assert locks.owner("g", *QUEUE) == "a", "an older lock was given up"
    assert locks.take_over([("g", *QUEUE, token, "")], 0) == bench.store.end_position
    assert locks.owner("g", *QUEUE) is None


def test_the_order_of_what_two_replicas_bring_does_not_count(bench) -> None:
    late = FencingTokens(9, acting=True)
    given_up, taken = late.next(), late.next()
    told = [
        ("g", "t", 0, given_up, "a"),
        ("g", "t", 0, given_up, ""),
        ("g", "t", 1, given_up, ""),
        ("g", "t", 1, taken, "b"),
    ]
    for items in (told, told[::-1], told + told):
        locks = QueueLocks(bench.store, 0)
        locks.take_over(items, 0)
        assert [locks.owner("g", "t", index) for index in (0, 1)] == [None, "b"]
        locks.unlock("g", [("t", 1)], "b")


def test_a_new_master_gives_nothing_away_before_replicas_can_have_told_it(bench) -> None:
    QueueLocks(bench.store, 0).lock("g", [QUEUE], "a", 0)
    locks = QueueLocks(bench.reopen(), 1_000, HOLD_MS)
    other = ("t", 1)
    assert list(locks.lock("g", [QUEUE, other], "a", 1_000)[0]) == [QUEUE], "an owner goes on"
    late = FencingTokens(bench.store.epoch, acting=True).next()
    locks.take_over([("g", *other, late, "b")], 1_500)
    assert locks.lock("g", [other], "a", 1_000 + HOLD_MS)[0] == {}
    assert locks.lock("g", [other], "b", 1_000 + HOLD_MS)[0] == {other: late}
    assert list(locks.lock("g", [("t", 2)], "a", 1_000 + HOLD_MS)[0]) == [("t", 2)]


async def lock(connection: Connection, client: str, *queues: int, code: int = RequestCode.LOCK_BATCH_MQ) -> Any:
    """The body of the answer, or its code."""
    wanted = [{"topic": "t", "brokerName": "b", "queueId": number} for number in queues]
    body = {"consumerGroup": "g", "clientId": client, "mqSet": wanted}
    reply = await connection.request(Command(code, body=msgspec.json.encode(body)))
    return msgspec.json.decode(reply.body) if reply.body else reply.code


async def beat(connection: Connection, client: str) -> None:
    body = {"clientID": client, "producerDataSet": [], "consumerDataSet": [{"groupName": "g"}]}
    reply = await connection.request(Command(RequestCode.HEART_BEAT, body=msgspec.json.encode(body)))
    assert reply.code == ResponseCode.SUCCESS


async def test_queues_that_exist_are_locked_for_one_client(running) -> None:
    connection = running.connect()
    assert (await lock(connection, "a", 0))["lockOKMQSet"] == [], "the topic does not exist"
    running.broker.topics.table.ensure("t", 2)
    granted = await lock(connection, "a", 0, 2)
    assert granted["lockOKMQSet"] == [{"topic": "t", "brokerName": "b", "queueId": 0}]
    assert [sorted(one) for one in granted["fencingTokens"]] == [["brokerName", "queueId", "token", "topic"]]
    assert [one["queueId"] for one in (await lock(connection, "b", 0, 1))["lockOKMQSet"]] == [1]
    assert await lock(connection, "a", 0, code=RequestCode.UNLOCK_BATCH_MQ) == ResponseCode.SUCCESS
    assert len((await lock(connection, "b", 0))["lockOKMQSet"]) == 1


@pytest.mark.parametrize("body", [{}, {"consumerGroup": "g"}, {"consumerGroup": "g", "clientId": "c", "mqSet": [{}]}])
async def test_malformed_locks_are_refused(running, body) -> None:
    reply = await running.connect().request(Command(RequestCode.LOCK_BATCH_MQ, body=msgspec.json.encode(body)))
    assert reply.code == ResponseCode.INVALID_PARAMETER


async def test_a_paused_consumer_moves_no_offset_of_the_next_owner(running) -> None:
    paused, owner, tool = running.connect(), running.connect(), running.connect()
    running.broker.topics.table.ensure("t", 1)
    await beat(paused, "a")
    await beat(owner, "b")
    await lock(paused, "a", 0)

    async def commit(connection: Connection, offset: int) -> int:
        fields = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": str(offset)}
        return (await connection.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields))).code

    assert await commit(paused, 1) == ResponseCode.SUCCESS
    running.clock.advance_ms(LOCK_EXPIRY_MS)
    assert len((await lock(owner, "b", 0))["lockOKMQSet"]) == 1
    assert await commit(owner, 5) == ResponseCode.SUCCESS
    assert await commit(paused, 2) == ResponseCode.SYSTEM_ERROR
    fields = {
        "consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "5",
        "commitOffset": "3", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    await paused.request(Command(RequestCode.PULL_MESSAGE, fields=fields))
    assert running.broker.groups.offsets.of_group("g") == {("t", 0): 5}
    assert running.broker.tools.metrics.dropped.child("offset_fenced").value == 2
    assert await commit(tool, 0) == ResponseCode.SUCCESS, "an administrator resets it"


async def test_a_oneway_unlock_is_carried_out(running) -> None:
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    await lock(connection, "a", 0)
    body = {"consumerGroup": "g", "clientId": "a", "mqSet": [{"topic": "t", "queueId": 0}]}
    command = Command(RequestCode.UNLOCK_BATCH_MQ, flag=FLAG_ONEWAY, body=msgspec.json.encode(body))
    connection.oneway(command)
    assert len((await lock(connection, "b", 0))["lockOKMQSet"]) == 1


async def test_a_replicas_locks_are_merged_by_request(running) -> None:
    """Those of queues that exist; the answer comes when they are confirmed."""
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    late = FencingTokens(9, acting=True).next()
    body = msgspec.json.encode([("g", "t", 0, late, "a"), ("g", "none", 0, late, "a")])
    reply = await connection.request(Command(RequestCode.MERGE_LOCKS, body=body))
    assert reply.code == ResponseCode.SUCCESS
    assert running.store.confirm_position == running.store.end_position
    assert (await lock(connection, "b", 0))["lockOKMQSet"] == []
    assert [one["token"] for one in (await lock(connection, "a", 0))["fencingTokens"]] == [late]
    assert len(running.broker.groups._locks) == 1
