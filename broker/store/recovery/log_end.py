"""Where the log ends: files that are too short, the walk record by record with every check, and what a torn tail held.

    quarantine/torn-<20-digit position>-<10-digit epoch that found it>   the bytes from that log position on

A segment has its full size from birth, so a short one was cut by something else (a copy, a file system check); files
are filled with zeros (`LogRepair.fill`) only once the start has decided where the log ends. A record is valid when its
magic, sizes, position and checksum hold and its epoch is not lower than the one before. A failure below the durable
position is corruption: nothing is cut. Above it, it is the torn tail of a crash: the log ends at the last whole group
before it, and what was torn is kept aside, though nobody was promised it. A group that is durable in part was damaged:
what can be read of it stays. Filler records join one segment to the next. Invariant: the decision never ends a log
below the durable position; looking changes nothing; what is kept aside is bounded and never a reason not to start.
Thread rule: before the first append, or below a position that no longer changes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.store.log.commit_log import CommitLog
from broker.store.log.segment import list_segments, next_file_bytes
from broker.store.settings import SEGMENT_SIZE_BYTES_MAX
from remoting.native import core as native
from remoting.native.contracts import Progress


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

    That is by `next_file_bytes`, less when older files have expired since; and, up to the largest size a file may have,
    it should hold what was `durable`. A whole missing file is for the log to complain about.
    """
    paths = list_segments(directory) if directory.is_dir() else []
    bases = [int(path.name) for path in paths]
    if not bases:
        return []
    last = bases[-1]
    least = next_file_bytes(last - bases[0], first_size, segment_size)
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


def decide_end(scan: Scan, durable: int, *, keep_parts: bool = False) -> LogEnd | Damage:
    """Return where the log ends, or the damage that forbids to go on.

    With `keep_parts` a group that was durable in part is no such damage: the log ends behind what is left of it.
    """
    assert scan.groups_end <= scan.records_end, scan
    if scan.records_end < durable:
        return Damage(scan.records_end, scan.reason or "the log ends there")
    if scan.groups_end < durable:
        if keep_parts:
            return LogEnd(scan.records_end, 0)
        return Damage(scan.groups_end, "an atomic group that starts there is not complete")
    return LogEnd(scan.groups_end, scan.records_end - scan.groups_end)


def scan_log(log: CommitLog, start: int, before: Scan | None = None) -> Scan:
    """Check every record from `start` on and say where the valid ones end and why.

    `before` is what a scan up to a damaged stretch that ends at `start` found: what was whole there stays whole, and
    epochs, times and records count on from it.
    """
    epoch, store_ms, records = (before.epoch, before.store_ms, before.records) if before else (0, 0, 0)
    seen = Progress(start, start, epoch, store_ms, records, group_open=False)
    while not seen.reason and (segment := log.segment_at(seen.position)) is not None:
        seen = native.core.scan(segment.view, segment.base, segment.size, seen)
    return Scan(seen.position, seen.groups_end, seen.reason, seen.epoch, seen.store_ms, seen.records)
