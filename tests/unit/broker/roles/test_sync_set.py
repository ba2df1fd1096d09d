"""What a master proposes as the set in sync, and what each outcome means."""

from __future__ import annotations

import pytest

from broker.replication.host import StreamHost
from broker.replication.leader import Acknowledge, Leader, LeaderSettings, Proposal, SyncStateSet
from broker.replication.replica_streams import ReplicaStreams
from broker.roles.steps import KnownGroup
from broker.roles.term import CERTAIN, SyncSetKeeper
from remoting.protocol.frames.codes import ResponseCode
from runtime.logs import get_logger

EPOCH = 3


class Bench:
    """A master of two, whose replica is not there any more."""

    def __init__(self) -> None:
        self.now_ms = 0
        host = StreamHost(
            now_ms=lambda: self.now_ms, later=lambda *_: None, soon=lambda _: None,
            nonce=lambda: bytes(16), chance=lambda: 0.0, log=get_logger("test"),
        )  # fmt: skip
        self.leader = Leader(
            1, EPOCH, 0, SyncStateSet((1, 2), 7), Acknowledge(), LeaderSettings(absence_ms=100),
            cluster="c", group="g", confirm=0, now_ms=0,
        )  # fmt: skip
        streams = ReplicaStreams(host, keys={}, open_to_all=False, superseded=lambda _epoch: None)
        self.keeper = SyncSetKeeper(self.leader, streams, get_logger("test"))

    def proposal(self) -> Proposal:
        self.now_ms += 1_000
        proposal = self.keeper.check(0)
        assert proposal is not None
        assert (proposal.members, proposal.base_epoch) == ({1}, 7)
        return proposal


def test_who_is_gone_leaves_once_the_controllers_have_committed_it() -> None:
    bench = Bench()
    bench.proposal()
    assert bench.keeper.check(0) is None, "one is open"
    assert bench.leader.members.effective == {1, 2}
    assert not bench.keeper.learn(KnownGroup(EPOCH + 1, 1, members=frozenset({1}), set_epoch=8))
    assert bench.keeper.learn(KnownGroup(EPOCH, 1, members=frozenset({1}), set_epoch=8))
    assert not bench.keeper.learn(KnownGroup(EPOCH, 1, members=frozenset({1}), set_epoch=8))
    assert (bench.leader.members.effective, bench.keeper.changes) == ({1}, 1)


@pytest.mark.parametrize("code", sorted(CERTAIN))
def test_a_certain_refusal_leaves_the_set_as_it_was(code: int) -> None:
    bench = Bench()
    bench.leader.members.learn((1,), 8)
    proposal = bench.leader.members.propose(frozenset({1, 2}))
    bench.keeper.refused(proposal, code, "no")
    assert (bench.leader.members.effective, bench.leader.members.doubtful) == ({1}, frozenset())


def test_after_any_other_error_both_sets_stay_required() -> None:
    for answers in (True, False):
        bench = Bench()
        bench.leader.members.learn((1,), 8)
        proposal = bench.leader.members.propose(frozenset({1, 2}))
        if answers:
            bench.keeper.refused(proposal, ResponseCode.SYSTEM_BUSY, "busy")
        else:
            bench.keeper.unanswered(proposal, "no answer")
        assert (bench.leader.members.effective, bench.leader.members.doubtful) == ({1, 2}, {2})
