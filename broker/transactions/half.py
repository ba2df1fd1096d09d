"""Half messages in a table: which are pending, how each of the others ended, and whose producer is to be asked next.

Half messages are the records of one hidden queue, known by their offsets in it. What is durable is small: the outcome
of each one at or above the floor that has ended, and the floor, below which all have.

    floor ........ everything below has ended, and its outcomes are no longer kept; it stays `ENDED_KEPT` offsets behind
                   the first pending one, so that a decision made again is known
    cursor ....... everything below has been seen; what is at or above the floor and has no outcome is pending

    key    "floor"           value  decimal offset
    key    decimal offset    value  C committed | R rolled back | X expired | M copied and pending
    key    "at " + offset    value  decimal offset of the pending copy of that half message

Invariant: an offset below the cursor is pending, or has an outcome, or lies below the floor. An outcome never changes,
except that of a copied one, which becomes that of its copy.
Pure: changes are computed first (`ending`), written by the owner, then taken over (`ended`).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

COMMITTED, ROLLED_BACK, EXPIRED, COPIED = b"C", b"R", b"X", b"M"
FLOOR_KEY, COPY_PREFIX = b"floor", b"at "
ENDED_KEPT = 1_000
"""Outcomes that are kept although nothing before them is pending: a producer whose decision was not answered repeats it
within that many transactions."""
DROPPED_MAX = 1_000
"""Most offsets that the floor rises at once; it goes on with the next one that ends."""


@dataclass(slots=True)
class Half:
    """A pending half message."""

    offset: int
    position: int
    """Of its record in the log."""
    group: str
    """Producer group that knows the outcome."""
    stored_ms: int
    checks: int = 0
    """How often the group was asked since this broker became the master."""


@dataclass(slots=True, frozen=True)
class HalfEnding:
    """What changes when one half message ends."""

    offset: int
    outcome: bytes
    floor: int
    dropped: tuple[int, ...]
    """Offsets whose outcomes are no longer kept."""
    known_as: tuple[int, ...]
    """Offsets at which producers know it, if it is a copy."""
    copied_to: int | None = None

    def changes(self, floor_before: int) -> list[tuple[bytes, bytes | None]]:
        """(key, value) to be written; None deletes."""
        found: list[tuple[bytes, bytes | None]] = []
        if self.offset >= self.floor:
            found.append((b"%d" % self.offset, self.outcome))
        if self.floor != floor_before:
            found.append((FLOOR_KEY, b"%d" % self.floor))
        found += [(b"%d" % offset, None) for offset in self.dropped]
        if self.copied_to is None:
            found += [(COPY_PREFIX + b"%d" % known, None) for known in self.known_as]
            found += [(b"%d" % known, self.outcome) for known in self.known_as if known >= self.floor]
        else:
            copied_to = b"%d" % self.copied_to
            found += [(COPY_PREFIX + b"%d" % known, copied_to) for known in (self.offset, *self.known_as)]
        return found


class HalfTable:
    """The half messages of one broker."""

    def __init__(
        self, floor: int = 0, outcomes: Mapping[int, bytes] | None = None, copies: Mapping[int, int] | None = None
    ) -> None:
        """`outcomes`: of the offsets at or above `floor` that have ended; `copies`: known offset -> present offset."""
        self.floor = self.cursor = floor
        self._outcomes = dict(outcomes or {})
        self._copies = dict(copies or {})
        self._pending: dict[int, Half] = {}
        """In order of offset."""
        self._due: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._pending)

    def see(self, half: Half, due_ms: int) -> None:
        """Take up the record at the cursor; its group is asked at `due_ms` unless it has ended."""
        assert half.offset == self.cursor, (half.offset, self.cursor)
        self.cursor += 1
        if half.offset not in self._outcomes:
            self._pending[half.offset] = half
            heapq.heappush(self._due, (due_ms, half.offset))

    def skip(self, next_offset: int) -> None:
        """Records below `next_offset` can no longer be read."""
        self.cursor = max(self.cursor, next_offset)

    def pending(self, offset: int) -> Half | None:
        """The half message at this offset, None if it is not pending."""
        return self._pending.get(offset)

    def outcome(self, offset: int) -> bytes | None:
        """How the one at this offset ended; None if it is pending, unknown or below the floor."""
        return self._outcomes.get(offset)

    def present(self, offset: int) -> int:
        """Where the half message that a producer knows at this offset is now."""
        return self._copies.get(offset, offset)

    def oldest(self) -> Half | None:
        """The pending one of the lowest offset."""
        return next(iter(self._pending.values()), None)

    def take_due(self, now_ms: int, count: int) -> list[Half]:
        """Up to `count` pending ones whose time has come; each needs `ask_again` or an end."""
        found: list[Half] = []
        while self._due and self._due[0][0] <= now_ms and len(found) < count:
            half = self._pending.get(heapq.heappop(self._due)[1])
            if half is not None:
                found.append(half)
        return found

    def ask_again(self, half: Half, due_ms: int) -> None:
        """Its time comes again."""
        heapq.heappush(self._due, (due_ms, half.offset))

    def ending(self, offset: int, outcome: bytes, copied_to: int | None = None) -> HalfEnding:
        """What changes when this pending one ends; with `copied_to` it goes on as the one at that offset."""
        assert offset in self._pending, offset
        first = next((pending for pending in self._pending if pending != offset), self.cursor)
        floor = max(self.floor, first - ENDED_KEPT)
        floor = min(floor, self.floor + DROPPED_MAX)
        dropped = tuple(below for below in range(self.floor, floor) if below in self._outcomes)
        known_as = tuple(known for known, present in self._copies.items() if present == offset)
        return HalfEnding(offset, outcome, floor, dropped, known_as, copied_to)

    def ended(self, ending: HalfEnding) -> None:
        """The changes are written."""
        del self._pending[ending.offset]
        self.floor = ending.floor
        for offset in ending.dropped:
            del self._outcomes[offset]
        if ending.offset >= ending.floor:
            self._outcomes[ending.offset] = ending.outcome
        if ending.copied_to is None:
            for known in ending.known_as:
                del self._copies[known]
                if known in self._outcomes:
                    self._outcomes[known] = ending.outcome
        else:
            self._copies.update(dict.fromkeys((ending.offset, *ending.known_as), ending.copied_to))
