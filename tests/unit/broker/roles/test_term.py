"""A master's term: its first record where it was elected by the members, its doubts, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.replication.ha_server import HaServer
from broker.replication.leader import Acknowledge, LeaderSettings, Proposal
from broker.replication.majority import Majority
from broker.roles.steps import ControllerAnswer, KnownGroup, PauseWatch
from broker.roles.term import MasterTerm, TermHandOver, TermRules
from remoting.protocol.frames.codes import ResponseCode
from runtime.clock import SystemClock
from tests.unit.broker.replication.streams import DEADLINE_S, LOG, open_store

LIMIT_MS = 1_000


class Office:
    """A master of epoch 3 in a group of two; the other one is not there."""

    def __init__(self, directory: Path, majority: Majority | None, *, interval_ms: int = 50) -> None:
        self.now_ms = 0
        self.doubts = 0
        self.store = open_store(directory, "writer", 3)
        self.streams = HaServer(SystemClock(), LOG, keys={}, open_to_all=False, superseded=lambda _epoch: None).streams
        self.pauses = PauseWatch(LIMIT_MS, lambda: self.now_ms, lambda _paused_ms: None)
        rules = TermRules("c", "g", Acknowledge(mode="count", count=2), LeaderSettings(absence_ms=2 * interval_ms))
        group = KnownGroup(3, 1, members=frozenset({2}), set_epoch=1)
        self.leader = rules.begin(1, group, self.store, self.streams.now_ms(), majority)
        self.term = MasterTerm(self.leader, self.store, self.streams, self.pauses, self, LOG, interval_ms=interval_ms)
        self.proposals: asyncio.Queue[Proposal] = asyncio.Queue()
        self.asked_again = self.resigned = 0

    def propose(self, proposal: Proposal) -> None:
        self.proposals.put_nowait(proposal)

    def ask_again(self) -> None:
        self.asked_again += 1

    def doubt(self) -> None:
        self.doubts += 1

    def resign(self) -> None:
        self.resigned += 1

    def stand_still(self) -> None:
        self.now_ms += LIMIT_MS + 1
        self.pauses.may_answer()


@pytest.mark.parametrize(
    ("majority", "rule"),
    [
        (None, Acknowledge(mode="count", count=2)),
        (Majority(frozenset({1, 2}), lambda: True), Acknowledge(in_sync_min=2)),
    ],
)
async def test_an_elected_master_acknowledges_what_a_majority_has(
    tmp_path: Path, majority: Majority | None, rule: Acknowledge
) -> None:
    """Whatever is configured for groups with controllers; the master is in sync in both."""
    office = Office(tmp_path, majority)
    leader, store = office.leader, office.store
    assert leader.acknowledge == rule
    assert (leader.members.committed, leader.members.set_epoch) == ({1, 2}, 1)
    assert (leader.epoch, leader.epoch_start, leader.confirm_position) == (3, store.end_position, 0)
    store.close()


@pytest.mark.parametrize("elected", [False, True])
async def test_an_elected_master_begins_with_a_record(tmp_path: Path, elected: bool) -> None:
    office = Office(tmp_path, Majority(frozenset({1, 2}), lambda: True) if elected else None)
    end = office.store.end_position
    office.term.begin(former=2)
    assert (office.store.end_position > end) == elected
    assert not office.term.has_successor()
    office.term.end()
    office.store.close()


async def test_the_former_master_is_not_waited_for(tmp_path: Path) -> None:
    office = Office(tmp_path, None)
    office.term.begin(former=2)
    async with asyncio.timeout(DEADLINE_S):
        proposal = await office.proposals.get()
    assert proposal.members == {1}
    office.term.end()
    office.store.close()


async def test_doubts_are_told_until_its_end(tmp_path: Path) -> None:
    office = Office(tmp_path, None)
    office.term.begin(former=None)
    office.stand_still()
    assert (office.doubts, office.pauses.may_answer()) == (1, False)
    office.term.end()
    office.stand_still()
    assert office.doubts == 1
    office.store.close()


async def test_an_outcome_that_comes_after_the_end_means_nothing(tmp_path: Path) -> None:
    office = Office(tmp_path, None)
    office.term.begin(former=2)
    async with asyncio.timeout(DEADLINE_S):
        proposal = await office.proposals.get()
    office.term.end()
    refusal = ControllerAnswer(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, remark="another one is the master")
    committed = KnownGroup(3, 1, members=frozenset({1}), set_epoch=2)
    for late in (refusal, ControllerAnswer(None, remark="nobody there"), ControllerAnswer(0, committed)):
        assert not office.term.concluded(proposal, late)
    assert not office.term.learn(committed)
    assert (office.leader.members.open, office.leader.members.set_epoch, office.asked_again) == (proposal, 1, 0)
    office.store.close()


async def test_what_was_due_before_a_refusal_is_done_after_it(tmp_path: Path) -> None:
    """The next regular check is far away. Whoever refuses may know of another master."""
    office = Office(tmp_path, None, interval_ms=1_000_000)
    office.term.begin(former=2)
    async with asyncio.timeout(DEADLINE_S):
        first = await office.proposals.get()
        office.term.due()  # no second one before the first is decided
        checked = asyncio.Event()
        office.streams.host.soon(checked.set)
        await checked.wait()
        assert office.proposals.empty()
        office.term.concluded(first, ControllerAnswer(ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, remark="not alive"))
        second = await office.proposals.get()
    assert (second.members, second.number, office.asked_again) == (first.members, first.number + 1, 1)
    office.term.end()
    office.store.close()


class Handing:
    """A master that hands over; what is asked of it, in order."""

    def __init__(self, office: Office, *, limit_s: float) -> None:
        self.asked: asyncio.Queue[object] = asyncio.Queue()
        self.settled: Callable[[], None] | None = None
        self.hand_over = TermHandOver(office.term, self, limit_s=limit_s)
        self.hand_over.begin()

    def suspend(self) -> None:
        self.asked.put_nowait("suspend")

    def settle(self, settled: Callable[[], None]) -> None:
        self.asked.put_nowait("settle")
        self.settled = settled

    def seek(self, successor: int | None) -> None:
        self.asked.put_nowait(successor)

    def handed_over(self, why_not: str) -> None:
        self.asked.put_nowait(f"over: {why_not}")

    async def next(self, count: int) -> list[object]:
        async with asyncio.timeout(DEADLINE_S):
            return [await self.asked.get() for _ in range(count)]


async def test_the_controllers_are_asked_once_when_all_that_was_taken_is_confirmed(tmp_path: Path) -> None:
    office = Office(tmp_path, None)
    handing = Handing(office, limit_s=DEADLINE_S)
    assert await handing.next(2) == ["suspend", "settle"]
    assert handing.settled is not None
    assert handing.asked.empty()
    handing.settled()
    handing.settled()
    assert await handing.next(1) == [None]
    handing.hand_over.over()
    handing.hand_over.over("too late")
    assert await handing.next(1) == ["over: "]
    assert handing.asked.empty()
    office.store.close()


async def test_a_hand_over_ends_in_time_whatever_is_missing(tmp_path: Path) -> None:
    """Replicas that confirm nothing, controllers that do not answer."""
    office = Office(tmp_path, None)
    handing = Handing(office, limit_s=0.1)
    assert await handing.next(4) == ["suspend", "settle", None, "over: not done within 0.1 s"]
    office.store.close()


async def test_members_are_summoned_again_and_again(tmp_path: Path) -> None:
    """Nobody has everything here, which is looked at each time."""
    office = Office(tmp_path, Majority(frozenset({1, 2}), lambda: True))
    handing = Handing(office, limit_s=0.2)
    await handing.next(2)
    assert handing.settled is not None
    handing.settled()
    assert await handing.next(3) == [None] * 3
    handing.hand_over.over()
    assert "over: " in await handing.next(1)
    office.store.close()


async def test_nobody_is_summoned_once_the_term_has_ended(tmp_path: Path) -> None:
    """The log is closed: who leads next is heard, or the time is over."""
    office = Office(tmp_path, Majority(frozenset({1, 2}), lambda: True))
    office.term.begin(None)
    handing = Handing(office, limit_s=0.2)
    await handing.next(2)
    office.term.end()
    office.store.close()
    assert handing.settled is not None
    handing.settled()
    assert await handing.next(1) == ["over: not done within 0.2 s"]
