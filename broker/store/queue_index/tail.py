"""The newest index entries, in fixed arrays of one shared file.

    index/tail   0 magic "LMQTAIL1" | 8 capacity N u64 | 16 queue rows Q u64
                 64 entry count i64 | 72 end position i64 | 80 confirm position i64 | 88 first live entry i64
                 96 durable position i64 | 104 its complement i64
                 4096 qid u32[N] | queue_offset i64[N] | position i64[N] | size u32[N] | tag_hash u32[N] | prev u32[N]
                 then per queue {next_offset i64, newest entry i64}[Q]

A ring: entry number s lives in slot s % N; live are the numbers [first, count). `prev` is the distance back to the
queue's entry before (0: none), a row's newest entry counts only when it is live. Readers in other processes map the
file, read `entry count`, and take entries below it whose position is below `confirm position`.
Invariant: an entry is complete before the count that covers it; the file is allocated in full, so a store into the map
cannot hit a full disk; the durable position is only ever a value that fdatasync has already proved.
Thread rule: one writer (the loop thread); the index thread reads the sealed part, which stays until `release`.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.store import hot
from broker.store.hot.contracts import EntryBlock
from broker.store.queue_index.entries import Entries

MAGIC = b"LMQTAIL1"
_HEADER = struct.Struct("<8sQQ")
_COUNTERS_AT = 64
_COLUMNS_AT = 4096
_ROW_BYTES = 16
_ENTRY_BYTES = 32
_COUNT, _END, _CONFIRM, _FIRST, _DURABLE, _DURABLE_CHECK = range(6)
QUEUES_MIN = 4096


class Tail:
    """The ring of the newest entries and the per-queue rows; made anew at every start."""

    def __init__(self, path: Path, capacity: int, queue_count: int = 0) -> None:
        self.path = path
        self.capacity = capacity
        self.first = 0
        self.count = 0
        self._queues = max(QUEUES_MIN, queue_count)
        self._rows_at = (_COLUMNS_AT + capacity * _ENTRY_BYTES + 4095) & ~4095
        fresh = path.with_suffix(".tmp")
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._map(descriptor)
            fresh.replace(path)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _map(self, descriptor: int) -> None:
        size = self._rows_at + self._queues * _ROW_BYTES
        os.posix_fallocate(descriptor, 0, size)
        self._mmap = mmap.mmap(descriptor, size)
        self._mmap[: _HEADER.size] = _HEADER.pack(MAGIC, self.capacity, self._queues)
        self._counters = memoryview(self._mmap)[_COUNTERS_AT : _COUNTERS_AT + 48].cast("q")
        view = memoryview(self._mmap)
        self.rows = view[self._rows_at : size].cast("q")
        """Flat per-queue rows: next offset at 2 * qid, newest entry at 2 * qid + 1. Only this room writes them."""
        n, at = self.capacity, _COLUMNS_AT
        columns: list[Any] = []
        for wide in (False, True, True, False, False, False):
            part = view[at : at + n * (8 if wide else 4)]
            columns.append(np.frombuffer(part, dtype="<i8" if wide else "<u4"))
            at += len(part)
        self._columns = tuple(columns[:5])
        self.ring = hot.core.make_ring(columns, self.rows)
        """The entries and rows as the hot loops take them; another one after `grow`."""

    @property
    def queue_rows(self) -> npt.NDArray[np.int64]:
        """The rows as an array of shape (queues, 2)."""
        return np.frombuffer(self.rows, dtype="<i8").reshape(-1, 2)

    @property
    def room(self) -> int:
        """How many entries fit before `release` must be called."""
        return self.capacity - (self.count - self.first)

    def grow(self, queue_count: int) -> None:
        """Make rows for queue ids below `queue_count`; the file gets longer, never shorter. Raises OSError."""
        if queue_count <= self._queues:
            return
        before, self._queues = self._queues, max(queue_count, 2 * self._queues)
        try:
            self._map(self._descriptor)
        except OSError:
            self._queues = before
            raise

    def append(self, entries: EntryBlock) -> None:
        """Add entries in log order whose offsets the rows have given out; readers see them after `publish`.

        At most `room` of them.
        """
        self.ring.store(entries, self.first, self.count)
        self.count += len(entries)

    def publish(self, end_position: int, confirm_position: int) -> None:
        """Let readers see the entries appended so far."""
        counters = self._counters
        counters[_END] = end_position
        counters[_CONFIRM] = confirm_position
        counters[_COUNT] = self.count

    def publish_confirm(self, confirm_position: int, durable_position: int) -> None:
        """Let readers see the confirm position, and the next start how much of the log fdatasync has proved."""
        counters = self._counters
        counters[_CONFIRM] = confirm_position
        counters[_DURABLE] = durable_position
        counters[_DURABLE_CHECK] = ~durable_position

    def next_offset(self, queue: int) -> int:
        """Offset the queue's next entry gets."""
        return int(self.rows[queue + queue])

    def find(self, queue: int, offset: int, count: int) -> Entries:
        """Return up to `count` live entries of `queue` from `offset` on; the caller knows `offset` is in the tail."""
        return Entries(*self.ring.find(queue, offset, count, self.first, self.count))

    def sealed(self, end: int) -> tuple[npt.NDArray[Any], ...]:
        """Copy entries [first, end) as (qid, offset, position, size, tag) in log order; safe from the index thread."""
        slots = np.arange(self.first, end) % self.capacity
        return tuple(column[slots] for column in self._columns)

    def release(self, end: int) -> None:
        """Forget entries below number `end`: a run holds them now."""
        assert self.first <= end <= self.count, (self.first, end, self.count)
        self.first = end
        self._counters[_FIRST] = end

    def close(self) -> None:
        """Give the descriptor back; the map goes with the last view of it."""
        os.close(self._descriptor)


def read_durable(path: Path) -> int:
    """Return the durable position a former tail file proves, 0 when it proves none."""
    try:
        with path.open("rb") as file:
            head = file.read(_COLUMNS_AT)
    except OSError:
        return 0
    if len(head) < _COLUMNS_AT or not head.startswith(MAGIC):
        return 0
    position, check = struct.unpack_from("<qq", head, _COUNTERS_AT + 8 * _DURABLE)
    return int(position) if check == ~position and position > 0 else 0
