"""A set of queue offsets as ranges, for offsets that are taken out of order but fill up soon.

Adding joins with both neighbours in one step, so that ten million acknowledged offsets behind one missing are one
range and not ten million numbers.
Invariant: ranges are disjoint and never touch; both tables name the same ranges. Pure; one owner.
"""

from __future__ import annotations

from collections.abc import Iterable


class OffsetRanges:
    """Disjoint ranges [start, end) of offsets."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        for start, end in ranges:
            self._starts[start] = end
            self._ends[end] = start

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, end: int) -> None:
        """Take [start, end) in; none of it may be in yet."""
        assert start < end, (start, end)
        start = self._ends.pop(start, start)
        end = self._starts.pop(end, end)
        self._starts[start] = end
        self._ends[end] = start

    def take_from(self, low: int) -> int:
        """Drop the range that begins at `low`, if there is one; return the first offset behind it, else `low`."""
        end = self._starts.pop(low, None)
        if end is None:
            return low
        del self._ends[end]
        return end

    def sorted(self) -> list[tuple[int, int]]:
        """Return the ranges in rising order."""
        return sorted(self._starts.items())
