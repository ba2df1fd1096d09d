"""Where the log ends, and the damaged ranges before that end.

    quarantine/torn-<20-digit position>-<10-digit epoch that found it>   the bytes from that log position on
    QUARANTINE  one sealed line of JSON: {"ranges": [{"start", "end", "reason", "settled"}, ...]}, oldest first

A segment has its full size from the start, so a short one was cut by something else (a copy, a file system check);
files are filled with zeros (`LogRepair.fill`) only once the end of the log is decided. A record is valid when its
magic, sizes, position and checksum are right and its epoch is not lower than the one before. A failure above the
durable position is the torn tail of a crash: the log ends at the last whole group before it, and the torn bytes are
kept aside, although they were never acknowledged. A failure below it is damage: nothing is cut or overwritten, every
scan skips the range. What can be read of a group that is durable in part stays. Filler records join the segments.

A damaged range begins where a record fails its checks and ends where the next sound one begins or, without one, where
the log continues. That is where the failing record's own sizes lead, if they are consistent and a sound record is
there, so that the bytes of a message are never taken for records. Otherwise it is the first place, in steps of 8 bytes,
of a record that names its own position, passes its checksum and is not of an earlier epoch. `settled`: the names and
offsets of queues that the damage took are in the log again (`replayer.mend`).

Invariants: the log never ends below the durable position; deciding changes nothing; what is kept aside is bounded and
never prevents a start. Damaged ranges are disjoint, rise, and lie below the end of the log; QUARANTINE is replaced
before anything relies on it, and without the file the same ranges are found again.
Thread rule: before the first append, or below a position that no longer changes; saving blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from broker.store.errors import CorruptIndex, CorruptLog
from broker.store.log.commit_log import CommitLog, Segment, list_segments, next_file_bytes
from broker.store.log.metadata import open_sealed_json, sealed_json
from broker.store.settings import SEGMENT_SIZE_BYTES_MAX
from remoting.native import core as native
from remoting.native.contracts import Progress
from remoting.native.vectors import arange, nonzero, view
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.record import HEADER, HEADER_SIZE, MAGIC, MAGIC_MASK, check_record
from runtime.files import atomic_replace


@dataclass(frozen=True, slots=True)
class ShortFile:
    """A log file of `size` bytes that should have `full_size`."""

    path: Path
    size: int
    full_size: int

    @property
    def base(self) -> int:
        """Log position of its first byte."""
        return int(self.path.name)

    @property
    def cut(self) -> int:
        """Log position of the first missing byte."""
        return self.base + self.size


def find_short_files(directory: Path, first_size: int, segment_size: int, durable: int) -> list[ShortFile]:
    """Return the files that end before the next one begins; the last one should be as large as the log made it.

    That is by `next_file_bytes`, less when older files have expired or settings have changed since; and, up to the
    largest size a file may have, it should hold what was `durable`, and end where a record can. A whole missing file is
    for the log to complain about.
    """
    paths = list_segments(directory) if directory.is_dir() else []
    bases = [int(path.name) for path in paths]
    if not bases:
        return []
    last = bases[-1]
    # Settings with smaller files than this one was made with do not tell that it was cut; a size that no file has does.
    whole = paths[-1].stat().st_size + 7 & ~7
    least = max(next_file_bytes(last - bases[0], first_size, segment_size), whole)
    wanted = durable + 7 & ~7 if durable - last <= SEGMENT_SIZE_BYTES_MAX else 0
    found = []
    for path, base, end in zip(paths, bases, [*bases[1:], max(last + least, wanted)], strict=True):
        size = path.stat().st_size
        if base + size < end and end - base <= SEGMENT_SIZE_BYTES_MAX:
            found.append(ShortFile(path, size, end - base))
    return found


def durable_cuts(short: list[ShortFile], durable: int) -> list[ShortFile]:
    """Return those of the files that lack bytes below `durable`."""
    return [file for file in short if file.cut < min(durable, file.base + file.full_size)]


DIRECTORY = "quarantine"
TORN_FILES_MAX = 4
"""Torn tails kept; the oldest goes when there is one more."""
TORN_BYTES_MAX = 1024 * 1024
"""Most bytes kept of one torn tail, from its beginning."""


def keep_torn_tail(log: CommitLog, directory: Path, position: int, epoch: int, events: Any) -> None:
    """Keep what stands from `position` on in the data directory's folder, unless it is nothing but zeros."""
    data = _bytes_from(log, position).rstrip(b"\0")
    if not data:
        return
    folder = directory / DIRECTORY
    path = folder / f"torn-{position:020d}-{epoch:010d}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(data)
        kept = sorted(folder.glob("torn-*"), key=lambda each: each.name.rpartition("-")[2])
        for old in kept[:-TORN_FILES_MAX]:
            old.unlink()
    except OSError as error:
        events.warning("torn_tail_not_kept", position=position, error=str(error))
        with suppress(OSError):
            path.unlink()


def _bytes_from(log: CommitLog, position: int) -> bytes:
    parts, left = [], TORN_BYTES_MAX
    while left > 0 and (segment := log.segment_at(position)) is not None:
        at = position - segment.base
        part = bytes(segment.view[at : at + left])
        parts.append(part)
        left -= len(part)
        position = segment.end
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan of the log found: where whole records and whole groups end, and why it stopped."""

    records_end: int
    groups_end: int
    reason: str
    epoch: int
    store_ms: int
    records: int
    gaps: tuple[tuple[int, int], ...] = ()
    """Damaged stretches (from, to) that the scan left out."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The log ends at `position`; `discarded_bytes` of whole records of an unfinished group go with the torn tail."""

    position: int
    discarded_bytes: int


@dataclass(frozen=True, slots=True)
class Damage:
    """The log is not what was made durable: the record at `position` fails for `reason`."""

    position: int
    reason: str


def decide_end(scan: Scan, durable: int, *, keep_parts: bool = False, whole_to: int = 0) -> LogEnd | Damage:
    """Return where the log ends, or the damage that prevents opening it.

    With `keep_parts` a group that was durable in part is no such damage: the log ends behind what is left of it.
    `whole_to`: up to where there were whole records, though perhaps no whole groups.
    """
    assert scan.groups_end <= scan.records_end, scan
    if scan.records_end < max(durable, whole_to):
        return Damage(scan.records_end, scan.reason or "the log ends there")
    if scan.groups_end < durable:
        if keep_parts:
            return LogEnd(scan.records_end, 0)
        return Damage(scan.groups_end, "an atomic group that starts there is not complete")
    return LogEnd(scan.groups_end, scan.records_end - scan.groups_end)


def scan_log(log: CommitLog, start: int, before: Scan | None = None) -> Scan:
    """Check every record from `start` on; return where the valid ones end and why.

    `before` is what a scan up to a damaged stretch that ends at `start` found: what was whole there stays whole, and
    epochs, times and records count on from it.
    """
    epoch, store_ms, records = (before.epoch, before.store_ms, before.records) if before else (0, 0, 0)
    seen = Progress(start, start, epoch, store_ms, records, group_open=False)
    while not seen.reason and (segment := log.segment_at(seen.position)) is not None:
        seen = native.core.scan(segment.view, segment.base, segment.size, seen)
    return Scan(seen.position, seen.groups_end, seen.reason, seen.epoch, seen.store_ms, seen.records)


QUARANTINE = "QUARANTINE"
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

    def settle(self, ranges: Collection[DamagedRange]) -> None:
        """Note that what these took has been appended again."""
        self._ranges = [replace(each, settled=each.settled or each in ranges) for each in self._ranges]

    def drop_before(self, begin: int) -> bool:
        """Forget ranges that have expired with the log; return whether there were any."""
        kept = [each for each in self._ranges if each.end > begin]
        expired = len(kept) < len(self._ranges)
        self._ranges = kept
        return expired


def save_quarantine(directory: Path, ranges: Iterable[DamagedRange]) -> None:
    """Replace the file durably. Raises OSError."""
    atomic_replace(directory / QUARANTINE, sealed_json({"ranges": [asdict(each) for each in ranges]}), mode=0o600)


def load_quarantine(directory: Path) -> Quarantine:
    """Return the ranges, none when there is no file. Raises CorruptIndex."""
    value: Any = open_sealed_json(directory / QUARANTINE)
    if value is None:
        return Quarantine()
    try:
        return Quarantine(
            DamagedRange(int(each["start"]), int(each["end"]), str(each["reason"]), bool(each["settled"]))
            for each in value["ranges"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndex(directory / QUARANTINE, f"it lacks {error}") from error


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

    Few words equal their own position, so the candidates are found in columns and checked one by one.
    """
    words = view(segment.view, "Q", segment.size // _GRAIN)
    for first in range((start - segment.base) // _GRAIN, len(words), _CHUNK_WORDS):
        said = words[first + _POSITION_WORD : first + _POSITION_WORD + _CHUNK_WORDS]
        places = arange(first, first + len(said)) * _GRAIN + segment.base
        for row in nonzero(said == places):
            position = places[row]
            if _is_sound(segment, position, epoch):
                return position
    return 0
