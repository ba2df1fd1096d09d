"""When a will is due: every way a connection can end, delays, returns, restarts."""

from __future__ import annotations

import pytest

from broker.wills.feature import WillRecord, Wills
from remoting.protocol.bodies.session_body import WillSpec
from tests.support.plants import Plant, catches

GRACE_MS = 3_000


class Bench:
    """Wills on a real store; `now` is the time of the next call."""

    def __init__(self, bench) -> None:
        self._bench = bench
        self.now = 1_000
        self.wills = self._make()

    def _make(self) -> Wills:
        return Wills(self._bench.store, grace_ms=GRACE_MS, now_ms=self.now)

    def restart(self) -> None:
        self._bench.reopen()
        self.wills = self._make()

    def _write(self, changes) -> None:
        if changes:
            self._bench.store.append_state(changes)

    def open(self, epoch: int, *, delay_s=0, expiry_s=60, present=False, continues=0, leaves_will=True) -> None:
        spec = WillSpec(b"t", b"gone", 1, False, delay_s)
        record = WillRecord(expiry_s, 0, spec) if leaves_will else None
        self._write(self.wills.opened("c", epoch, record, self.now, continues=continues, present=present))

    def close(self, epoch: int, *, is_due=True, expiry_s=60) -> None:
        self._write(self.wills.closed("c", epoch, self.now, is_due=is_due, expiry_s=expiry_s))

    def due(self) -> list[int]:
        found = []
        for will in self.wills.due(self.now):
            found.append(will.epoch)
            self._write([self.wills.remove(will)])
        return found


@pytest.fixture
def at(bench) -> Bench:
    return Bench(bench)


def test_a_connection_that_disconnects_leaves_nothing(at) -> None:
    at.open(1)
    at.close(1, is_due=False)
    at.now += 10**9
    assert at.due() == []
    at.restart()
    assert len(at.wills) == 0


def test_one_that_does_not_has_its_will_due_at_once_and_once(at) -> None:
    at.open(1)
    assert at.due() == []
    at.close(1)
    assert at.due() == [1]
    at.close(1)
    at.restart()
    at.now += 10**9
    assert at.due() == []


@pytest.mark.parametrize(("delay_s", "expiry_s", "wait_ms"), [(5, 60, 5_000), (60, 5, 5_000), (60, 0, 0)])
def test_the_delay_ends_with_the_session_at_the_latest(at, delay_s, expiry_s, wait_ms) -> None:
    at.open(1, delay_s=delay_s)
    at.close(1, expiry_s=expiry_s)
    assert at.wills.next_due_ms() == at.now + wait_ms
    at.now += wait_ms - 1
    assert at.due() == []
    at.now += 1
    assert at.due() == [1]


def test_the_delay_continues_over_a_restart(at) -> None:
    at.open(1, delay_s=10)
    at.close(1)
    at.now += 4_000
    at.restart()
    at.now += 5_999
    assert at.due() == []
    at.now += 1
    assert at.due() == [1]


def test_a_session_that_continues_within_the_delay_cancels_it(at) -> None:
    at.open(1, delay_s=10)
    at.close(1)
    at.open(2, present=True, leaves_will=False)
    at.now += 10**9
    assert at.due() == []
    assert len(at.wills) == 0


def test_a_new_session_does_not_cancel_it(at) -> None:
    at.open(1, delay_s=10)
    at.close(1)
    at.open(2, present=False, leaves_will=False)
    assert at.due() == [1]


@pytest.mark.parametrize(("delay_s", "due"), [(0, [1]), (5, [])])
def test_a_take_over_ends_the_connection_but_not_the_session(at, delay_s, due) -> None:
    at.open(1, delay_s=delay_s)
    at.open(2, present=True)
    assert at.due() == due
    at.close(2)
    assert at.due() == [2]


def test_a_lost_proxy_has_time_to_return_and_continues_with_the_same_will(at) -> None:
    at.open(1)
    at.wills.proxy_lost("c", 1, at.now)
    at.now += GRACE_MS - 1
    assert at.due() == []
    at.open(2, continues=1)
    at.now += 10**9
    assert at.due() == []
    at.close(2)
    assert at.due() == [2]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_proxy_that_never_learned_the_new_epoch_continues_with_the_same_will(at, restarts) -> None:
    """The answer is lost on its way, alone or with the broker: the proxy names the epoch it knows once more."""
    at.open(1)
    at.open(2, continues=1)
    if restarts:
        at.restart()
    at.open(3, continues=1)
    at.open(4, continues=1)
    at.now += 10**9
    assert at.due() == []
    at.close(4)
    assert at.due() == [4]


def test_a_lost_proxy_that_stays_away_has_its_wills_published(at) -> None:
    at.open(1, delay_s=2)
    at.wills.proxy_lost("c", 1, at.now)
    at.now += GRACE_MS
    assert at.due() == [1]
    at.open(2, continues=1)
    at.close(2)
    assert at.due() == [], "the connection's will was removed: it is not stored again"


@catches(
    Plant(
        "a-delay-beyond-the-session",
        "broker.wills.feature:Wills._wait_with_grace",
        "min(record.spec.delay_s, record.expiry_s)",
        "record.spec.delay_s",
    ),
    Plant(
        "no-delay-after-a-proxy",
        "broker.wills.feature:Wills._wait_with_grace",
        "max(self._grace_ms, min(record.spec.delay_s, record.expiry_s) * 1_000)",
        "self._grace_ms",
    ),
)
def test_the_delay_of_a_lost_proxys_client_ends_with_its_session(at) -> None:
    """Also where the broker starts again before that: neither later than the session, nor before the delay."""
    for delay_s, expiry_s, wait_ms in [(60, 5, 5_000), (5, 60, 5_000), (1, 60, GRACE_MS)]:
        at.open(1, delay_s=delay_s, expiry_s=expiry_s)
        at.wills.proxy_lost("c", 1, at.now)
        assert at.wills.next_due_ms() == at.now + wait_ms
        at.restart()
        assert at.wills.next_due_ms() == at.now + wait_ms
        at.now += wait_ms
        assert at.due() == [1]


def test_a_client_that_reconnects_elsewhere_while_its_proxy_is_lost(at) -> None:
    at.open(1)
    at.wills.proxy_lost("c", 1, at.now)
    at.open(2, present=True, leaves_will=False)
    assert at.due() == [1]


def test_a_restart_gives_every_connection_the_grace(at) -> None:
    at.open(1)
    at.restart()
    assert at.due() == []
    at.now += GRACE_MS
    assert at.due() == [1]


def test_a_will_being_judged_is_not_cancelled_by_another_connection(at) -> None:
    at.open(1, delay_s=1)
    at.close(1)
    at.now += 1_000
    (will,) = at.wills.due(at.now)
    at.wills.later(will, at.now + 500)
    at.open(2, present=True, leaves_will=False)
    assert at.wills.get("c", 1) is will
    at.now += 500
    assert at.due() == [1]


def test_what_could_not_be_written_is_kept(at) -> None:
    at.open(1)
    at.close(1)
    (will,) = at.wills.due(at.now)
    at.wills.remove(will)
    assert at.wills.get("c", 1) is None
    at.wills.keep(will)
    at.wills.later(will, at.now)
    assert at.due() == [1]


def test_cancelled_wills_do_not_accumulate(at) -> None:
    for epoch in range(1, 5_000):
        at.wills.opened("c", epoch, WillRecord(60, 0, WillSpec(b"t", b"", 0, False, 50)), 0, continues=0, present=True)
        at.wills.closed("c", epoch, 0, is_due=True, expiry_s=60)
    assert len(at.wills) == 1
    assert len(at.wills._heap) <= 1_025
