"""A master that stood still answers nobody until it knows that it still is one; one that ran is never in doubt."""

from __future__ import annotations

from broker.replication.acknowledge import Acknowledge
from broker.replication.epochs import Extent
from broker.replication.frames import Ack, Hello, Ready
from broker.replication.leader import Leader, LeaderSettings
from broker.replication.sync_state_set import SyncStateSet
from broker.roles.pause_watch import SETTLE_MS, PauseWatch, pause_limit_ms

LIMIT_MS = 1_000
LOG = Extent(0, 0, ())


class Bench:
    """A master of three in epoch 5, and a clock."""

    def __init__(self, members: frozenset[int] = frozenset({1, 2, 3})) -> None:
        self.now_ms = 10_000
        self.paused: list[int] = []
        self.leader = Leader(
            1, 5, 0, SyncStateSet(members, 1), Acknowledge(mode="all", count=2, in_sync_min=2), LeaderSettings(),
            cluster="c", group="g", confirm=0, now_ms=self.now_ms,
        )  # fmt: skip
        self.watch = PauseWatch(self.leader, LIMIT_MS, lambda: self.now_ms, self.paused.append)

    def connect(self, *brokers: int) -> None:
        for broker in brokers:
            hello = Hello(broker, 5, 0, 0, b"", "c", "g")
            self.leader.hello(broker, hello, LOG, self.now_ms)
            self.leader.ready(broker, Ready(epoch=5, position=0), LOG, self.now_ms)

    def said(self, *brokers: int) -> None:
        for broker in brokers:
            self.leader.acknowledged(broker, Ack(epoch=5, end=0), self.now_ms)

    def pass_ms(self, duration_ms: int) -> None:
        self.now_ms += duration_ms


def test_short_pauses_are_no_reason_to_doubt() -> None:
    bench = Bench()
    for _ in range(100):
        bench.pass_ms(LIMIT_MS)
        assert bench.watch.may_answer()
        assert not bench.watch.tick()
    assert bench.paused == []


def test_after_a_long_one_nobody_is_answered_whoever_comes_first() -> None:
    """A request before the timer, or the timer; and it stays so."""
    for first in (PauseWatch.may_answer, PauseWatch.tick):
        bench = Bench()
        bench.pass_ms(LIMIT_MS + 1)
        assert not first(bench.watch)
        assert bench.paused == [LIMIT_MS + 1]
        for _ in range(20):
            bench.pass_ms(100)
            assert not bench.watch.tick()
            assert not bench.watch.may_answer()
        assert bench.watch.pauses == 1


def test_the_controllers_answer_to_a_new_question_ends_it() -> None:
    """Not to one that was asked before, not about another master or epoch."""
    bench = Bench()
    asked_ms = bench.now_ms
    bench.pass_ms(5_000)
    assert not bench.watch.may_answer()
    assert not bench.watch.confirmed(5, 1, asked_ms)
    assert not bench.watch.confirmed(6, 2, bench.now_ms)
    assert not bench.watch.confirmed(6, 1, bench.now_ms)
    assert not bench.watch.may_answer()
    assert bench.watch.confirmed(5, 1, bench.now_ms)
    assert bench.watch.may_answer()
    assert not bench.watch.confirmed(5, 1, bench.now_ms)


def test_without_controllers_every_member_in_sync_must_speak_after_the_pause() -> None:
    """What lay in the sockets meanwhile is no proof, and one of two is none."""
    bench = Bench()
    bench.connect(2, 3)
    bench.pass_ms(5_000)
    assert not bench.watch.may_answer()
    bench.said(2, 3)
    bench.pass_ms(SETTLE_MS)
    assert not bench.watch.tick()
    bench.pass_ms(10)
    bench.said(2)
    assert not bench.watch.tick()
    bench.said(3)
    assert bench.watch.tick()
    assert bench.watch.may_answer()


def test_a_member_that_is_gone_or_knows_a_newer_epoch_proves_nothing() -> None:
    bench = Bench()
    bench.connect(2)
    bench.pass_ms(5_000)
    assert not bench.watch.may_answer()
    bench.pass_ms(SETTLE_MS + 10)
    bench.said(2)
    assert not bench.watch.tick()
    bench.connect(3)
    bench.leader.superseded = 6
    bench.pass_ms(10)
    bench.said(2, 3)
    assert not bench.watch.tick()


def test_the_only_member_in_sync_cannot_have_been_replaced() -> None:
    bench = Bench(frozenset({1}))
    bench.pass_ms(5_000)
    assert not bench.watch.may_answer()
    assert bench.watch.tick()


def test_the_limit_leaves_room_for_the_last_heartbeat() -> None:
    assert pause_limit_ms(500, 2_000) == 1_000
    assert pause_limit_ms(500, 1_000) == 500
