"""A master's term: its first record where it was elected by the members, its doubts, its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.replication.ha_server import HaServer
from broker.replication.leader import Acknowledge, Leader, LeaderSettings, SyncStateSet
from broker.replication.majority import Majority
from broker.roles.steps import PauseWatch
from broker.roles.term import MasterTerm
from runtime.clock import SystemClock
from tests.unit.broker.replication.streams import LOG, open_store

LIMIT_MS = 1_000


class Office:
    """A master of epoch 3 in a group of two; the other one is not there."""

    def __init__(self, directory: Path, majority: Majority | None) -> None:
        self.now_ms = 0
        self.doubts = 0
        self.store = open_store(directory, "writer", 3)
        self.streams = HaServer(SystemClock(), LOG, keys={}, open_to_all=False, superseded=lambda _epoch: None).streams
        self.pauses = PauseWatch(LIMIT_MS, lambda: self.now_ms, lambda _paused_ms: None)
        self.leader = Leader(
            1, 3, self.store.replica.epochs[-1][1], SyncStateSet({1, 2}, 1), Acknowledge(in_sync_min=1),
            LeaderSettings(), cluster="C", group="g", confirm=self.store.confirm_position,
            now_ms=self.streams.now_ms(), majority=majority,
        )  # fmt: skip
        self.term = MasterTerm(self.leader, self.store, self.streams, self.pauses, LOG, doubtful=self._doubt)

    def _doubt(self) -> None:
        self.doubts += 1

    def stand_still(self) -> None:
        self.now_ms += LIMIT_MS + 1
        self.pauses.may_answer()


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
    proposal = office.term.in_sync.check(office.store.positions.kept)
    assert proposal is not None
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
