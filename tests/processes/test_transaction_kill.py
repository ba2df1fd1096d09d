"""Transactions through `kill -9`: committed messages are published once; rolled back and open ones never.

A producer prepares and decides while the broker is killed repeatedly, or while the master of a group is killed and
stays down. Unanswered decisions are repeated at the end; one already carried out must not publish a second time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.properties import encode_properties
from tests.processes.kill_rounds import Load, judge_after_kills, judge_on_new_master, published

pytestmark = pytest.mark.processes
TOPIC, GROUP = "payments", "payers"
COMMIT, ROLL_BACK = 8, 12


def half(number: int) -> Command:
    """A half message with this number."""
    properties = {b"TRAN_MSG": b"true", b"PGROUP": GROUP.encode(), b"UNIQ_KEY": b"%032d" % number}
    fields = {"a": GROUP, "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % 4), "f": "4", "g": "5", "h": "0",
              "i": encode_properties(properties.items()).decode()}  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"%d" % number)


class Producer(Load):
    """Prepares messages and decides them a little later: of five two are committed, two rolled back, one is left."""

    answered_min = 60

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.prepared: dict[int, Command] = {}

    def decision(self, number: int) -> Command | None:
        """The producer's decision on an acknowledged half message; None for one it leaves open."""
        if number % 5 == 4:
            return None
        sent = self.prepared[number].fields
        fields = {
            "topic": TOPIC, "producerGroup": GROUP, "tranStateTableOffset": sent["queueOffset"],
            "commitLogOffset": str(int(sent["msgId"][16:], 16)),
            "commitOrRollback": str(COMMIT if number % 5 < 2 else ROLL_BACK),
        }  # fmt: skip
        return Command(RequestCode.END_TRANSACTION, fields=fields)

    def step(self, connection: BlockingConnection, number: int) -> None:
        self.prepared[number] = checked(connection.request(half(number)))
        self.decide(connection, number - 7)

    def decide(self, connection: BlockingConnection, number: int) -> None:
        """Decide it, if it is there and not left open."""
        command = self.decision(number) if number in self.prepared else None
        if command is not None:
            checked(connection.request(command))
            self.count(number)


def judge(producer: Producer) -> None:
    """Let the producer end, and decide the rest: each committed number is there once, and no other."""
    producer.finish()
    with BlockingConnection.dial(producer.address) as connection:
        assert {number for number in producer.answered if number % 5 < 2} <= set(published(connection, TOPIC))
        for number in sorted(set(producer.prepared) - producer.answered):
            producer.decide(connection, number)
        for number in sorted(producer.answered)[-20:]:
            producer.decide(connection, number)
        numbers = published(connection, TOPIC)
    assert sorted(numbers) == [number for number in sorted(producer.prepared) if number % 5 < 2]


@pytest.mark.parametrize(
    "kills", [2, pytest.param(15, marks=[pytest.mark.slow, pytest.mark.timeout(400)], id="15-slow")]
)
def test_commits_are_published_once_and_nothing_else_over_kills(tmp_path: Path, kills: int) -> None:
    judge_after_kills(tmp_path, Producer, judge, kills)


@pytest.mark.timeout(400)
def test_a_new_master_knows_what_is_open_and_what_was_decided(tmp_path: Path) -> None:
    judge_on_new_master(tmp_path, Producer, judge)
