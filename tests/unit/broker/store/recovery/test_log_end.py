"""The decision where the log ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.store.recovery.log_end import Damage, LogEnd, Scan, decide_end


def scan(records_end: int, groups_end: int, reason: str = "bad") -> Scan:
    return Scan(records_end, groups_end, reason, 1, 0, 0)


def test_torn_tail_and_corruption() -> None:
    """The same failure is a torn tail above the durable position and damage below it."""
    assert decide_end(scan(100, 100), 100) == LogEnd(100, 0)
    assert decide_end(scan(100, 100), 101) == Damage(100, "bad")
    assert decide_end(scan(100, 60), 60) == LogEnd(60, 40)
    assert isinstance(decide_end(scan(100, 60), 61), Damage)
    assert decide_end(scan(100, 100, ""), 200) == Damage(100, "the log ends there")


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_never_ends_below_the_durable_position(groups_end: int, more: int, durable: int) -> None:
    """Whatever the scan found."""
    end = decide_end(scan(groups_end + more, groups_end), durable)
    assert isinstance(end, Damage) or end.position >= durable
