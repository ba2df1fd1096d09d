"""The files of a commit log mapped read-only, and the walk over their records with every check.

Invariant: nothing is written or created; `walk` yields only records whose position, sizes, checksum and epoch hold, in
order, and says where it stopped. Files are mapped at construction, so one that a live broker drops later stays
readable. Thread rule: one thread.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from broker.store.recovery import Scan
from broker.store.segment import list_segments
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.record import FILLER, FLAG_GROUP_OPEN, HEADER, HEADER_SIZE, check_record

Header = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogFile:
    """One mapped file that starts at position `base`."""

    path: Path
    base: int
    view: memoryview

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


class Walk:
    """One walk from `start` on; `scan` says what it found once the iteration has ended."""

    def __init__(self, files: LogFiles, start: int) -> None:
        self._files = files
        self.scan = Scan(start, start, "", 0, 0, 0)

    def __iter__(self) -> Iterator[tuple[LogFile, int, Header]]:
        """Yield (file, offset in it, header fields) of each record, fillers left out."""
        position = groups_end = self.scan.records_end
        epoch = store_ms = records = 0
        reason, group_open = "", False
        while not reason and (file := self._files.file_at(position)) is not None:
            at = position - file.base
            while at < len(file.view):
                try:
                    total = check_record(file.view, at, file.base + at)
                    head = HEADER.unpack_from(file.view, at)
                    if head[3] < epoch:
                        raise CorruptRecord(f"its epoch {head[3]} is lower than {epoch} of the record before")
                except CorruptRecord as error:
                    reason = error.reason
                    break
                epoch, store_ms = head[3], head[6]
                records += 1
                if head[1] != FILLER:
                    group_open = bool(head[9] & FLAG_GROUP_OPEN)
                    yield file, at, head
                at += total
                if not group_open:
                    groups_end = file.base + at
            position = file.base + at
        self.scan = Scan(position, groups_end, reason, epoch, store_ms, records)


def _map(path: Path) -> LogFile | None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    except FileNotFoundError:  # a live broker has just dropped it
        return None
    return LogFile(path, int(path.name), memoryview(data))
