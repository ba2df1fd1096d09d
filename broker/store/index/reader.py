"""Reads by queue offset, by position and by time, never at or above the confirm position.

Invariant: what is returned has passed its position check and (unless switched off, or in a range) its checksum; a
record that fails is reported as CorruptLog, because it lies below the confirm position.

By time: store times never fall along the log. So the first record of each log file shows in which file the boundary
lies (those times are remembered), the index alone narrows a queue's offsets to that file, and inside it the guess
between two known times is tried before the middle: about five records are read where halving reads twenty. The answer
is exact; the guess only decides which record is read next. Records that cannot be read are passed over.

Without `bases`, records[i] of a result has queue offset `first_offset + i`. With them a record may be a batch: the
offset of its first message is bases[i], and bases[0] may be lower than `first_offset`, because the offset asked for is
inside it; `next_offset` is always behind the last message of the last record.

Thread rule: loop thread; records are views into mapped segments, valid on any thread as long as they are referenced.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from broker.store.errors import CorruptLog
from broker.store.index.absence import Absence, Found
from broker.store.index.queue_index import QueueIndex
from broker.store.index.run import Entries
from broker.store.log.commit_log import CommitLog
from remoting.native import core as native
from remoting.native.reference.scan import GRAIN
from remoting.native.vectors import Column, argsort, cumsum, empty, joined, unplaced, view
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.record import HEADER, HEADER_SIZE, MAGIC, MAGIC_MASK, check_record

OK = 0
"""Records follow; none means the reader is at the end."""
OFFSET_TOO_SMALL = 1
"""The offset has expired: `first_offset` says where the records start instead."""
NO_SUCH_QUEUE = 2
OFFSET_TOO_LARGE = 3
"""The offset lies beyond the confirmed end of the queue."""


@dataclass(slots=True)
class ReadResult:
    """Records of one queue; offsets are queue offsets, the `max_offset` is the confirmed end (exclusive)."""

    status: int
    first_offset: int
    next_offset: int
    min_offset: int
    max_offset: int
    records: list[memoryview] = field(default_factory=list)
    bases: list[int] | None = None


@dataclass(slots=True)
class RangeResult:
    """Records of one queue back to back in `blob`; record i begins at `starts[i]` (u32) in it."""

    status: int
    first_offset: int
    next_offset: int
    min_offset: int
    max_offset: int
    starts: Column = field(default_factory=lambda: empty(0, "I"))
    blob: bytearray = field(default_factory=bytearray)
    bases: Column | None = None


@dataclass(slots=True)
class SequenceResult:
    """Log position and producer_seq (u64) of consecutive records of one queue, from `first_offset` on."""

    first_offset: int
    next_offset: int
    positions: Column = field(default_factory=lambda: empty(0, "q"))
    sequences: Column = field(default_factory=lambda: empty(0, "Q"))


RECORD_BYTES_USUAL = 160
"""Few records are smaller; a range is looked up for so many of them as would fit then, not for twice as many."""
SEQUENCE_WORD = 9
"""Place of producer_seq among the eight-byte words of a record's header."""
_CHUNK_ENTRIES = 256
"""Entries looked up at a time, so that a read bounded by bytes does not look up thousands of entries in vain."""


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
    """The log position below which everything is confirmed; see `confirm.Confirm`."""

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
        """Return the offsets [from, to) that a read of these would cover."""
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
            at = entries.end if taken == len(entries) else entries.offsets[taken]
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

        The receiver of a range reads every record anyway, and so also detects damage on the way there.
        """
        status, offset, low, high = self._start(queue, offset)
        limit = high if end_offset is None else min(high, end_offset)
        last = offset + max_count
        if status == OFFSET_TOO_LARGE or min(limit, last) <= offset or max_bytes <= 0:
            return RangeResult(status, offset, min(offset, high), low, high)
        entries = self._index.read(queue, offset, min(limit, last, offset + _entries_for(max_bytes)) - offset)
        count = _fitting(entries, last, first=True)
        ends = cumsum(entries.sizes[:count])
        count = min(count, max(1, ends.searchsorted(max_bytes, side="right")))
        count = self._before_hole(queue, entries, count, first=True)
        if count == 0:
            return RangeResult(status, offset, offset, low, high)
        positions, sizes, ends = entries.positions[:count], entries.sizes[:count], ends[:count]
        blob = bytearray(ends[-1])
        self._copy(positions, sizes, ends, memoryview(blob))
        starts = (ends - sizes).astype("I")
        end = entries.end if count == len(entries) else entries.offsets[count]
        single = entries.offsets[0] == offset and end - offset == count  # else one of them is a batch
        bases = None if single else entries.offsets[:count]
        return RangeResult(status, offset, end, low, high, starts, blob, bases)

    def _before_hole(self, queue: int, entries: Entries, count: int, *, first: bool) -> int:
        """Return how many of the first `count` entries stand before a hole; with `first` none is CorruptLog."""
        if entries.sizes[:count].all():
            return count
        at = entries.sizes[:count].argmin()
        if at or not first:
            return at
        begin, position = entries.offsets[0], entries.positions[0]
        end = entries.end if len(entries) == 1 else entries.offsets[1]
        segment = self._log.segment_at(position)
        path = self._log.directory if segment is None else segment.path
        raise CorruptLog(path, position, f"offsets {begin} to {end - 1} of queue {queue} lie in a damaged stretch")

    def sequences(self, queue: int, offset: int, max_count: int, end_offset: int | None) -> SequenceResult:
        """Return what the headers of records of an existing queue say; their checksums are not looked at.

        The records must be single messages.
        """
        status, offset, _low, high = self._start(queue, offset)
        limit = min(offset + max_count, high if end_offset is None else min(high, end_offset))
        if status == OFFSET_TOO_LARGE or limit <= offset:
            return SequenceResult(offset, min(offset, high))
        entries = self._index.read(queue, offset, limit - offset)
        count = self._before_hole(queue, entries, len(entries), first=True)
        positions = entries.positions[:count]
        parts = []
        for at, stop, segment in self._stretches(positions, entries.sizes[:count]):
            words = view(segment.view, "Q", segment.size // GRAIN)
            parts.append(words[(positions[at:stop] - segment.base) // GRAIN + SEQUENCE_WORD])
        return SequenceResult(offset, offset + count, positions, joined(parts))

    def staged_images(self, positions: Column, max_bytes: int) -> tuple[bytes, int]:
        """Return the images of the staged records at these confirmed positions, and of how many of the first they are.

        It ends before a record that is no sound staged message, or that would exceed `max_bytes` and is not the first.
        """
        files: list[tuple[int, memoryview]] = []
        ordered, at = positions[argsort(positions)], 0
        while at < len(ordered):
            segment = self._log.segment_at(ordered[at])
            if segment is None:
                at += 1
                continue
            files.append((segment.base, segment.view))
            at = ordered.searchsorted(segment.end)
        return native.core.staged_images(positions, files, max_bytes)

    def _copy(self, positions: Column, sizes: Column, ends: Column, out: memoryview) -> None:
        """Fill `out` with the records, segment by segment. Raises CorruptLog where no record of that size stands."""
        for at, stop, segment in self._stretches(positions, sizes):
            begin = ends[at] - sizes[at]
            native.core.gather(
                segment.view, positions[at:stop] - segment.base, sizes[at:stop], out[begin : ends[stop - 1]]
            )

    def _stretches(self, positions: Column, sizes: Column) -> Iterator[tuple[int, int, ReadableSegment]]:
        """Yield (first, end, segment) of records that share a segment.

        Raises CorruptLog where no record of that size stands.
        """
        at = 0
        while at < len(positions):
            position = positions[at]
            segment = self._log.segment_at(position)
            if segment is None:
                raise CorruptLog(self._log.directory, position, "no log file holds it")
            stop = positions.searchsorted(segment.end)
            wrong = unplaced(segment.view, segment.base, positions[at:stop], sizes[at:stop])
            if wrong >= 0:
                position = positions[at + wrong]
                raise CorruptLog(segment.path, position, "no record of the size and position the index names")
            yield at, stop, segment
            at = stop

    def _take(self, records: list[memoryview], positions: list[int], sizes: list[int], size_left: int) -> int:
        """Append the records that fit into `size_left`; return what is left, at most 0 when no more fit."""
        if not sizes:
            return size_left
        ends = list(accumulate(sizes))
        count = bisect_right(ends, size_left)
        if not records:
            count = max(1, count)
        size_left = size_left - ends[-1] if count == len(ends) else 0
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
                view[(start := position - base) : start + size]
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

    def read_at(self, position: int) -> Found:
        """Return the confirmed record at `position`, or why there is none; damaged is also where no record begins."""
        if position >= self._confirm.position:
            return Absence.NOT_YET
        segment = self._log.segment_at(position)
        if segment is None:
            return Absence.GONE
        at = position - segment.base
        try:
            total = check_record(segment.view, at, position)
        except CorruptRecord:
            return Absence.DAMAGED
        return segment.view[at : at + total]


def _entries_for(max_bytes: int) -> int:
    """How many entries to look up for so many bytes; of large ranges of tiny records not all that would fit."""
    return max(_CHUNK_ENTRIES, max_bytes // RECORD_BYTES_USUAL) + 1


def _fitting(entries: Entries, last: int, *, first: bool) -> int:
    """Return how many of the entries end at or below offset `last`; with `first` at least one."""
    count = len(entries)
    if count and entries.end > last:
        count = max(int(first), entries.offsets.searchsorted(last, side="right") - 1)
    return count


UNREADABLE_MAX = 64
"""Entries behind an unreadable record that are tried in its place; beyond, it counts as stored late enough."""
_EVERYTHING = (0, 2**63 - 1)


def stored_ms(log: CommitLog, position: int) -> int | None:
    """Return when the record at `position` was stored; None when no header of a record stands there."""
    header = log.view(position, HEADER_SIZE)
    if header is None:
        return None
    fields = HEADER.unpack_from(header, 0)
    return int(fields[6]) if fields[1] & MAGIC_MASK == MAGIC and fields[4] == position else None


@dataclass(slots=True)
class _Probe:
    """One probed entry: its offsets [first, end), and its time where it was needed (None: unreadable)."""

    first: int
    end: int
    early: bool
    ms: int | None = None


class TimeSearch:
    """Searches one store by time."""

    def __init__(self, log: CommitLog, index: QueueIndex) -> None:
        self._log = log
        self._index = index
        self._first_ms: dict[int, int] = {}

    def first_offset(self, queue: int, low: int, high: int, store_ms: int) -> int:
        """Return the first offset in [low, high) stored at or after `store_ms`; `high` when none was."""
        window = self._window(store_ms)
        early: tuple[int, int] | None = None  # (offset, time) of the latest known record before the boundary
        late: tuple[int, int] | None = None
        guess = True
        while low < high:
            middle = (low + high) // 2
            if guess and early is not None and late is not None and late[1] > early[1]:
                share = (store_ms - early[1]) / (late[1] - early[1])
                middle = min(max(low, early[0] + int(share * (late[0] - early[0]))), high - 1)
            guess = not guess
            probe = self._probe(queue, middle, high, window, store_ms)
            if probe.early:
                low = probe.end
                early = (probe.first, probe.ms) if probe.ms is not None else early
            else:
                high = max(low, probe.first)
                late = (probe.first, probe.ms) if probe.ms is not None else late
        return low

    def _probe(self, queue: int, offset: int, high: int, window: tuple[int, int], store_ms: int) -> _Probe:
        """Probe the entry that holds `offset`, or the next readable one below `high` in its place."""
        first = at = offset
        for _ in range(UNREADABLE_MAX):
            entries = self._index.read(queue, at, 1)
            position, end = entries.positions[0], entries.end
            if at == offset:
                first = entries.offsets[0]
            if position < window[0]:
                return _Probe(at, end, early=True)
            if position >= window[1]:
                break
            ms = stored_ms(self._log, position) if entries.sizes[0] else None
            if ms is not None:
                return _Probe(at, end, True, ms) if ms < store_ms else _Probe(first, end, False, ms)
            at = end
            if at >= high:
                break
        return _Probe(first, first + 1, early=False)

    def _window(self, store_ms: int) -> tuple[int, int]:
        """Return the log positions [start, end) between which the boundary lies, by the first record of each file."""
        segments = [segment for segment in self._log.segments if segment.base < self._log.end]
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            ms = self._time_of_file(segments[middle].base)
            if ms is None:
                return _EVERYTHING
            if ms < store_ms:
                low = middle + 1
            else:
                high = middle
        start = segments[low - 1].base if low else 0
        return start, segments[low].base if low < len(segments) else _EVERYTHING[1]

    def _time_of_file(self, base: int) -> int | None:
        known = self._first_ms.get(base)
        if known is not None:
            return known
        found = stored_ms(self._log, base)
        if found is not None:
            if len(self._first_ms) > 2 * len(self._log.segments):
                self._first_ms.clear()  # most of them have expired
            self._first_ms[base] = found
        return found
