"""Reads by queue offset, by position and by time, never at or above the confirm position.

Invariant: what is returned has passed its position check and (unless switched off, or in a range) its checksum; a
record that fails is reported as CorruptLog, because it lies below the confirm position. Thread rule: loop thread; the
views may travel.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from broker.store import hot
from broker.store.commit_log import CommitLog
from broker.store.confirm import Confirm
from broker.store.errors import CorruptLog
from broker.store.gather import GRAIN, Column
from broker.store.queue_index.index import QueueIndex
from broker.store.read_result import OFFSET_TOO_LARGE, OFFSET_TOO_SMALL, OK, RangeResult, ReadResult
from broker.store.segment import Segment
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.record import HEADER, HEADER_SIZE, check_record

_CHUNK_ENTRIES = 256
"""Entries looked up at a time, so that a read bounded by bytes does not look up thousands of entries for nothing."""


class Reader:
    """The read side of one store."""

    def __init__(self, log: CommitLog, index: QueueIndex, confirm: Confirm, *, check: bool) -> None:
        self._log = log
        self._index = index
        self._confirm = confirm
        self._check = check

    def bounds(self, queue: int) -> tuple[int, int]:
        """Return (oldest offset, confirmed end) of an existing queue."""
        return self._index.min_offset(queue), self._confirm.queue_ends[queue]

    def read(self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int | None) -> ReadResult:
        """Return records of an existing queue; the first one whatever its size, so that a reader always gets on."""
        low, high = self.bounds(queue)
        if offset > high:
            return ReadResult(OFFSET_TOO_LARGE, offset, high, low, high)
        status = OK
        if offset < low:
            status, offset = OFFSET_TOO_SMALL, low
        wanted = min(max_count, (high if end_offset is None else min(high, end_offset)) - offset)
        records: list[memoryview] = []
        size_left = max_bytes
        at = offset
        while wanted > 0 and size_left > 0:
            entries = self._index.read(queue, at, min(wanted, _CHUNK_ENTRIES))
            if not len(entries):
                break
            before = len(records)
            size_left = self._take(records, entries.positions.tolist(), entries.sizes.tolist(), size_left)
            taken = len(records) - before
            at += taken
            wanted -= taken
            if taken < len(entries):
                break
        return ReadResult(status, offset, offset + len(records), low, high, records)

    def read_range(
        self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int | None
    ) -> RangeResult:
        """Like `read`, in one piece and for many records: position and size are checked, the checksum is the reader's.

        Whoever asks for a range looks into every record anyway, and then also checks what the way there did to it.
        """
        low, high = self.bounds(queue)
        if offset > high:
            return RangeResult(OFFSET_TOO_LARGE, offset, high, low, high)
        status = OK
        if offset < low:
            status, offset = OFFSET_TOO_SMALL, low
        wanted = min(max_count, (high if end_offset is None else min(high, end_offset)) - offset)
        if wanted <= 0 or max_bytes <= 0:
            return RangeResult(status, offset, offset, low, high)
        entries = self._index.read(queue, offset, min(wanted, max_bytes // HEADER_SIZE + 1))
        ends = np.cumsum(entries.sizes, dtype=np.int64)
        count = min(len(ends), max(1, int(ends.searchsorted(max_bytes, side="right"))))
        if count == 0:
            return RangeResult(status, offset, offset, low, high)
        positions, sizes, ends = entries.positions[:count], entries.sizes[:count].astype(np.int64), ends[:count]
        blob = bytearray(int(ends[-1]))
        self._copy(positions, sizes, ends, memoryview(blob))
        starts = (ends - sizes).astype(np.uint32)
        return RangeResult(status, offset, offset + count, low, high, starts, blob)

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
            hot.core.gather(segment.view, starts, sizes[at:stop], out[begin : int(ends[stop - 1])])
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

    def _check_records(self, segment: Segment, positions: list[int], sizes: list[int]) -> None:
        """Raise CorruptLog for the first record that fails its checks."""
        bad = hot.core.first_bad(segment.view, segment.base, positions, sizes)
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

    def search_time(self, queue: int, store_ms: int, *, upper: bool) -> int:
        """Return the first offset stored at or after `store_ms` (`upper`: after it); the confirmed end when none is."""
        low, high = self.bounds(queue)
        while low < high:
            middle = (low + high) // 2
            stored = self._stored_ms(queue, middle)
            if stored < store_ms or (upper and stored == store_ms):
                low = middle + 1
            else:
                high = middle
        return low

    def _stored_ms(self, queue: int, offset: int) -> int:
        entries = self._index.read(queue, offset, 1)
        position = int(entries.positions[0])
        header = self._log.view(position, HEADER_SIZE)
        if header is None:
            raise CorruptLog(self._log.directory, position, "no log file holds it")
        return int(HEADER.unpack_from(header, 0)[6])
