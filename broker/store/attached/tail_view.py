"""One index tail as another process sees it: mapped read-only, read while its writer goes on.

The writer publishes by plain stores in one order: entries, then the count that covers them; a run and its MANIFEST,
then the generation, then the first live entry. We load in the opposite order, copy what we want, and look at the first
live entry once more: a slot is used again only after that number has passed its entry, so what was copied is what was
written, or `Moved` is raised. Invariant: nothing is believed that was not complete when the counts were read, nothing
is written. This needs loads and stores to stay in order, as they do on x86 (`in_order`); on processors with weak
ordering it would need barriers that Python does not have. Thread rule: one thread.
"""

from __future__ import annotations

import mmap
import os
import platform
import struct
from pathlib import Path
from typing import Any

import numpy as np

from broker.store.index import tail as layout
from broker.store.index.entries import Entries
from remoting.native.contracts import CONFIRMED, ROW_WORDS, SLOT

_IN_ORDER = frozenset({"x86_64", "amd64", "i686"})


class Moved(Exception):
    """The writer moved what was being looked at; look again."""


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
        queues_at = slots_at + SLOT.itemsize * self.capacity
        rows_at = layout.rows_at(self.capacity)
        size = rows_at + 8 * ROW_WORDS * self.queue_count
        if os.fstat(self._descriptor).st_size < size:
            raise Moved("the index tail is being made")
        view = memoryview(mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ))
        self._head = view[: layout.COLUMNS_AT]
        self._counters = self._head[layout.COUNTERS_AT :].cast("q")
        self._rows = view[rows_at:].cast("q")
        self._queues = np.frombuffer(view[queues_at : queues_at + 4 * self.capacity], "<u4")
        slots = np.frombuffer(view[slots_at:queues_at], SLOT)
        self._columns = tuple(slots[name] for name in ("offset", "position", "size", "tag", "count"))

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
        begin = int(offsets.searchsorted(offset, side="right")) - 1
        end = int(offsets.searchsorted(limit))
        if begin < 0 or end <= begin:
            self._check(start)
            return Entries.empty(offset), start
        chosen = numbers[begin:end]
        found = [column[chosen % self.capacity] for column in self._columns]
        self._check(start)
        behind = int(found[0][-1]) + int(found[4][-1])
        if behind <= offset:
            return Entries.empty(offset), start
        return Entries(found[0], found[1], found[2], found[3], behind), int(chosen[-1]) + 1

    def first_offset(self, queue: int, start: int) -> int | None:
        """Return the offset of the queue's oldest entry from number `start` on. Raises Moved."""
        numbers = self._numbers_of(queue, start)
        found = int(self._columns[0][numbers[0] % self.capacity]) if len(numbers) else None
        self._check(start)
        return found

    def _numbers_of(self, queue: int, start: int) -> Any:
        """Return the numbers of the queue's entries from `start` on."""
        count, n = self.count, self.capacity
        self._check(start)
        begin, length = start % n, max(0, count - start)  # a large batch may be in runs before it is published
        ahead = min(length, n - begin)
        found = np.flatnonzero(self._queues[begin : begin + ahead] == queue)
        if ahead < length:
            found = np.concatenate((found, np.flatnonzero(self._queues[: length - ahead] == queue) + ahead))
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
