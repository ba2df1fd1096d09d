"""Queue names and the latest state of each queue, without a Python object per queue.

    rows by queue id   start i64 (of the name in the blob; -1: no such queue) | length u32 | hash u32
                       | next offset i64 | position i64 of the record that set it
    slots              open addressing by hash, linear probing: id + 1; 0 is free, GONE was deleted
    blob               the names back to back; only ever appended to, replaced when half of it is dead

A million names of 40 bytes take 80 MB. The empty name holds the next free id. Invariant: a name has one live id at
most; rows of an id are never reused. Thread rule: loop thread; what `frozen` returns may go elsewhere, because the blob
it refers to never changes below its present end.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from remoting.native import core as native
from remoting.native.vectors import Column, cumsum, empty, full, nonzero, spread, view

VALUE = struct.Struct("<Iq")
GONE = 0xFFFF_FFFF
_SLOTS_MIN = 1024
_DEAD_BYTES_MIN = 65_536
_HASH_CHUNK = 16_384
_LOOK_ROWS = 16_384
_NAME_PIECE_BYTES = 1024 * 1024
Entry = tuple[bytes, int]


@dataclass(slots=True)
class QueueColumns:
    """All live queues at one moment, in order of their ids; `floor` is (next free id, position) or None."""

    ids: Column
    starts: Column
    lengths: Column
    next_offsets: Column
    positions: Column
    blob: bytearray
    floor: tuple[int, int] | None

    def names(self) -> Iterator[bytes]:
        """Yield the names back to back, in pieces as large as they lie together, but of a megabyte at most."""
        if not len(self.ids):
            return
        ends = self.starts + self.lengths
        breaks = nonzero(self.starts[1:] != ends[:-1]) + 1
        firsts = [self.starts[0], *self.starts[breaks]]
        lasts = [*ends[breaks - 1], ends[-1]]
        for first, last in zip(firsts, lasts, strict=True):
            for at in range(first, last, _NAME_PIECE_BYTES):
                yield bytes(self.blob[at : min(at + _NAME_PIECE_BYTES, last)])


@dataclass(slots=True)
class FrozenNames:
    """The rows of a table as they were, dead ones included; the work of sorting them out is for another thread."""

    starts: bytes
    lengths: bytes
    next_offsets: bytes
    positions: bytes
    blob: bytearray
    floor: tuple[int, int] | None

    def columns(self) -> QueueColumns:
        """Return the live queues."""
        rows = len(self.starts) // 8
        starts = view(self.starts, "q", rows)
        ids = nonzero(starts >= 0)
        return QueueColumns(
            ids.astype("I"), starts[ids], view(self.lengths, "I", rows)[ids],
            view(self.next_offsets, "q", rows)[ids], view(self.positions, "q", rows)[ids], self.blob, self.floor,
        )  # fmt: skip


class NameTable:
    """The QUEUE kind of durable state."""

    def __init__(self) -> None:
        self.count = 0
        self.floor: tuple[int, int] | None = None
        self._blob = bytearray()
        self._dead_bytes = 0
        self._starts = array("q")
        self._lengths = array("I")
        self._hashes = array("I")
        self._next_offsets = array("q")
        self._positions = array("q")
        self._slots = array("I", bytes(4 * _SLOTS_MIN))
        self._mask = _SLOTS_MIN - 1
        self._used = 0

    @property
    def next_id(self) -> int:
        """The id the next new queue gets."""
        return len(self._starts)

    def exists(self, queue: int) -> bool:
        """Whether there is a queue with this id."""
        return 0 <= queue < len(self._starts) and self._starts[queue] >= 0

    def name(self, queue: int) -> bytes | None:
        """Return the name of id `queue`; None when it never was or is deleted."""
        if not self.exists(queue):
            return None
        start = self._starts[queue]
        return bytes(self._blob[start : start + self._lengths[queue]])

    def ids(self, first: int, end: int) -> Column:
        """Return the ids in [first, end) that are queues."""
        starts = self._starts[first:end]
        return nonzero(view(starts, "q", len(starts)) >= 0) + first

    def find(self, name: bytes) -> int | None:
        """Return the id of `name`."""
        code = hash(name) & 0xFFFF_FFFF
        slots, hashes, mask = self._slots, self._hashes, self._mask
        at = code & mask
        while entry := slots[at]:
            if entry != GONE and hashes[entry - 1] == code and self.name(entry - 1) == name:
                return entry - 1
            at = (at + 1) & mask
        return None

    def value(self, queue: int) -> bytes:
        """Return the value of an existing queue as it stands in its record."""
        return VALUE.pack(queue, self._next_offsets[queue])

    def position(self, queue: int) -> int:
        """Return the position of the latest record about an existing queue."""
        return self._positions[queue]

    def get(self, name: bytes) -> Entry | None:
        """Return (value, position) or None."""
        if not name:
            return None if self.floor is None else (VALUE.pack(self.floor[0], 0), self.floor[1])
        queue = self.find(name)
        return None if queue is None else (self.value(queue), self._positions[queue])

    def items(self) -> Iterator[tuple[bytes, Entry]]:
        """Yield (name, (value, position)) of every queue, then of the empty name."""
        for queue in range(len(self._starts)):
            name = self.name(queue)
            if name is not None:
                yield name, (self.value(queue), self._positions[queue])
        if self.floor is not None:
            yield b"", (VALUE.pack(self.floor[0], 0), self.floor[1])

    def __len__(self) -> int:
        return self.count + (self.floor is not None)

    def put(self, name: bytes, value: bytes, position: int) -> tuple[int, int] | None:
        """Apply the record at `position`; return (id, next offset), None for the empty name."""
        queue, next_offset = VALUE.unpack(value)
        if not name:
            self.floor = (queue, position)
            self._grow(queue)
            return None
        known = self.find(name)
        if known != queue:
            if known is not None:
                self.discard(name)
            self._insert(name, queue)
        self._next_offsets[queue] = next_offset
        self._positions[queue] = position
        return queue, next_offset

    def discard(self, name: bytes) -> None:
        """Forget `name`; its id stays taken."""
        if not name:
            self.floor = None
            return
        queue = self.find(name)
        if queue is None:
            return
        at = self._hashes[queue] & self._mask
        while self._slots[at] != queue + 1:
            at = (at + 1) & self._mask
        self._slots[at] = GONE
        self._dead_bytes += self._lengths[queue]
        self._starts[queue] = -1
        self.count -= 1
        if self._dead_bytes > _DEAD_BYTES_MIN and 2 * self._dead_bytes > len(self._blob):
            self._compact()

    def topic_keys(self, first: int, end: int) -> list[bytes]:
        """Return the keys (`names.topic_key`) of the exact light queues with ids in [first, end)."""
        starts, lengths = self._starts[first:end], self._lengths[first:end]
        return native.core.topic_keys(self._blob, view(starts, "q", len(starts)), view(lengths, "I", len(starts)))

    def ids_with_prefix(self, prefix: bytes) -> list[int]:
        """Return the ids of the names that begin with `prefix`, without reading all the others."""
        starts, blob = view(self._starts, "q", len(self._starts)), view(self._blob, "B", len(self._blob))
        ids = nonzero((starts >= 0) & (view(self._lengths, "I", len(starts)) >= len(prefix)))
        for at, byte in enumerate(prefix):
            ids = ids[blob[starts[ids] + at] == byte]
        return ids.tolist()

    def older_than(self, position: int) -> Iterator[list[int]]:
        """Yield the ids of queues whose latest record is below `position`, in small lists, bounded work each.

        The table may change between two lists: what is added meanwhile is younger.
        """
        for first in range(0, len(self._starts), _LOOK_ROWS):
            last = min(first + _LOOK_ROWS, len(self._starts))
            found = (view(self._positions[first:last], "q", last - first) < position) & (
                view(self._starts[first:last], "q", last - first) >= 0
            )
            yield (nonzero(found) + first).tolist()

    def next_offsets(self) -> Column:
        """Return, per id, the latest recorded next offset; 0 for ids that are no queue."""
        rows = len(self._starts)
        return view(self._next_offsets, "q", rows) * (view(self._starts, "q", rows) >= 0)

    def frozen(self) -> FrozenNames:
        """Return all queues as they are now, for a snapshot written elsewhere: plain copies, without parsing."""
        return FrozenNames(
            bytes(self._starts), bytes(self._lengths), bytes(self._next_offsets), bytes(self._positions), self._blob,
            self.floor,
        )  # fmt: skip

    def load(self, columns: QueueColumns) -> None:
        """Take in queues of a snapshot; the table is empty before."""
        assert not self._starts, "only an empty table is loaded"
        ids, blob = columns.ids, columns.blob
        self.floor, self._blob, self.count = columns.floor, blob, len(ids)
        rows = max(ids[-1] + 1 if len(ids) else 0, columns.floor[0] if columns.floor else 0)
        codes = empty(len(ids), "I")
        for at in range(0, len(ids), _HASH_CHUNK):  # in pieces: lists of a million numbers would stay in the heap
            part = slice(at, at + _HASH_CHUNK)
            codes[part] = native.core.hash_spans(blob, columns.starts[part], columns.lengths[part])
        self._starts = _rows("q", rows, ids, columns.starts, -1)
        self._lengths = _rows("I", rows, ids, columns.lengths)
        self._hashes = _rows("I", rows, ids, codes)
        self._next_offsets = _rows("q", rows, ids, columns.next_offsets)
        self._positions = _rows("q", rows, ids, columns.positions)
        self._rehash()

    def _grow(self, count: int) -> None:
        missing = count - len(self._starts)
        if missing > 0:
            self._starts.extend([-1] * missing)
            for column in (self._lengths, self._hashes, self._next_offsets, self._positions):
                column.extend([0] * missing)

    def _insert(self, name: bytes, queue: int) -> None:
        self._grow(queue + 1)
        former = self.name(queue)
        if former is not None:
            self.discard(former)
        self._starts[queue] = len(self._blob)
        self._lengths[queue] = len(name)
        self._hashes[queue] = hash(name) & 0xFFFF_FFFF
        self._blob += name
        self.count += 1
        if 3 * (self._used + 1) > 2 * len(self._slots):
            self._rehash()
        else:
            self._take_slot(queue)

    def _take_slot(self, queue: int) -> None:
        slots, mask = self._slots, self._mask
        at = self._hashes[queue] & mask
        while slots[at]:
            at = (at + 1) & mask
        slots[at] = queue + 1
        self._used += 1

    def _rehash(self) -> None:
        """Make slots with room for half as many again: sorted by home slot, each goes to the next free one."""
        size = _SLOTS_MIN
        while size < 2 * self.count:
            size *= 2
        rows = len(self._starts)
        ids = nonzero(view(self._starts, "q", rows) >= 0)
        home = (view(self._hashes, "I", rows)[ids] & (size - 1)).astype("I")
        order = native.core.order_by_queue(home)
        taken, place = ids[order], spread(home[order])
        inside = place < size
        made = empty(size, "I")
        made[place[inside]] = taken[inside] + 1
        self._slots = array("I", made.tobytes())
        self._mask, self._used = size - 1, inside.sum()
        for queue in taken[~inside]:  # ran over the end: they continue at the beginning
            self._take_slot(queue)

    def _compact(self) -> None:
        """Copy the live names to a new blob; a snapshot being written keeps the old one."""
        frozen = self.frozen().columns()
        self._blob = bytearray().join(frozen.names())
        starts = full(len(self._starts), -1, "q")
        starts[frozen.ids] = cumsum(frozen.lengths) - frozen.lengths
        self._starts = array("q", starts.tobytes())
        self._dead_bytes = 0


def _rows(code: str, count: int, ids: Column, values: Column, default: int = 0) -> array[int]:
    rows = full(count, default, code)
    rows[ids] = values
    return array(code, rows.tobytes())


def names_with_prefix(table: NameTable, prefix: bytes) -> list[bytes]:
    """Return the names that begin with `prefix`, in order of their ids."""
    return [name for queue in table.ids_with_prefix(prefix) if (name := table.name(queue)) is not None]
