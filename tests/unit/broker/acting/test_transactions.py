"""Transactions that end while a replica stands in: decided once, and visible once when a master is back."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.acting.journal import FILE_NAME, ActingJournal
from broker.acting.kinds import TRANSACTIONS
from broker.acting.transactions import ActingTransactions
from broker.app import BrokerApp
from remoting.client.connection import dial
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from runtime.logs import get_logger
from tests.unit.broker.acting.test_replica import (
    ElectingPair,
    acting,
    at_master,
    left_alone,
    pair,  # noqa: F401
    until,
)
from tests.unit.broker.transactions.test_feature import COMMIT, GROUP, ROLL_BACK, UNKNOWN, ending, prepare, stored


async def said(app: BrokerApp, decision: Command) -> Command:
    """The answer to a decision, once this broker stands in."""
    connection = await dial(f"127.0.0.1:{app.port}")
    try:
        await until(acting(app).presence.acts)
        return await connection.request(decision, 5_000)
    finally:
        await connection.close()


async def halves(pair: ElectingPair, count: int) -> list[Command]:  # noqa: F811
    """Half messages that both brokers know to be confirmed."""
    master = pair.master()
    assert master is not None
    connection = await dial(f"127.0.0.1:{master.port}")
    sent = [await prepare(connection) for _ in range(count)]
    await connection.close()
    end = master._member.store.end_position
    await until(lambda: all(app._member.log_state().confirm >= end for app in pair.brokers.values()))
    return sent


async def test_an_outcome_is_the_next_masters(pair: ElectingPair) -> None:  # noqa: F811
    committed, rolled_back, left_open = await halves(pair, 3)
    number, left = await left_alone(pair)
    for _ in range(2):
        assert (await said(left, ending(committed, COMMIT))).code == ResponseCode.SUCCESS
    assert (await said(left, ending(rolled_back, ROLL_BACK))).code == ResponseCode.SUCCESS
    assert (await said(left, ending(left_open, UNKNOWN))).code == ResponseCode.SUCCESS
    refused = await said(left, ending(committed, ROLL_BACK))
    assert (refused.code, "committed before" in refused.remark) == (ResponseCode.TRANSACTION_FAILED, True)
    assert len(acting(left).journal.of(TRANSACTIONS)) == 2
    await left.stop()
    left = await pair.add(number)
    refused = await said(left, ending(rolled_back, COMMIT))
    assert "rolled back before" in refused.remark, "as before the restart"

    await pair.add(3 - number)
    await until(pair.master)
    await until(lambda: not (pair.directory / f"broker-{number}" / FILE_NAME).exists())

    async def shown(master: BrokerApp) -> tuple[list[bytes], dict[str, int], int]:
        connection = await dial(f"127.0.0.1:{master.port}")
        try:
            found = [message.body for message in await stored(connection)]
            code = (await connection.request(ending(rolled_back, COMMIT), 5_000)).code
            return found, master.broker.transactions.status(), code
        finally:
            await connection.close()

    found, status, code = await at_master(pair, shown)
    assert (found, status, code) == ([b"paid"], {"transactions": 1}, ResponseCode.TRANSACTION_FAILED)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"producerGroup": "thieves"}, ResponseCode.TRANSACTION_STATE_GROUP_WRONG),
        ({"commitLogOffset": 8}, ResponseCode.SYSTEM_ERROR),
        ({"tranStateTableOffset": 5}, ResponseCode.SYSTEM_ERROR),
        ({"commitOrRollback": 4}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_what_the_log_does_not_know_is_refused(running, tmp_path: Path, fields: dict, code: int) -> None:
    transactions, peer, journal = over(running, tmp_path)
    decision = ending(await prepare(running.connect()), **fields)
    with pytest.raises(Refused) as refused:
        transactions.end(peer, decision)
    assert refused.value.code == code
    assert not len(journal)


async def test_who_may_not_publish_decides_nothing(running, tmp_path: Path) -> None:
    running.judge_by(lambda _identity, _action, resource: resource != "orders")
    transactions, peer, journal = over(running, tmp_path, running.broker.tools.authorizer)
    running.judge_by(lambda _identity, _action, _resource: True)
    sent = await prepare(running.connect())
    running.judge_by(lambda _identity, _action, resource: resource != "orders")
    with pytest.raises(Refused) as refused:
        transactions.end(peer, ending(sent, topic="mine"))
    assert refused.value.code == ResponseCode.NO_PERMISSION
    assert not len(journal)


async def test_a_decision_that_is_being_written_counts(running, tmp_path: Path) -> None:
    """The other one is refused before the first is on the disk; the same one is answered after it, too."""
    transactions, peer, journal = over(running, tmp_path)
    sent = await prepare(running.connect())
    transactions.end(peer, ending(sent, COMMIT))
    transactions.end(peer, ending(sent, COMMIT))
    with pytest.raises(Refused, match="committed before"):
        transactions.end(peer, ending(sent, ROLL_BACK))
    assert peer.answers == []
    await until(lambda: [answer.code for answer in peer.answers] == [0, 0])
    assert len(journal.of(TRANSACTIONS)) == 1


async def test_what_the_log_has_decided_stays(running, tmp_path: Path) -> None:
    transactions, peer, _journal = over(running, tmp_path)
    connection = running.connect()
    sent = await prepare(connection)
    with pytest.raises(Refused, match="not at log position"):
        transactions.end(peer, ending(sent, commitLogOffset=8))
    assert (await connection.request(ending(sent, ROLL_BACK))).code == ResponseCode.SUCCESS
    with pytest.raises(Refused, match="rolled back before"):
        transactions.end(peer, ending(sent, COMMIT))


class _Peer:
    """A connection that notes its answers."""

    def __init__(self) -> None:
        self.answers: list[Command] = []
        self.attributes: dict[str, object] = {}

    def send(self, command: Command) -> None:
        self.answers.append(command)


def over(running, directory: Path, authorizer: Authorizer | None = None):
    """What stands in over the log of a running broker, a peer of it, and its journal."""
    journal = ActingJournal(directory, get_logger("test"))
    transactions = ActingTransactions(
        journal, lambda: running.store, authorizer or Authorizer(), running.config, get_logger("test")
    )
    return transactions, _Peer(), journal


async def test_a_producer_is_asked_once_it_is_late_and_its_answer_counts(pair: ElectingPair) -> None:  # noqa: F811
    """The producer is connected to the replica, which it takes for the master."""
    late, ended = await halves(pair, 2)
    _number, left = await left_alone(pair)
    await said(left, ending(ended, COMMIT))
    connection = await dial(f"127.0.0.1:{left.port}")
    asked: list[Command] = []
    connection.on_push(asked.append)
    body = b'{"clientID":"payer@1","producerDataSet":[{"groupName":"%s"}]}' % GROUP.encode()
    assert (await connection.request(Command(RequestCode.HEART_BEAT, body=body))).code == ResponseCode.SUCCESS
    reads, config = left._member._reads, left.config
    now_ms = reads._clock.now_ms()
    late_ms = now_ms + 10 * config.transaction_check_interval_ms
    for at_ms in (late_ms, late_ms + 1, late_ms + config.transaction_check_interval_ms):
        await until(acting(left).presence.acts)
        acting(left).maintain(at_ms, reads._questions)
    await until(lambda: len(asked) == 2)
    assert {command.code for command in asked} == {RequestCode.CHECK_TRANSACTION_STATE}
    assert {command.fields["tranStateTableOffset"] for command in asked} == {late.fields["queueOffset"]}
    answer = ending(late, ROLL_BACK, commitLogOffset=asked[0].fields["commitLogOffset"])
    assert (await said(left, answer)).code == ResponseCode.SUCCESS
    acting(left).maintain(late_ms + 20 * config.transaction_check_interval_ms, reads._questions)
    await connection.close()
    assert len(asked) == 2
    assert len(acting(left).journal.of(TRANSACTIONS)) == 2


async def test_what_a_master_would_give_up_waits_for_one(running, tmp_path: Path) -> None:
    transactions, _peer, journal = over(running, tmp_path)
    await prepare(running.connect())
    questions = Questions()
    config, now_ms = running.config, running.clock.now_ms() + running.config.transaction_check_after_ms
    for number in range(config.transaction_checks_max + 3):
        transactions.maintain(now_ms + number * config.transaction_check_interval_ms, questions)
    assert questions.asked == config.transaction_checks_max
    assert running.broker.transactions.messages.halves.topic_of(0) == "orders", "it is pending"
    assert not len(journal)


class Questions:
    """Counts questions instead of asking."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, _halves, half) -> None:
        self.asked += 1
        half.checks += 1
