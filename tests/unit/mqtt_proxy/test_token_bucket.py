"""Token buckets with a manual clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy import quotas
from mqtt_proxy.quotas import DEBT_S_MAX, BucketTable, TokenBucket


def test_a_burst_then_the_rate() -> None:
    """Three at once, then one every half second."""
    bucket = TokenBucket(2.0, 3.0, 1_000)
    assert [bucket.take(1, 1_000) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take(1, 1_499)
    assert bucket.take(1, 1_500)
    assert not bucket.take(1, 1_500)


def test_never_more_than_the_burst_is_saved() -> None:
    """An hour of silence saves one burst."""
    bucket = TokenBucket(100.0, 5.0, 0)
    assert bucket.level(3_600_000) == 5.0
    assert bucket.is_full(3_600_000)


def test_take_may_go_down_to_a_floor() -> None:
    """Below zero as far as the caller allows."""
    bucket = TokenBucket(1.0, 1.0, 0)
    assert [bucket.take(1, 0, -2.0) for _ in range(4)] == [True, True, True, False]
    assert bucket.level(0) == -2.0
    assert not bucket.is_full(0)


def test_a_charge_leaves_a_debt_and_returns_the_wait() -> None:
    """Ten messages at four a second with a burst of four: six are owed."""
    bucket = TokenBucket(4.0, 4.0, 0)
    assert bucket.charge(4, 0) == 0
    assert bucket.charge(6, 0) == 1_501
    assert bucket.charge(0, 1_501) == 0


def test_a_debt_is_bounded() -> None:
    """An hour's worth of messages costs ten seconds, and the next one no more than that."""
    bucket = TokenBucket(1.0, 1.0, 0)
    assert bucket.charge(3_600, 0) == DEBT_S_MAX * 1_000 + 1
    assert bucket.charge(3_600, 0) == DEBT_S_MAX * 1_000 + 1


def test_time_that_goes_backwards_changes_nothing() -> None:
    """It neither adds tokens nor removes them."""
    bucket = TokenBucket(1.0, 2.0, 10_000)
    assert bucket.take(2, 10_000)
    assert bucket.level(5_000) == 0
    assert bucket.level(11_000) == 1


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 40)), max_size=60))
def test_waiting_as_returned_keeps_the_rate(steps: list[tuple[int, int]]) -> None:
    """A caller that waits as long as returned never gets more than burst + rate x time + the last overdraft."""
    bucket = TokenBucket(50.0, 50.0, 0)
    now = total = last = 0
    for pause, amount in steps:
        now += pause
        assert total - last <= 50.0 + now * 0.05 + 1e-6
        wait = bucket.charge(amount, now)
        total += amount
        last = amount
        now += wait


def test_a_table_keeps_parties_apart() -> None:
    """One party's use does not affect another's."""
    table = BucketTable(1.0, 1.0)
    assert table.of("a", 0).take(1, 0)
    assert not table.of("a", 0).take(1, 0)
    assert table.of("b", 0).take(1, 0)


def test_a_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full buckets are dropped first, then the oldest of those in use."""
    monkeypatch.setattr(quotas, "BUCKETS_MAX", 3)
    table = BucketTable(1.0, 1.0)
    used = table.of("used", 0)
    used.charge(5, 0)
    table.of("idle", 0)
    table.of("idle too", 0)
    table.of("new", 0)
    assert len(table) == 2
    assert table.of("used", 0) is used
    table.of("new", 0).charge(5, 0)
    table.of("newer", 0).charge(5, 0)
    table.of("newest", 0)
    assert len(table) == 3
    assert table.of("used", 0) is not used
