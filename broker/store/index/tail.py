"""The newest index entries, in fixed arrays of one shared file.

    index/tail   0 magic "LMQTAIL2" | 8 capacity N u64 | 16 queue rows Q u64
                 64 entry count i64 | 72 end position i64 | 80 confirm position i64 | 88 first live entry i64
                 96 durable position i64 | 104 its complement i64 | 112 generation of the set of runs i64
                 120 begin position i64 | 128 epoch of the writer i64, 0 until it has recovered
                 4096 {queue_offset i64, position i64, size u32, tag_hash u32, count u32, prev u32}[N] | qid u32[N]
                 next 4096 {next_offset i64, newest entry i64, confirmed end i64, flushed next i64}[Q]

A ring: entry number s lives in slot s % N, numbers begin at 1; live are the numbers [first, count). An entry holds
`count` messages from its offset on. `prev` is the distance back to the queue's entry before (0: none that was live when
it was stored). In a row the newest entry counts only when it is live; flushed next is then the offset of the queue's
oldest live entry, else everything below next_offset is in runs. Readers in other processes map the file, read `entry
count`, and take entries below it whose position is below `confirm position`.
Invariant: an entry is complete before the count that covers it; the file is allocated in full, so a store into the map
cannot hit a full disk, except for rows that `forget` gave back, into which nothing is stored any more; the durable
position is only ever a value that fdatasync has already proved.
Thread rule: one writer (the loop thread); the index thread reads the sealed part, which stays until `release`.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from contextlib import suppress
from pathlib import Path

from broker.store.index.run import Entries
from remoting.native import core as native
from remoting.native.contracts import (
    CONFIRMED,
    FLUSHED,
    NEWEST,
    NEXT,
    ROW_WORDS,
    SLOT_BYTES,
    EntryBlock,
    RunData,
    slot_column,
)
from remoting.native.vectors import Column, view

MAGIC = b"LMQTAIL2"
HEADER = struct.Struct("<8sQQ")
COUNTERS_AT = 64
COLUMNS_AT = 4096
_ROW_BYTES = 8 * ROW_WORDS
_ENTRY_BYTES = SLOT_BYTES + 4
COUNT, END, CONFIRM, FIRST, DURABLE, DURABLE_CHECK, GENERATION, BEGIN, EPOCH = range(9)
"""The counters, i64 each; what they mean stands above."""
QUEUES_MIN = 4096
GROWTH_MAX = 1 << 20
"""Rows that are made at once, beyond those that are needed: 32 MiB."""


class Tail:
    """The ring of the newest entries and the per-queue rows; recreated at every start."""

    def __init__(self, path: Path, capacity: int, queue_count: int = 0) -> None:
        self.path = path
        self.capacity = capacity
        self.first = 1
        self.count = 1
        self._queues = max(QUEUES_MIN, queue_count)
        self._allocated = 0
        """Bytes of the file that were allocated; some may have been given back."""
        self._rows_at = rows_at(capacity)
        fresh = path.with_suffix(".tmp")
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            try:
                self._map(descriptor)
            except OSError as error:
                if error.errno != errno.ENOSPC or not self._fits_without(path, descriptor):
                    raise
                # On a full disk the former tail makes room: what only it proved is in the checkpoint by now.
                path.unlink(missing_ok=True)
                self._map(descriptor)
            self.counters[FIRST] = self.counters[COUNT] = 1
            fresh.replace(path)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _fits_without(self, path: Path, descriptor: int) -> bool:
        """Whether the file would find room once the one at `path` is deleted."""
        if not path.exists():
            return False
        system = os.fstatvfs(descriptor)
        taken = (path.stat().st_blocks + os.fstat(descriptor).st_blocks) * 512
        return system.f_bavail * system.f_frsize + taken >= self._size

    @property
    def _size(self) -> int:
        return self._rows_at + self._queues * _ROW_BYTES

    def _map(self, descriptor: int) -> None:
        size = self._size
        if size > self._allocated:
            os.posix_fallocate(descriptor, self._allocated, size - self._allocated)
            self._allocated = size
        self._mmap = mmap.mmap(descriptor, size)
        self._mmap[: HEADER.size] = HEADER.pack(MAGIC, self.capacity, self._queues)
        self.counters = memoryview(self._mmap)[COUNTERS_AT : COUNTERS_AT + 8 * (EPOCH + 1)].cast("q")
        mapped = memoryview(self._mmap)
        self.rows = mapped[self._rows_at : size].cast("q")
        """Flat per-queue rows of ROW_WORDS words (`contracts`). Only this room writes them."""
        n, at = self.capacity, COLUMNS_AT + SLOT_BYTES * self.capacity
        self._slots = mapped[COLUMNS_AT:at]
        self._qid = view(mapped, "I", n, at)
        self.ring = native.core.make_ring(self._qid, self._slots, self.rows)
        """The entries and rows as the hot loops take them; another one after `grow`."""

    def row_column(self, word: int) -> Column:
        """Return one word of every queue's row, in the memory of the rows."""
        return view(self.rows, "q", self._queues, 8 * word, _ROW_BYTES)

    @property
    def room(self) -> int:
        """How many entries fit before `release` must be called."""
        return self.capacity - (self.count - self.first)

    def grow(self, queue_count: int) -> None:
        """Make rows for queue ids below `queue_count`; the file gets longer, never shorter. Raises OSError."""
        if queue_count <= self._queues:
            return
        before, self._queues = self._queues, max(queue_count, min(2 * self._queues, self._queues + GROWTH_MAX))
        try:
            self._map(self._descriptor)
        except OSError:
            self._queues = before
            raise

    def forget(self, first: int, end: int) -> None:
        """Give the whole pages of the rows [first, end) back to the system; they read as zeros, nothing stores there.

        A file system that cannot keeps them.
        """
        at, behind = self._rows_at + first * _ROW_BYTES, self._rows_at + end * _ROW_BYTES
        at, behind = -(-at // mmap.PAGESIZE) * mmap.PAGESIZE, behind // mmap.PAGESIZE * mmap.PAGESIZE
        if at < behind:
            with suppress(OSError):
                self._mmap.madvise(mmap.MADV_REMOVE, at, behind - at)

    def append(self, entries: EntryBlock) -> None:
        """Add entries in log order whose offsets the rows have given out; readers see them after `publish`.

        At most `room` of them.
        """
        self.ring.store(entries, self.first, self.count)
        self.count += len(entries)

    def publish(self, end_position: int, confirm_position: int) -> None:
        """Let readers see the entries appended so far."""
        counters = self.counters
        counters[END] = end_position
        counters[CONFIRM] = confirm_position
        counters[COUNT] = self.count

    def publish_confirm(self, confirm_position: int, durable_position: int) -> None:
        """Let readers see the confirm position, and the next start how much of the log fdatasync has proved."""
        counters = self.counters
        counters[CONFIRM] = confirm_position
        counters[DURABLE] = durable_position
        counters[DURABLE_CHECK] = ~durable_position

    def publish_runs(self) -> None:
        """Let readers know that the MANIFEST names other runs; before `release`, so that no entry is ever nowhere."""
        self.counters[GENERATION] += 1

    def publish_begin(self, begin: int) -> None:
        """Let readers know that everything below log position `begin` has expired."""
        self.counters[BEGIN] = begin

    def publish_epoch(self, epoch: int) -> None:
        """Let readers believe this file from now on: the writer of this epoch has recovered."""
        self.counters[EPOCH] = epoch

    def confirmed_end(self, queue: int) -> int:
        """Offset behind the queue's last confirmed message."""
        return int(self.rows[ROW_WORDS * queue + CONFIRMED])

    def flushed_next(self, queue: int) -> int:
        """Offset of the queue's first entry here; its next offset when it has none here."""
        at = ROW_WORDS * queue
        return int(self.rows[at + (FLUSHED if self.rows[at + NEWEST] >= self.first else NEXT)])

    def find(self, queue: int, offset: int, count: int) -> Entries:
        """Return the live entries that hold messages [offset, offset + count) of `queue`.

        The caller knows that `offset` is in the tail or the queue's next.
        """
        return Entries(*self.ring.find(queue, offset, count, self.first, self.count))

    def number_at(self, position: int) -> int:
        """Return the number of the first live entry at or above a log position, the count when there is none."""
        low, high = self.first, self.count
        positions = slot_column(self._slots, "position")
        while low < high:
            middle = (low + high) // 2
            if positions[middle % self.capacity] < position:
                low = middle + 1
            else:
                high = middle
        return low

    def sorted(self, end: int) -> RunData:
        """Return entries [first, end) as a run.

        They stay until `release`, so the index thread may call this while the tail grows.
        """
        return native.core.sort_entries(self._qid, self._slots, self.first, end)

    def release(self, end: int) -> None:
        """Forget entries below number `end`: a run holds them now."""
        assert self.first <= end <= self.count, (self.first, end, self.count)
        self.ring.release(end, self.count)
        self.first = end
        self.counters[FIRST] = end

    def close(self) -> None:
        """Give the descriptor back; the map goes with the last view of it."""
        os.close(self._descriptor)


def rows_at(capacity: int) -> int:
    """Where the queues' rows begin in the file."""
    return (COLUMNS_AT + capacity * _ENTRY_BYTES + 4095) & ~4095


def read_durable(path: Path) -> int:
    """Return the durable position a former tail file proves, 0 when it proves none."""
    try:
        with path.open("rb") as file:
            head = file.read(COLUMNS_AT)
    except OSError:
        return 0
    if len(head) < COLUMNS_AT or not head.startswith(MAGIC):
        return 0
    position, check = struct.unpack_from("<qq", head, COUNTERS_AT + 8 * DURABLE)
    return int(position) if check == ~position and position > 0 else 0


def rows_of(data: memoryview) -> Column | None:
    """Return the flat rows of a tail file, None when its layout does not hold together."""
    if len(data) < COLUMNS_AT:
        return None
    magic, capacity, queues = HEADER.unpack_from(data)
    at = rows_at(capacity)
    if magic != MAGIC or len(data) < at + queues * _ROW_BYTES:
        return None
    return view(data, "q", queues * ROW_WORDS, at)
