"""The stretches of the log that were durable and are damaged: never cut, never overwritten, skipped by every walk.

    QUARANTINE  one sealed line of JSON: {"ranges": [{"start", "end", "reason", "settled"}, ...]}, oldest first

A range begins where a record fails its checks and ends where the next sound one begins or, when there was none, where
the log went on. `settled` says that what the damage took from the names and offsets of queues has been said again in
the log (`mending`). Invariant: ranges are disjoint, rise, and lie below the end of the log; the file is replaced whole
before anything is done that relies on it. Whoever loses the file finds the same ranges again.
Thread rule: plain values; saving blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from broker.store.errors import CorruptIndex
from broker.store.log.sealed_json import open_sealed_json, sealed_json
from runtime.files import atomic_replace

NAME = "QUARANTINE"
RANGES_MAX = 10_000
"""Ranges kept apart; more are joined with their neighbours, good records between them included."""


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Log positions [start, end) that hold no readable record."""

    start: int
    end: int
    reason: str
    settled: bool = False


class Quarantine:
    """The damaged ranges of one log."""

    def __init__(self, ranges: Iterable[DamagedRange] = ()) -> None:
        self._ranges: list[DamagedRange] = []
        for each in ranges:
            self.add(each)

    def __iter__(self) -> Iterator[DamagedRange]:
        return iter(tuple(self._ranges))

    def __len__(self) -> int:
        return len(self._ranges)

    @property
    def size_bytes(self) -> int:
        """Bytes of all ranges."""
        return sum(each.end - each.start for each in self._ranges)

    def at(self, position: int) -> DamagedRange | None:
        """Return the range that holds `position`."""
        at = bisect_right(self._ranges, position, key=lambda each: each.start) - 1
        return self._ranges[at] if at >= 0 and position < self._ranges[at].end else None

    def add(self, new: DamagedRange) -> bool:
        """Take in a range, joined with those it touches; return whether that is news."""
        assert new.start < new.end, new
        known = self.at(new.start)
        if known is not None and known.end >= new.end:
            return False
        touched = [each for each in self._ranges if each.start <= new.end and new.start <= each.end]
        if touched:
            new = replace(new, start=min(new.start, touched[0].start), end=max(new.end, touched[-1].end), settled=False)
        kept = [each for each in self._ranges if each not in touched]
        self._ranges = sorted([*kept, new], key=lambda each: each.start)
        if len(self._ranges) > RANGES_MAX:
            first, second = self._ranges[:2]
            self._ranges[:2] = [replace(first, end=second.end, settled=first.settled and second.settled)]
        return True

    def settle(self) -> None:
        """Note that what every range took has been said again."""
        self._ranges = [replace(each, settled=True) for each in self._ranges]

    def drop_before(self, begin: int) -> bool:
        """Forget ranges that have expired with the log; return whether there were any."""
        kept = [each for each in self._ranges if each.end > begin]
        expired = len(kept) < len(self._ranges)
        self._ranges = kept
        return expired


def save_quarantine(directory: Path, ranges: Iterable[DamagedRange]) -> None:
    """Replace the file durably. Raises OSError."""
    atomic_replace(directory / NAME, sealed_json({"ranges": [asdict(each) for each in ranges]}), mode=0o600)


def load_quarantine(directory: Path) -> Quarantine:
    """Return the ranges, none when there is no file. Raises CorruptIndex."""
    value: Any = open_sealed_json(directory / NAME)
    if value is None:
        return Quarantine()
    try:
        return Quarantine(
            DamagedRange(int(each["start"]), int(each["end"]), str(each["reason"]), bool(each["settled"]))
            for each in value["ranges"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndex(directory / NAME, f"it lacks {error}") from error
