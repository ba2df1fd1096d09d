"""The stretches of the log that were durable and are damaged: never cut, never overwritten, skipped by every walk.

    QUARANTINE  one sealed line of JSON: {"ranges": [{"start", "end", "reason", "settled"}, ...]}, oldest first

A range begins where a record fails its checks and ends where the next sound one begins or, when there was none, where
the log went on. The next one is where the failing record's own sizes say, if they hold together and a sound record
stands there: so the bytes of a message never pass for records of the log. Otherwise it is the first place, in steps of
8 bytes, where a record says the very position it stands at, passes its checksum and is not of an earlier epoch.
`settled` says that what the damage took from the names and offsets of queues has been said again in the log
(`mending`). Invariant: ranges are disjoint, rise, and lie below the end of the log; the file is replaced whole before
anything is done that relies on it. Whoever loses the file finds the same ranges again.
Thread rule: plain values; scans only read, saving blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from broker.store.errors import CorruptIndex, CorruptLog
from broker.store.log.commit_log import CommitLog
from broker.store.log.sealed_json import open_sealed_json, sealed_json
from broker.store.log.segment import Segment
from broker.store.recovery.log_end import Scan, scan_log
from remoting.native import core as native
from remoting.native.contracts import Progress
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.record import HEADER, HEADER_SIZE, MAGIC, MAGIC_MASK, check_record
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
        """Take in a range, joined with those it touches; return whether any of it is new."""
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
        """Note that what every range took has been appended again."""
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


_GRAIN = 8
_CHUNK_WORDS = 1 << 20
_POSITION_WORD = 2
"""Which 8-byte word of a record holds its position."""


def scan_over_damage(
    log: CommitLog, start: int, durable: int, known: Quarantine, room: int
) -> tuple[Scan, list[DamagedRange]]:
    """Check every record from `start` on, over damage below `durable` and over `known` ranges; return what is new.

    The gaps of the scan are the stretches it left out; `room` is where the last file ends or will end. Raises
    CorruptLog when log files are missing altogether.
    """
    scan = scan_log(log, start)
    gaps: list[tuple[int, int]] = []
    found: list[DamagedRange] = []
    while True:
        bad = scan.records_end
        range_ = known.at(bad)
        if range_ is not None:
            behind = range_.end
        elif bad < durable:
            behind = find_next(log, bad, scan.epoch) or durable
            if behind > room:
                raise CorruptLog(log.directory, bad, f"the log files end at {room}, {durable} bytes were durable")
            found.append(DamagedRange(bad, behind, scan.reason or "the log ends there"))
        else:
            return replace(scan, gaps=tuple(gaps)), found
        gaps.append((bad, behind))
        scan = scan_log(log, behind, scan)


def damage_in(log: CommitLog, segment: Segment, end: int) -> list[DamagedRange]:
    """Return every damaged stretch of one segment below `end`; any thread, below a position that is durable."""
    view, base = segment.view, segment.base
    end = min(end, base + len(view))
    seen = Progress(base, base, 0, 0, 0, group_open=False)
    found: list[DamagedRange] = []
    while seen.position < end:
        seen = native.core.scan(view, base, end - base, seen)
        if seen.position < end:
            behind = min(find_next(log, seen.position, seen.epoch) or end, end)
            found.append(DamagedRange(seen.position, behind, seen.reason))
            seen = Progress(behind, behind, seen.epoch, 0, 0, group_open=False)
    return found


def find_next(log: CommitLog, position: int, epoch: int) -> int:
    """Return where the next sound record behind the failing one at `position` stands, 0 when there is none."""
    following = _end_by_header(log, position)
    if following and _is_sound(log.segment_at(following), following, epoch):
        return following
    at = position + _GRAIN & -_GRAIN
    for segment in tuple(log.segments):
        if segment.end > at and (found := _find_in(segment, max(at, segment.base), epoch)):
            return found
    return 0


def _end_by_header(log: CommitLog, position: int) -> int:
    """Return where the record at `position` ends when its sizes hold together, 0 otherwise."""
    segment = log.segment_at(position)
    if segment is None or position + HEADER_SIZE > segment.end:
        return 0
    head = HEADER.unpack_from(segment.view, position - segment.base)
    total, magic, stored, body_len, body_off = head[0], head[1], head[4], head[7], head[8]
    meta_end = HEADER_SIZE + 16 * head[11] + 4 * head[12] + sum(head[13:17])
    whole = body_off == (meta_end + 7) & ~7 and total == (body_off + body_len + 7) & ~7
    return position + total if whole and magic & MAGIC_MASK == MAGIC and stored == position else 0


def _is_sound(segment: Segment | None, position: int, epoch: int) -> bool:
    if segment is None:
        return False
    at = position - segment.base
    try:
        check_record(segment.view, at, position)
    except CorruptRecord:
        return False
    return bool(HEADER.unpack_from(segment.view, at)[3] >= epoch)


def _find_in(segment: Segment, start: int, epoch: int) -> int:
    """Return the first sound record of the segment from `start` on, 0 when there is none.

    Few words say their own place, so the candidates are found by numpy and checked one by one.
    """
    words = np.frombuffer(segment.view, "<u8", segment.size // _GRAIN)
    for first in range((start - segment.base) // _GRAIN, len(words), _CHUNK_WORDS):
        said = words[first + _POSITION_WORD : first + _POSITION_WORD + _CHUNK_WORDS]
        places = segment.base + _GRAIN * np.arange(first, first + len(said), dtype=np.uint64)
        for row in np.flatnonzero(said == places).tolist():
            position = int(places[row])
            if _is_sound(segment, position, epoch):
                return position
    return 0
