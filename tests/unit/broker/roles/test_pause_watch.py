"""A master that stood still answers nobody until it knows that it still is one; one that ran is never in doubt."""

from __future__ import annotations

from broker.replication.acknowledge import Acknowledge
from broker.replication.epochs import Extent
from broker.replication.frames import Hello, Ready
from broker.replication.leader import Leader, LeaderSettings
from broker.replication.sync_state_set import SyncStateSet
from broker.roles.pause_watch import PauseWatch, pause_limit_ms

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
        self.ended = 0
        self.watch = PauseWatch(LIMIT_MS, lambda: self.now_ms, self.paused.append)

    def lead(self) -> None:
        self.watch.lead(self.leader, self.end)

    def end(self) -> None:
        """What a master does when a doubt begins."""
        self.ended += 1
        for broker in (2, 3):
            self.leader.disconnected(broker, self.now_ms)

    def connect(self, *brokers: int) -> None:
        for broker in brokers:
            hello = Hello(broker, 5, 0, 0, b"", "c", "g")
            self.leader.hello(broker, hello, LOG, self.now_ms)
            self.leader.ready(broker, Ready(epoch=5, position=0), LOG, self.now_ms)

    def pass_ms(self, duration_ms: int) -> None:
        self.now_ms += duration_ms


def leading(members: frozenset[int] = frozenset({1, 2, 3})) -> Bench:
    bench = Bench(members)
    bench.lead()
    return bench


def test_short_pauses_are_no_reason_to_doubt() -> None:
    bench = leading()
    for _ in range(100):
        bench.pass_ms(LIMIT_MS)
        assert bench.watch.may_answer()
        assert not bench.watch.tick()
    assert bench.paused == []


def test_after_a_long_one_nobody_is_answered_whoever_comes_first() -> None:
    """A request before the timer, or the timer; and it stays so."""
    for first in (PauseWatch.may_answer, PauseWatch.tick):
        bench = leading()
        bench.pass_ms(LIMIT_MS + 1)
        assert not first(bench.watch)
        assert (bench.paused, bench.ended) == ([LIMIT_MS + 1], 1)
        for _ in range(20):
            bench.pass_ms(100)
            assert not bench.watch.tick()
            assert not bench.watch.may_answer()
        assert bench.watch.pauses == 1


def test_the_controllers_answer_to_a_new_question_ends_it() -> None:
    """Not to one that was asked before, not about another master or epoch."""
    bench = leading()
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


def test_without_controllers_every_member_in_sync_must_come_anew() -> None:
    """What members said on connections from before the pause may be older than it, whenever it arrives."""
    bench = leading()
    bench.connect(2, 3)
    bench.pass_ms(5_000)
    assert not bench.watch.may_answer()
    assert bench.ended == 1
    bench.pass_ms(10)
    assert not bench.watch.tick()
    bench.connect(2)
    assert not bench.watch.tick()
    bench.connect(3)
    assert bench.watch.tick()
    assert bench.watch.may_answer()


def test_who_came_in_the_moment_of_the_doubt_proves_nothing() -> None:
    """It may have greeted before."""
    bench = leading()
    bench.pass_ms(5_000)
    bench.connect(2, 3)
    bench.watch.lead(bench.leader)  # whose connections end a moment later
    assert not bench.watch.tick()
    bench.pass_ms(10)
    assert not bench.watch.tick()


def test_a_member_that_knows_a_newer_epoch_proves_nothing() -> None:
    bench = leading()
    bench.pass_ms(5_000)
    assert not bench.watch.may_answer()
    bench.pass_ms(10)
    bench.connect(2, 3)
    bench.leader.superseded = 6
    assert not bench.watch.tick()


def test_the_only_member_in_sync_cannot_have_been_replaced() -> None:
    bench = leading(frozenset({1}))
    bench.pass_ms(5_000)
    assert not bench.watch.may_answer()
    assert bench.watch.tick()


def test_who_becomes_the_master_by_old_news_is_in_doubt() -> None:
    """A replica stood still, and what makes it the master may have waited in its sockets meanwhile."""
    bench = Bench()
    bench.pass_ms(5_000)
    bench.lead()
    assert not bench.watch.may_answer()
    assert bench.paused == [5_000]
    bench.pass_ms(100)
    assert not bench.watch.tick()
    assert bench.watch.confirmed(5, 1, bench.now_ms)
    assert bench.watch.may_answer()


def test_any_answer_of_the_controllers_ends_a_replicas_doubt() -> None:
    """To a question asked since: whatever makes it the master later is newer."""
    bench = Bench()
    bench.pass_ms(5_000)
    assert not bench.watch.may_answer()
    assert not bench.watch.tick()
    assert not bench.watch.confirmed(7, 2, bench.now_ms - 1)
    assert not bench.watch.may_answer()
    assert not bench.watch.confirmed(7, 2, bench.now_ms), "nothing to tell of"
    bench.lead()
    assert bench.watch.may_answer()


def test_the_limit_leaves_room_for_the_last_heartbeat() -> None:
    assert pause_limit_ms(500, 2_000) == 1_000
    assert pause_limit_ms(500, 1_000) == 500
