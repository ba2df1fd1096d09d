"""Reads a data directory while another process writes it: no lock, nothing created, nothing changed.

    tail (counts, confirmed ends, newest entries) -> runs (MANIFEST) -> segments: all mapped read-only

Tail: the writer publishes by plain stores in one order: entries, then the count that covers them; a run and its
MANIFEST, then the generation, then the first live entry. A reader loads in the opposite order, copies what it needs,
and checks the first live entry once more: a slot is used again only after that number has passed its entry, so what was
copied is what was written, or `Moved` is raised. This needs loads and stores to stay in order, as they do on x86
(`in_order`); weakly ordered processors would need barriers that Python does not have.
Runs: everything below the tail's first live entry is in the runs of the generation published before it. A MANIFEST is
whole at every moment, and a run it names is deleted only after another one took its place, so a missing run means: read
again. Confirmed ends are read before the entries below them are searched, so those are there.
Segments: new ones appear and retention deletes the oldest; they never change their place and never get shorter, so a
mapping stays valid. At most `SEGMENTS_MAX` are mapped, and a deleted one only until the next `let_go`.

A read that the writer overtook is repeated, at most `ATTEMPTS_MAX` times. A restarted writer makes another tail file:
the old one stays in use (what is confirmed remains confirmed) until the new one is ready. Invariant: nothing at or
above the confirm position is ever returned, and nothing that fails its checks; a failure is an exception, never wrong
bytes. Checksums are left to the caller, as in `reader.Reader.read_range`. Thread rule: one thread; results are copies.
"""

from __future__ import annotations

import mmap
import os
import platform
import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from broker.store.errors import CorruptIndex, CorruptLog, Unsettled
from broker.store.index import tail as layout
from broker.store.index.queue_index import TAIL_NAME
from broker.store.index.reader import NO_SUCH_QUEUE, RangeResult, Reader
from broker.store.index.run import Entries, Run, load_manifest, run_path
from broker.store.log.commit_log import list_segments, segment_path
from remoting.native import core as native
from remoting.native.contracts import CONFIRMED, ROW_WORDS, SLOT_BYTES, slot_column
from remoting.native.vectors import Column, joined, nonzero, view

_IN_ORDER = frozenset({"x86_64", "amd64", "i686"})


class Moved(Exception):
    """The writer changed what was being read; read again."""


class TailView:
    """A tail file that is ready; its writer may be alive or dead."""

    def __init__(self, path: Path) -> None:
        """Map the file. Raises Moved when it is none, or its writer is still recovering; OSError."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.inode = os.fstat(self._descriptor).st_ino
            self._map()
            if not self.epoch:
                raise Moved(f"{path} is not ready")
        except BaseException:
            self.close()
            raise

    def _map(self) -> None:
        head = os.pread(self._descriptor, layout.HEADER.size, 0)
        if len(head) < layout.HEADER.size or not head.startswith(layout.MAGIC):
            raise Moved("there is no index tail of this version")
        _, capacity, queue_count = layout.HEADER.unpack(head)
        self.capacity, self.queue_count = int(capacity), int(queue_count)
        slots_at = layout.COLUMNS_AT
        queues_at = slots_at + SLOT_BYTES * self.capacity
        rows_at = layout.rows_at(self.capacity)
        size = rows_at + 8 * ROW_WORDS * self.queue_count
        if os.fstat(self._descriptor).st_size < size:
            raise Moved("the index tail is being made")
        mapped = memoryview(mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ))
        self._head = mapped[: layout.COLUMNS_AT]
        self._counters = self._head[layout.COUNTERS_AT :].cast("q")
        self._rows = mapped[rows_at:].cast("q")
        self._queues = view(mapped[queues_at : queues_at + 4 * self.capacity], "I", self.capacity)
        slots = mapped[slots_at:queues_at]
        self._columns = tuple(slot_column(slots, name) for name in ("offset", "position", "size", "tag", "count"))

    # -- what the writer publishes ------------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """Number of the oldest live entry."""
        return int(self._counters[layout.FIRST])

    @property
    def count(self) -> int:
        """Number behind the newest entry."""
        return int(self._counters[layout.COUNT])

    @property
    def confirm_position(self) -> int:
        """Everything below it may be shown."""
        return int(self._counters[layout.CONFIRM])

    @property
    def generation(self) -> int:
        """How often the set of runs has changed."""
        return int(self._counters[layout.GENERATION])

    @property
    def begin(self) -> int:
        """Log position below which everything has expired."""
        return int(self._counters[layout.BEGIN])

    @property
    def epoch(self) -> int:
        """Epoch of the writer; 0 until it has recovered."""
        return int(self._counters[layout.EPOCH])

    def confirmed_end(self, queue: int) -> int | None:
        """Offset behind the queue's last confirmed message; None when there is no row for it."""
        if queue >= self.queue_count and not self._grown(queue):
            return None
        return int(self._rows[ROW_WORDS * queue + CONFIRMED])

    def _grown(self, queue: int) -> bool:
        """Map the rows that were added since; whether `queue` has one now."""
        (rows,) = struct.unpack_from("<Q", self._head, layout.HEADER.size - 8)
        if rows > self.queue_count:
            self._map()
        return queue < self.queue_count

    # -- entries ------------------------------------------------------------------------------------------------------

    def find(self, queue: int, offset: int, limit: int, start: int) -> tuple[Entries, int]:
        """Return the entries from number `start` on that hold messages [offset, limit), and the number behind them.

        None of them when the entry that holds `offset` is not among those. Raises Moved.
        """
        numbers = self._numbers_of(queue, start)
        offsets = self._columns[0][numbers % self.capacity]
        begin = offsets.searchsorted(offset, side="right") - 1
        end = offsets.searchsorted(limit)
        if begin < 0 or end <= begin:
            self._check(start)
            return Entries.empty(offset), start
        chosen = numbers[begin:end]
        found = [column[chosen % self.capacity] for column in self._columns]
        self._check(start)
        behind = found[0][-1] + found[4][-1]
        if behind <= offset:
            return Entries.empty(offset), start
        return Entries(found[0], found[1], found[2], found[3], behind), chosen[-1] + 1

    def first_offset(self, queue: int, start: int) -> int | None:
        """Return the offset of the queue's oldest entry from number `start` on. Raises Moved."""
        numbers = self._numbers_of(queue, start)
        found = self._columns[0][numbers[0] % self.capacity] if len(numbers) else None
        self._check(start)
        return found

    def _numbers_of(self, queue: int, start: int) -> Column:
        """Return the numbers of the queue's entries from `start` on."""
        count, n = self.count, self.capacity
        self._check(start)
        begin, length = start % n, max(0, count - start)  # a large batch may be in runs before it is published
        ahead = min(length, n - begin)
        found = nonzero(self._queues[begin : begin + ahead] == queue)
        if ahead < length:
            found = joined([found, nonzero(self._queues[: length - ahead] == queue) + ahead])
        return found + start

    def _check(self, start: int) -> None:
        """Raise Moved when entries from number `start` on may have been written over."""
        if self.first > start:
            raise Moved(f"entries below {self.first} are in a run now")

    def close(self) -> None:
        """Give the descriptor back; the map goes with the last view of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def in_order() -> bool:
    """Whether this processor keeps loads and stores in the order the program has them."""
    return platform.machine().lower() in _IN_ORDER


class RunSet:
    """The runs of one life of a writer; file ids are not used twice within it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs: list[Run] = []
        """Oldest first."""
        self.table = native.core.make_run_table(self.runs)
        """The lookup over all of them."""
        self.generation = -1

    def load(self, generation: int) -> None:
        """Have the runs of this generation at least; nothing to do when they are here. Raises Moved, CorruptIndex."""
        if generation == self.generation:
            return
        manifest = load_manifest(self.directory)
        known = {run.file_id: run for run in self.runs}
        try:
            self.runs = [
                known.get(file_id) or Run(run_path(self.directory, file_id))
                for file_id in (manifest.runs if manifest is not None else ())
            ]
        except FileNotFoundError as error:
            raise Moved(f"{error.filename} has been merged or dropped") from error
        self.table = native.core.make_run_table(self.runs)
        self.generation = generation


REMEMBERED_MAX = 65_536
"""Queues whose minimum, or whose place in the tail, is kept from one read to the next; all are forgotten then."""


class IndexView:
    """The index of one life of a writer; offers what `reader.Reader` asks of an index."""

    def __init__(self, directory: Path, tail: TailView) -> None:
        self.tail = tail
        self._runs = RunSet(directory)
        self._begin = 0
        self._minimums: dict[int, int] = {}
        self._places: dict[int, tuple[int, int]] = {}
        """Queue -> (offset, number): its entries from that offset on have at least that number."""

    @property
    def position(self) -> int:
        """Everything below this log position may be shown."""
        return self.tail.confirm_position

    def confirmed_end(self, queue: int) -> int:
        """Offset behind the queue's last confirmed message; 0 when it has no row."""
        return self.tail.confirmed_end(queue) or 0

    def move_begin(self, begin: int) -> None:
        """Hide entries below log position `begin`; it never moves back."""
        if begin > self._begin:
            self._begin = begin
            self._minimums.clear()

    def min_offset(self, queue: int) -> int:
        """Return the oldest offset whose record is still in the log. Raises Moved."""
        self.move_begin(self.tail.begin)
        minimum = self._minimums.get(queue)
        if minimum is None:
            minimum = self._look_up_minimum(queue)
            if len(self._minimums) >= REMEMBERED_MAX:
                self._minimums.clear()
            self._minimums[queue] = minimum
        return minimum

    def _look_up_minimum(self, queue: int) -> int:
        end = self.confirmed_end(queue)
        start = self._settle()
        found = self._runs.table.first_at(queue, self._begin)
        if found >= 0:
            return min(found, end)
        first = self.tail.first_offset(queue, start)
        return end if first is None else min(first, end)

    def read(self, queue: int, offset: int, count: int) -> Entries:
        """Return the entries that hold messages [offset, offset + count), which are below the confirmed end.

        At least the one that holds `offset`. Raises Moved.
        """
        start = self._settle()
        limit = offset + count
        parts = [Entries(*self._runs.table.find(queue, offset, limit))]
        if parts[0].end < limit:
            parts.append(self._find_in_tail(queue, parts[0].end, limit, start))
        parts = [part for part in parts if len(part)]
        if not parts:
            raise Moved(f"offset {offset} of queue {queue} is neither in the tail nor in a run")
        return Entries.joined(parts, offset)

    def _find_in_tail(self, queue: int, offset: int, limit: int, start: int) -> Entries:
        """Search from where the last read of this queue ended if that still exists, else through the whole tail."""
        known, number = self._places.get(queue, (offset, start))
        if known > offset or number < start:
            number = start
        found, behind = self.tail.find(queue, offset, limit, number)
        if len(found):
            if len(self._places) >= REMEMBERED_MAX:
                self._places.clear()
            self._places[queue] = (found.end, behind)
        return found

    def _settle(self) -> int:
        """Have the runs that hold everything below the tail's first live entry; the number of that entry."""
        start = self.tail.first
        self._runs.load(self.tail.generation)
        return start

    def close(self) -> None:
        """Give the descriptors back."""
        self.tail.close()


SEGMENTS_MAX = 64
"""Mapped at once; the one used longest ago goes first."""


class MappedSegment:
    """One segment, mapped read-only; what a reader needs of `segment.Segment`."""

    __slots__ = ("base", "end", "map", "path", "size", "view")

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.path = path
        self.base = int(path.name)
        self.size = len(self.map)
        self.end = self.base + self.size
        self.view = memoryview(self.map)

    def has_grown(self) -> bool:
        """Whether the file is longer than what is mapped: the newest one may be lengthened by a start."""
        try:
            return self.path.stat().st_size > self.size
        except FileNotFoundError:
            return False


class LogView:
    """Positions of one log directory -> mapped bytes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._bases: list[int] = []
        self._mapped: OrderedDict[int, MappedSegment] = OrderedDict()

    def begin(self) -> int:
        """Position of the oldest byte that is there now; 0 when there is none."""
        self._list_segments()
        return self._bases[0] if self._bases else 0

    def segment_at(self, position: int) -> MappedSegment | None:
        """Return the segment that holds `position`, None when it was deleted or does not exist yet."""
        found = self._known(position)
        if found is None:
            self._list_segments()
            found = self._known(position)
        return found

    def view(self, position: int, size: int) -> memoryview | None:
        """Return `size` bytes at `position`, None when they are not in one segment."""
        segment = self.segment_at(position)
        if segment is None or position + size > segment.end:
            return None
        at = position - segment.base
        return segment.view[at : at + size]

    def _known(self, position: int) -> MappedSegment | None:
        at = bisect_right(self._bases, position) - 1
        if at < 0:
            return None
        base = self._bases[at]
        segment = self._mapped.get(base)
        if segment is None or (position >= segment.end and segment.has_grown()):
            segment = self._map(base)
        else:
            self._mapped.move_to_end(base)
        return segment if segment is not None and position < segment.end else None

    def _map(self, base: int) -> MappedSegment | None:
        try:
            segment = MappedSegment(segment_path(self.directory, base))
        except (FileNotFoundError, ValueError):  # deleted meanwhile, or made and not yet as long as it will be
            return None
        self._mapped[base] = segment
        self._mapped.move_to_end(base)
        if len(self._mapped) > SEGMENTS_MAX:
            self._mapped.popitem(last=False)
        return segment

    def _list_segments(self) -> None:
        try:
            self._bases = [int(path.name) for path in list_segments(self.directory)]
        except FileNotFoundError:
            self._bases = []

    def let_go(self) -> None:
        """Unmap what has been deleted, and take the pages that were read out of this process's memory."""
        self._list_segments()
        there = set(self._bases)
        for base in [base for base in self._mapped if base not in there]:
            del self._mapped[base]
        for segment in self._mapped.values():
            segment.map.madvise(mmap.MADV_DONTNEED)


ATTEMPTS_MAX = 16
"""Reads of an index that changes each time. One takes a fraction of a millisecond; changes are tens of them apart."""

T = TypeVar("T")


class AttachedStore:
    """The read side of a store whose writer is another process."""

    def __init__(self, directory: Path) -> None:
        """Attach. Raises Unsettled when no writer has ever made the directory's index ready, or it is recovering."""
        self.directory = directory
        self.retries = 0
        """Reads that were repeated."""
        self.attachments = 0
        """Lives of writers that were followed."""
        self._tail_path = directory / "index" / TAIL_NAME
        self._log = LogView(directory / "log")
        self._index: IndexView | None = None
        self._steadily(lambda _: None)

    @property
    def confirm_position(self) -> int:
        """Everything below it may be shown."""
        return self._steadily(lambda _: self._attached().tail.confirm_position)

    @property
    def epoch(self) -> int:
        """Epoch of the writer that is followed."""
        return self._steadily(lambda _: self._attached().tail.epoch)

    def has_queue(self, queue: int) -> bool:
        """Whether the index has a row for this queue id; names are not known here."""
        return self._steadily(lambda _: self._attached().tail.confirmed_end(queue) is not None)

    def confirmed_end(self, queue: int) -> int:
        """Return the offset behind the queue's last confirmed message; the cheapest question there is."""
        return self._steadily(lambda _: self._attached().confirmed_end(queue))

    def bounds(self, queue: int) -> tuple[int, int]:
        """Return (oldest offset, confirmed end) of a queue; (0, 0) when there is none. Raises Unsettled."""
        return self._steadily(lambda reader: reader.bounds(queue))

    def read_range(self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int) -> RangeResult:
        """Return many confirmed records of `queue` in one piece, checksums unread.

        Raises Unsettled, CorruptLog (no record of the size and position that the index names), CorruptIndex.
        """
        if not self.has_queue(queue):
            return RangeResult(NO_SUCH_QUEUE, offset, offset, 0, 0)
        return self._steadily(lambda reader: reader.read_range(queue, offset, max_count, max_bytes, end_offset))

    def let_go(self) -> None:
        """Unmap what the writer has deleted, so that its space is freed; call it periodically."""
        self._steadily(lambda _: self._attached().move_begin(self._log.begin()))
        self._log.let_go()

    def close(self) -> None:
        """Give the descriptors back."""
        if self._index is not None:
            self._index.close()
            self._index = None

    def _attached(self) -> IndexView:
        assert self._index is not None, "the store is closed"
        return self._index

    def _steadily(self, read: Callable[[Reader], T]) -> T:
        """Read until the writer does not interfere; the last failure is raised."""
        for left in reversed(range(ATTEMPTS_MAX)):
            try:
                return read(self._current())
            except (Moved, CorruptLog, CorruptIndex) as error:
                if self._index is not None:
                    self._index.move_begin(self._log.begin())  # it may just have expired
                if not left:
                    if isinstance(error, Moved):
                        raise Unsettled(f"{self.directory}: {error}") from error
                    raise
            self.retries += 1
        raise AssertionError("not reached")

    def _current(self) -> Reader:
        """Return a reader of the writer's present life, or of its former one while it recovers. Raises Moved."""
        try:
            inode = self._tail_path.stat().st_ino
        except OSError:
            inode = 0
        if self._index is None or (inode and inode != self._index.tail.inode):
            self._attach()
        return self._reader

    def _attach(self) -> None:
        try:
            tail = TailView(self._tail_path)
        except (Moved, OSError) as error:
            if self._index is not None:
                return
            raise Moved(f"no writer has made the index ready: {error}") from error
        former, self._index = self._index, IndexView(self._tail_path.parent, tail)
        self._reader = Reader(self._log, self._index, self._index, check=False)
        self.attachments += 1
        if former is not None:
            former.close()
