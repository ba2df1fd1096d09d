"""Locks while a replica stands in: owners go on, free queues are granted, and the next master knows of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.acting import journal as journal_module
from broker.acting.journal import FILE_NAME, ActingJournal
from broker.acting.kinds import LOCKS
from broker.acting.locks import ActingLocks
from broker.groups.locks import LOCK_EXPIRY_MS, FencingTokens
from remoting.client.connection import dial
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.server.authorizer import Authorizer
from runtime.logs import get_logger
from tests.unit.broker.acting.test_replica import (
    ElectingPair,
    acting,
    at_master,
    left_alone,
    pair,  # noqa: F401
    prepare,
    until,
)


def asking(client_id: str, *queues: int, code: int = RequestCode.LOCK_BATCH_MQ, topic: str = "t") -> Command:
    wanted = [{"topic": topic, "brokerName": "b", "queueId": number} for number in queues]
    return Command(code, body=msgspec.json.encode({"consumerGroup": "g", "clientId": client_id, "mqSet": wanted}))


def tokens(reply: Command) -> dict[int, int]:
    """Queue -> token of those that were granted."""
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    body: Any = msgspec.json.decode(reply.body)
    assert body["lockOKMQSet"] == [
        {name: each[name] for name in each if name != "token"} for each in body["fencingTokens"]
    ]
    return {each["queueId"]: each["token"] for each in body["fencingTokens"]}


async def ask(port: int, command: Command) -> Command:
    connection = await dial(f"127.0.0.1:{port}")
    try:
        return await connection.request(command, 5_000)
    finally:
        await connection.close()


async def test_owners_go_on_through_the_masters_death_and_return(pair: ElectingPair) -> None:  # noqa: F811
    await prepare(pair)
    master = pair.master()
    assert master is not None
    master.broker.topics.table.ensure("u", 3)
    locked = tokens(await at_master(pair, lambda master: asked_of_master(master.port, asking("a", 0, 1, topic="u"))))
    end = master._member.store.end_position
    await until(lambda: all(app._member.log_state().confirm >= end for app in pair.brokers.values()))
    number, left = await left_alone(pair)
    await until(acting(left).presence.acts)
    assert tokens(await ask(left.port, asking("a", 0, 1, topic="u"))) == locked, "renewed with the token it had"
    taken = tokens(await ask(left.port, asking("b", 0, 1, 2, topic="u")))
    assert list(taken) == [2]
    assert taken[2] > max(locked.values())
    freed = await ask(left.port, asking("a", 1, code=RequestCode.UNLOCK_BATCH_MQ, topic="u"))
    assert freed.code == ResponseCode.SUCCESS
    taken |= tokens(await ask(left.port, asking("b", 1, topic="u")))
    await left.stop()
    left = await pair.add(number)
    await until(acting(left).presence.acts)
    assert tokens(await ask(left.port, asking("b", 0, 1, 2, topic="u"))) == taken, "as before the restart"

    await pair.add(3 - number)
    await until(pair.master)
    await until(lambda: not (pair.directory / f"broker-{number}" / FILE_NAME).exists())
    last = await at_master(pair, lambda master: ask(master.port, asking("b", 0, 1, 2, topic="u")))
    assert tokens(last) == taken
    last = await at_master(pair, lambda master: ask(master.port, asking("a", 0, 1, 2, topic="u")))
    assert tokens(last) == {0: locked[0]}


async def asked_of_master(port: int, command: Command) -> Command:
    """The answer of a new master, which at first gives no free queue away."""
    while not tokens(reply := await ask(port, command)):
        continue
    return reply


class Peer:
    """A connection that notes its answers."""

    def __init__(self) -> None:
        self.answers: list[Command] = []
        self.attributes: dict[str, object] = {}
        self.closed: list[Callable[[str], None]] = []

    def send(self, command: Command) -> None:
        self.answers.append(command)

    def on_close(self, call: Callable[[str], None]) -> None:
        self.closed.append(call)


class Standing:
    """What stands in over the log of a running broker."""

    def __init__(self, running, directory: Path, authorizer: Authorizer | None = None) -> None:
        self.now_ms, self.begun, self.store = 0, 1, running.store
        running.broker.topics.table.ensure("t", 2)
        self.journal = ActingJournal(directory, get_logger("test"))
        self.locks = ActingLocks(
            self.journal, lambda: self.store, authorizer or Authorizer(),
            term=lambda: (running.store.epoch, self.begun), now_ms=lambda: self.now_ms,
        )  # fmt: skip

    async def ask(self, command: Command) -> Command:
        peer = Peer()
        handler = self.locks.find(command)
        assert handler is not None
        handler(peer, command)
        await until(lambda: peer.answers)
        return peer.answers[0]


@pytest.fixture
def standing(running, tmp_path: Path) -> Standing:
    return Standing(running, tmp_path)


async def test_a_lock_expires_as_at_the_master(standing: Standing) -> None:
    first = tokens(await standing.ask(asking("a", 0)))
    standing.now_ms = LOCK_EXPIRY_MS - 1
    assert tokens(await standing.ask(asking("b", 0))) == {}
    assert tokens(await standing.ask(asking("a", 0))) == first
    standing.now_ms += LOCK_EXPIRY_MS - 1
    assert tokens(await standing.ask(asking("b", 0))) == {}
    standing.now_ms += 1
    assert tokens(await standing.ask(asking("b", 0)))[0] > first[0]
    assert tokens(await standing.ask(asking("a", 0))) == {}
    assert [client for _token, client in standing.journal.of(LOCKS).values()] == ["b"]


async def test_beginning_again_counts_as_a_renewal(standing: Standing) -> None:
    """Between two times of standing in, its owner renews the lock at the master."""
    first = tokens(await standing.ask(asking("a", 0)))
    standing.now_ms, standing.begun = 10 * LOCK_EXPIRY_MS, 2
    assert tokens(await standing.ask(asking("b", 0))) == {}
    assert tokens(await standing.ask(asking("a", 0))) == first


async def test_two_of_one_moment_get_different_answers(standing: Standing) -> None:
    one, two = Peer(), Peer()
    standing.locks.lock_batch(one, asking("a", 0, 1))
    standing.locks.lock_batch(two, asking("b", 0))
    assert not one.answers, "not before it is on the disk"
    await until(lambda: one.answers and two.answers)
    assert (list(tokens(one.answers[0])), tokens(two.answers[0])) == ([0, 1], {})


async def test_only_queues_that_exist_are_locked(standing: Standing) -> None:
    assert list(tokens(await standing.ask(asking("a", 1, 2)))) == [1]
    assert tokens(await standing.ask(asking("a", 0, topic="none"))) == {}


async def test_a_full_journal_grants_nothing_more(standing: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "ENTRIES_MAX", 1)
    assert list(tokens(await standing.ask(asking("a", 0, 1)))) == [0]
    assert tokens(await standing.ask(asking("b", 1))) == {}
    assert list(tokens(await standing.ask(asking("a", 0)))) == [0]


async def test_a_token_is_larger_than_any_that_was_seen(standing: Standing, running) -> None:
    epoch, (token,) = running.store.epoch, tokens(await standing.ask(asking("a", 1))).values()
    assert FencingTokens(epoch, acting=True).next() <= token < FencingTokens(epoch + 1).next()
    await standing.ask(asking("a", 1, code=RequestCode.UNLOCK_BATCH_MQ))
    late = FencingTokens(epoch + 7).next()
    running.broker.groups._locks.take_over([("g", "t", 1, late, "a")], 0)
    assert tokens(await standing.ask(asking("b", 0)))[0] > late


async def test_a_closed_log_is_no_answer(standing: Standing) -> None:
    standing.store = None
    with pytest.raises(Refused) as refused:
        await standing.ask(asking("a", 0))
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_oneway_unlock_is_carried_out(standing: Standing) -> None:
    first = tokens(await standing.ask(asking("a", 0)))
    command = asking("a", 0, code=RequestCode.UNLOCK_BATCH_MQ)
    command.flag |= FLAG_ONEWAY
    peer = Peer()
    standing.locks.unlock_batch(peer, command)
    assert tokens(await standing.ask(asking("b", 0)))[0] > first[0]
    assert not peer.answers


async def test_who_may_not_consume_locks_nothing(running, tmp_path: Path) -> None:
    standing = Standing(running, tmp_path, running.broker.tools.authorizer)
    running.judge_by(lambda _identity, _action, _resource: False)
    with pytest.raises(Refused) as refused:
        await standing.ask(asking("a", 0))
    assert refused.value.code == ResponseCode.NO_PERMISSION
