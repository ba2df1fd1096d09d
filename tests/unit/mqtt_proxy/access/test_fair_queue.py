"""Queue entries and turns are shared among origins and among the lanes of each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.access.credentials import FairQueue


def filled(entries: str, *, total_max: int = 100, origin_max: int = 100) -> FairQueue[str]:
    """Entries such as "a1" of origin "a", lane "1"."""
    queue: FairQueue[str] = FairQueue(total_max=total_max, origin_max=origin_max)
    for entry in entries.split():
        assert queue.put(entry[0], entry[1], entry) is None
    return queue


def drained(queue: FairQueue[str]) -> str:
    """All entries in the order of the turns."""
    return " ".join(queue.take() for _ in range(len(queue)))


def test_origins_take_turns_and_so_do_their_lanes() -> None:
    """First in, first out holds within a lane only."""
    queue = filled("a1x a1y a1z a2x b1x b1y")
    assert drained(queue) == "a1x b1x a2x b1y a1y a1z"
    with pytest.raises(IndexError):
        queue.take()


def test_a_full_origin_costs_its_longest_lane() -> None:
    """The origin that fills it loses its own entries; another origin has its own share."""
    queue = filled("a1x a1y a1z", origin_max=3)
    assert queue.crowded("a")
    assert not queue.crowded("b")
    assert queue.put("a", "1", "a1!") == "a1!"
    assert queue.put("a", "2", "a2x") == "a1z"
    assert queue.put("a", "2", "a2!") == "a2!"
    assert queue.put("b", "1", "b1x") is None
    assert drained(queue) == "a1x b1x a2x a1y"


def test_a_full_queue_costs_the_largest_origin() -> None:
    """Even a full queue admits a new origin."""
    queue = filled("a1x a1y a1z", total_max=3)
    assert queue.put("a", "1", "a1!") == "a1!"
    assert queue.put("b", "1", "b1x") == "a1z"
    assert queue.put("a", "2", "a2x") == "a1y"
    assert queue.put("c", "1", "c1x") == "a1x"
    assert drained(queue) == "a2x b1x c1x"
    assert filled("a1x b1x", total_max=2).put("c", "1", "c1x") == "c1x"


def test_abandoned_entries_are_removed() -> None:
    """Wherever they are queued; the remaining ones keep their order."""
    queue = filled("a1x a1- a2- b1-")
    assert sorted(queue.sweep(lambda entry: entry.endswith("-"))) == ["a1-", "a2-", "b1-"]
    assert drained(queue) == "a1x"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("123"))), st.integers(1, 9), st.integers(1, 5))
def test_bounds_hold_and_nothing_is_lost(puts: list[tuple[str, str]], total_max: int, origin_max: int) -> None:
    """Every entry is served or rejected exactly once."""
    queue: FairQueue[int] = FairQueue(total_max=total_max, origin_max=origin_max)
    turned_away = []
    for number, (origin, lane) in enumerate(puts):
        dropped = queue.put(origin, lane, number)
        if dropped is not None:
            turned_away.append(dropped)
        assert len(queue) <= total_max
    served = [queue.take() for _ in range(len(queue))]
    assert sorted(served + turned_away) == list(range(len(puts)))
    per_origin = [puts[number][0] for number in served]
    assert all(per_origin.count(origin) <= origin_max for origin in "abc")
