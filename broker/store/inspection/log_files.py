"""The files of a commit log mapped read-only, and the walk over their records with every check.

Invariant: nothing is written or created; walks yield only records whose position, sizes, checksum and epoch hold, in
order, and say where they stopped. The search behind damage is this room's own, so that the store's is compared with
it. Files are mapped at construction, so one that a live broker drops later stays readable. Thread rule: one thread.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from broker.store import hot
from broker.store.log.segment import list_segments
from broker.store.recovery.log_end import Scan
from broker.store.recovery.quarantine import DamagedRange, Quarantine
from remoting.native.contracts import Progress
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.record import DISPATCH_SIZE, FILLER, HEADER, HEADER_SIZE, MAGIC, MAGIC_MASK, check_record

Header = tuple[int, ...]
_LETTERS, _LETTERS_AT = b"QML", 5
"""What every record's magic has in common, and where in the record it stands."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One mapped file that starts at position `base`."""

    path: Path
    base: int
    view: memoryview
    data: mmap.mmap | bytes

    @property
    def end(self) -> int:
        """Position behind its last byte."""
        return self.base + len(self.view)


class LogFiles:
    """All files of `directory` (the folder `log` of a data directory), oldest first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = [file for path in list_segments(directory) if (file := _map(path)) is not None]
        self._bases = [file.base for file in self.files]

    @property
    def begin(self) -> int:
        """Position of the oldest byte."""
        return self._bases[0] if self._bases else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(len(file.view) for file in self.files)

    def file_at(self, position: int) -> LogFile | None:
        """Return the file that holds `position`."""
        at = bisect_right(self._bases, position) - 1
        return self.files[at] if at >= 0 and position < self.files[at].end else None

    def next_sound(self, position: int, epoch: int) -> int:
        """Return where the next sound record behind the failing one at `position` stands, 0 when there is none.

        Where its own sizes say, if they hold together; else the first place where the letters of a record stand.
        """
        for file in self.files:
            if file.end <= position:
                continue
            at = max(0, position - file.base)
            if file.base <= position and (own := _end_by_sizes(file, at)) and _sound(file, own, epoch):
                return file.base + own
            while (found := file.data.find(_LETTERS, at + _LETTERS_AT + 1)) >= 0:
                at = found - _LETTERS_AT
                if at % 8 == 0 and file.base + at > position and _sound(file, at, epoch):
                    return file.base + at
        return 0

    def record_start(self, position: int) -> int:
        """Return where the first record at or behind `position` starts, by the sizes in its file alone."""
        file = self.file_at(position)
        if file is None:
            return max(position, self.begin)
        at = 0
        while file.base + at < position and at + HEADER_SIZE <= len(file.view):
            size = HEADER.unpack_from(file.view, at)[0]
            if size < HEADER_SIZE:
                break
            at += size
        return file.base + at


class Stretches:
    """One pass with every check: the parts of files that hold nothing but sound records, around damage.

    Behind a failing record below `durable` it goes on at the next sound one; `known` damage may lie anywhere. `scan`
    and `damage` (start, end, reason) say what was found once the iteration has ended.
    """

    def __init__(self, files: LogFiles, start: int, durable: int = 0, known: Iterable[DamagedRange] = ()) -> None:
        self._files = files
        self._durable = durable
        self._known = Quarantine(known)
        self.scan = Scan(start, start, "", 0, 0, 0)
        self.damage: list[tuple[int, int, str]] = []

    def __iter__(self) -> Iterator[tuple[LogFile, int, int]]:
        """Yield (file, first position, end position) in order."""
        start = self.scan.records_end
        seen = Progress(start, start, 0, 0, 0, group_open=False)
        while True:
            while not seen.reason and (file := self._files.file_at(seen.position)) is not None:
                first = seen.position
                seen = hot.core.scan(file.view, file.base, len(file.view), seen)
                if seen.position > first:
                    yield file, first, seen.position
            behind = self._behind(seen)
            if not behind:
                break
            self.damage.append((seen.position, behind, seen.reason or "the log ends there"))
            seen = Progress(behind, behind, seen.epoch, seen.store_ms, seen.records, group_open=False)
        self.scan = Scan(seen.position, seen.groups_end, seen.reason, seen.epoch, seen.store_ms, seen.records)

    def _behind(self, seen: Progress) -> int:
        """Return where to go on behind the record that fails, 0 when the log ends with it."""
        known = self._known.at(seen.position)
        if known is not None:
            return known.end
        if seen.position >= self._durable:
            return 0
        return self._files.next_sound(seen.position, seen.epoch) or self._durable


class Walk:
    """One walk over the records from `start` on; `scan` says what it found once the iteration has ended."""

    def __init__(self, files: LogFiles, start: int, durable: int = 0, known: Iterable[DamagedRange] = ()) -> None:
        self._stretches = Stretches(files, start, durable, known)

    @property
    def scan(self) -> Scan:
        """Where the log ends and why."""
        return self._stretches.scan

    @property
    def damage(self) -> list[tuple[int, int, str]]:
        """The stretches (start, end, reason) left out so far."""
        return self._stretches.damage

    def __iter__(self) -> Iterator[tuple[LogFile, int, Header]]:
        """Yield (file, offset in it, header fields) of each record, fillers left out."""
        for file, first, end in self._stretches:
            at = first - file.base
            while at < end - file.base:
                head = HEADER.unpack_from(file.view, at)
                if head[1] != FILLER:
                    yield file, at, head
                at += head[0]


def _map(path: Path) -> LogFile | None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    except FileNotFoundError:  # a live broker has just dropped it
        return None
    return LogFile(path, int(path.name), memoryview(data), data)


def _end_by_sizes(file: LogFile, at: int) -> int:
    """Return where in the file the record at `at` ends when its sizes hold together, 0 otherwise."""
    if at + HEADER_SIZE > len(file.view):
        return 0
    head = HEADER.unpack_from(file.view, at)
    meta_end = HEADER_SIZE + DISPATCH_SIZE * head[11] + 4 * head[12] + sum(head[13:17])
    sane = head[8] - meta_end in range(8) and head[0] - head[8] - head[7] in range(8) and head[0] % 8 == 0
    return at + int(head[0]) if sane and head[4] == file.base + at and head[1] & MAGIC_MASK == MAGIC else 0


def _sound(file: LogFile, at: int, epoch: int) -> bool:
    try:
        check_record(file.view, at, file.base + at)
    except CorruptRecord:
        return False
    return bool(HEADER.unpack_from(file.view, at)[3] >= epoch)
