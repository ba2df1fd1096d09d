"""Reads by queue offset, by position and by time, never at or above the confirm position.

Invariant: what is returned has passed its position check and (unless switched off, or in a range) its checksum; a
record that fails is reported as CorruptLog, because it lies below the confirm position. Thread rule: loop thread; the
views may travel.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from typing import Protocol

import numpy as np

from broker.store.errors import CorruptLog
from broker.store.index.entries import Entries
from broker.store.read_result import OFFSET_TOO_LARGE, OFFSET_TOO_SMALL, OK, RangeResult, ReadResult
from remoting.native import core as native
from remoting.native.reference.gather import GRAIN, Column
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.record import check_record

RECORD_BYTES_USUAL = 160
"""Few records are smaller; a range is looked up for so many of them as would fit then, not for twice as many."""
_CHUNK_ENTRIES = 256
"""Entries looked up at a time, so that a read bounded by bytes does not look up thousands of entries for nothing."""


class ReadableSegment(Protocol):
    """What is read of a segment, the writer's own or one mapped by another process."""

    @property
    def path(self) -> Path:
        """Return the segment's log file."""
        ...

    @property
    def base(self) -> int:
        """Return the position of the first byte."""
        ...

    @property
    def end(self) -> int:
        """Return the position behind the last byte."""
        ...

    @property
    def size(self) -> int:
        """Return the length in bytes."""
        ...

    @property
    def view(self) -> memoryview:
        """Return the mapped bytes."""
        ...


class Log(Protocol):
    """What is read of a log; see `commit_log.CommitLog`."""

    directory: Path

    def segment_at(self, position: int) -> ReadableSegment | None:
        """Return the segment that holds `position`, None when there is none."""
        ...

    def view(self, position: int, size: int) -> memoryview | None:
        """Return `size` bytes at `position`, None when they are not in one segment."""
        ...


class Index(Protocol):
    """What is read of an index; see `queue_index.QueueIndex`."""

    def min_offset(self, queue: int) -> int:
        """Return the oldest offset whose record is still in the log."""
        ...

    def confirmed_end(self, queue: int) -> int:
        """Return the offset behind the last message that may be shown."""
        ...

    def read(self, queue: int, offset: int, count: int) -> Entries:
        """Return the entries that hold messages [offset, offset + count)."""
        ...


class Confirmed(Protocol):
    """Says below which log position everything is confirmed; see `confirm.Confirm`."""

    @property
    def position(self) -> int:
        """Return the confirm position, in bytes."""
        ...


class Reader:
    """The read side of one store."""

    def __init__(self, log: Log, index: Index, confirm: Confirmed, *, check: bool) -> None:
        self._log = log
        self._index = index
        self._confirm = confirm
        self._check = check

    @property
    def confirm_position(self) -> int:
        """Nothing at or above it is read."""
        return self._confirm.position

    def bounds(self, queue: int) -> tuple[int, int]:
        """Return (oldest offset, confirmed end) of an existing queue."""
        return self._index.min_offset(queue), self._index.confirmed_end(queue)

    def clipped(self, queue: int, offset: int, end_offset: int | None) -> tuple[int, int]:
        """Return the offsets [from, to) that a read of these would look at."""
        low, high = self.bounds(queue)
        return max(offset, low), high if end_offset is None else min(high, end_offset)

    def read(self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int | None) -> ReadResult:
        """Return records of an existing queue; the first one whatever its size, so that a reader always gets on."""
        status, offset, low, high = self._start(queue, offset)
        found = ReadResult(status, offset, min(offset, high), low, high)
        limit = high if end_offset is None else min(high, end_offset)
        if status == OFFSET_TOO_LARGE or max_count <= 0:
            return found
        bases: list[int] = []
        size_left, last = max_bytes, offset + max_count
        at = offset
        while at < min(limit, last) and size_left > 0:
            entries = self._index.read(queue, at, min(limit, last, at + _CHUNK_ENTRIES) - at)
            count = self._before_hole(queue, entries, _fitting(entries, last, first=not bases), first=not bases)
            positions, sizes = entries.positions[:count].tolist(), entries.sizes[:count].tolist()
            size_left = self._take(found.records, positions, sizes, size_left)
            taken = len(found.records) - len(bases)
            bases += entries.offsets[:taken].tolist()
            at = entries.end if taken == len(entries) else int(entries.offsets[taken])
            if taken < len(entries):
                break
        if bases:
            found.next_offset = at
            found.bases = None if bases[0] == offset and at - offset == len(bases) else bases
        return found

    def _start(self, queue: int, offset: int) -> tuple[int, int, int, int]:
        """Return status, the offset a read begins at, and the bounds of the queue."""
        low, high = self.bounds(queue)
        if offset > high:
            return OFFSET_TOO_LARGE, offset, low, high
        return (OFFSET_TOO_SMALL, low, low, high) if offset < low else (OK, offset, low, high)

    def read_range(
        self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int | None
    ) -> RangeResult:
        """Like `read`, in one piece and for many records: position and size are checked, the checksum is the reader's.

        Whoever asks for a range looks into every record anyway, and then also checks what the way there did to it.
        """
        status, offset, low, high = self._start(queue, offset)
        limit = high if end_offset is None else min(high, end_offset)
        last = offset + max_count
        if status == OFFSET_TOO_LARGE or min(limit, last) <= offset or max_bytes <= 0:
            return RangeResult(status, offset, min(offset, high), low, high)
        entries = self._index.read(queue, offset, min(limit, last, offset + _entries_for(max_bytes)) - offset)
        count = _fitting(entries, last, first=True)
        ends = np.cumsum(entries.sizes[:count], dtype=np.int64)
        count = min(count, max(1, int(ends.searchsorted(max_bytes, side="right"))))
        count = self._before_hole(queue, entries, count, first=True)
        if count == 0:
            return RangeResult(status, offset, offset, low, high)
        positions, sizes, ends = entries.positions[:count], entries.sizes[:count].astype(np.int64), ends[:count]
        blob = bytearray(int(ends[-1]))
        self._copy(positions, sizes, ends, memoryview(blob))
        starts = (ends - sizes).astype(np.uint32)
        end = entries.end if count == len(entries) else int(entries.offsets[count])
        single = int(entries.offsets[0]) == offset and end - offset == count  # else one of them is a batch
        bases = None if single else entries.offsets[:count]
        return RangeResult(status, offset, end, low, high, starts, blob, bases)

    def _before_hole(self, queue: int, entries: Entries, count: int, *, first: bool) -> int:
        """Return how many of the first `count` entries stand before a hole; with `first` none is CorruptLog."""
        if entries.sizes[:count].all():
            return count
        at = int(entries.sizes[:count].argmin())
        if at or not first:
            return at
        begin, position = int(entries.offsets[0]), int(entries.positions[0])
        end = entries.end if len(entries) == 1 else int(entries.offsets[1])
        segment = self._log.segment_at(position)
        path = self._log.directory if segment is None else segment.path
        raise CorruptLog(path, position, f"offsets {begin} to {end - 1} of queue {queue} lie in a damaged stretch")

    def _copy(self, positions: Column, sizes: Column, ends: Column, out: memoryview) -> None:
        """Fill `out` with the records, segment by segment. Raises CorruptLog where no record of that size stands."""
        at = 0
        while at < len(positions):
            position = int(positions[at])
            segment = self._log.segment_at(position)
            if segment is None:
                raise CorruptLog(self._log.directory, position, "no log file holds it")
            stop = int(positions.searchsorted(segment.end))
            starts = positions[at:stop] - segment.base
            words = np.frombuffer(segment.view, "<u8", segment.size // GRAIN)
            first = starts // GRAIN
            wrong = (words[first] & 0xFFFF_FFFF != sizes[at:stop]) | (words[first + 2] != positions[at:stop])
            if wrong.any():
                position = int(positions[at + int(wrong.argmax())])
                raise CorruptLog(segment.path, position, "no record of the size and position the index names")
            begin = int(ends[at] - sizes[at])
            native.core.gather(segment.view, starts, sizes[at:stop], out[begin : int(ends[stop - 1])])
            at = stop

    def _take(self, records: list[memoryview], positions: list[int], sizes: list[int], size_left: int) -> int:
        """Append the records that fit into `size_left`; return what is left, at most 0 when no more fit."""
        count = 0
        for size in sizes:
            if size > size_left and (count or records):
                size_left = 0
                break
            size_left -= size
            count += 1
        at = 0
        while at < count:
            segment = self._log.segment_at(positions[at])
            if segment is None:
                raise CorruptLog(self._log.directory, positions[at], "no log file holds it")
            stop = bisect_left(positions, segment.end, at, count)
            if self._check:
                self._check_records(segment, positions[at:stop], sizes[at:stop])
            view, base = segment.view, segment.base
            records += [
                view[position - base : position - base + size]
                for position, size in zip(positions[at:stop], sizes[at:stop], strict=True)
            ]
            at = stop
        return size_left

    def _check_records(self, segment: ReadableSegment, positions: list[int], sizes: list[int]) -> None:
        """Raise CorruptLog for the first record that fails its checks."""
        bad = native.core.first_bad(segment.view, segment.base, positions, sizes)
        if bad < 0:
            return
        position, at = positions[bad], positions[bad] - segment.base
        reason = f"no record of the {sizes[bad]} bytes that the index names"
        try:
            check_record(segment.view[at : at + sizes[bad]], 0, position)
        except CorruptRecord as error:
            reason = error.reason
        raise CorruptLog(segment.path, position, reason)

    def read_at(self, position: int) -> memoryview | None:
        """Return the record at `position`; None when it has expired or is not confirmed. Raises CorruptLog."""
        segment = self._log.segment_at(position)
        if segment is None or position >= self._confirm.position:
            return None
        at = position - segment.base
        try:
            total = check_record(segment.view, at, position)
        except CorruptRecord as error:
            raise CorruptLog(segment.path, position, error.reason) from error
        return segment.view[at : at + total]


def _entries_for(max_bytes: int) -> int:
    """How many entries to look up for so many bytes; of large ranges of tiny records not all that would fit."""
    return max(_CHUNK_ENTRIES, max_bytes // RECORD_BYTES_USUAL) + 1


def _fitting(entries: Entries, last: int, *, first: bool) -> int:
    """Return how many of the entries end at or below offset `last`; with `first` at least one."""
    count = len(entries)
    if count and entries.end > last:
        count = max(int(first), int(entries.offsets.searchsorted(last, side="right")) - 1)
    return count
