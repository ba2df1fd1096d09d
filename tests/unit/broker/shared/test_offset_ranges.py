"""Ranges against a plain set of numbers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from broker.shared.group import OffsetRanges


def numbers(ranges: list[tuple[int, int]]) -> list[int]:
    return [number for start, end in ranges for number in range(start, end)]


@given(st.lists(st.integers(0, 40), unique=True))
def test_ranges_hold_what_was_added_and_never_touch(offsets: list[int]) -> None:
    """Whatever the order, the ranges are the set; neighbours are one range."""
    ranges = OffsetRanges()
    for offset in offsets:
        ranges.add(offset, offset + 1)
    found = ranges.sorted()
    assert numbers(found) == sorted(offsets)
    assert all(end < start for (_, end), (start, _) in pairwise(found))
    assert len(ranges) == len(found)
    again = OffsetRanges(found)
    assert again.sorted() == found


def test_taking_the_front_returns_where_it_ends() -> None:
    """Only a range that begins there is dropped."""
    ranges = OffsetRanges([(3, 5), (7, 9)])
    assert ranges.take_from(2) == 2
    assert ranges.take_from(3) == 5
    assert ranges.take_from(7) == 9
    assert len(ranges) == 0
    ranges.add(4, 5)
    ranges.add(5, 6)
    assert ranges.sorted() == [(4, 6)]
    ranges.add(6, 9)
    assert ranges.sorted() == [(4, 9)]
