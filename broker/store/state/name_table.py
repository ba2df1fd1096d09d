"""Queue names and the latest state of each queue, without a Python object per queue.

    pages of 256 ids   start i64 (of the name in the blob; -1: no such queue) | length u32 | hash u32
                       | next offset i64 | position i64 of the record that set it
    slots              open addressing by hash, linear probing: id + 1; 0 is free, GONE was deleted
    blob               the names back to back; only ever appended to, replaced when half of it is dead

A page is made with the first queue among its ids and dropped with the last one: ids are used once, so what is kept
grows with the queues there are (8 kB for each at most, 32 bytes where they lie together), not with the ids given out.
A million names of 40 bytes take 80 MB. The empty name holds the next free id. Invariant: a name has one live id at
most; an id is never given out again. Thread rule: loop thread; what `frozen` returns may go elsewhere, because the blob
it refers to never changes below its present end.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from remoting.native import core as native
from remoting.native.vectors import Column, column, cumsum, empty, nonzero, spread, view, within

VALUE = struct.Struct("<Iq")
GONE = 0xFFFF_FFFF
PAGE_BITS = 8
PAGE = 1 << PAGE_BITS
"""Neighbouring ids whose rows are kept, or not, together."""
PAGE_MASK = PAGE - 1
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
    """The pages of a table as they were, dead rows included; the work of sorting them out is for another thread."""

    pages: list[int]
    """Their numbers, rising; the columns have their rows back to back."""
    starts: bytes
    lengths: bytes
    next_offsets: bytes
    positions: bytes
    blob: bytearray
    floor: tuple[int, int] | None

    def columns(self) -> QueueColumns:
        """Return the live queues."""
        count = len(self.pages) * PAGE
        starts = view(self.starts, "q", count)
        rows = nonzero(starts >= 0)
        return QueueColumns(
            _ids(self.pages, rows).astype("I"), starts[rows], view(self.lengths, "I", count)[rows],
            view(self.next_offsets, "q", count)[rows], view(self.positions, "q", count)[rows], self.blob, self.floor,
        )  # fmt: skip


def _ids(pages: Sequence[int], rows: Column) -> Column:
    """The ids of rows of these pages, which lie back to back."""
    return column(pages, "q")[rows >> PAGE_BITS] * PAGE + (rows & PAGE_MASK)


class _NameRows:
    """The rows of `PAGE` neighbouring ids, at least one of which is a queue."""

    __slots__ = ("hashes", "lengths", "live", "next_offsets", "positions", "starts")

    def __init__(self) -> None:
        self.live = 0
        self.starts = array("q", _NO_STARTS)
        self.lengths = array("I", _NO_NUMBERS)
        self.hashes = array("I", _NO_NUMBERS)
        self.next_offsets = array("q", _NO_OFFSETS)
        self.positions = array("q", _NO_OFFSETS)


_NO_STARTS, _NO_NUMBERS, _NO_OFFSETS = b"\xff" * (8 * PAGE), bytes(4 * PAGE), bytes(8 * PAGE)
_KINDS = {"starts": "q", "lengths": "I", "hashes": "I", "next_offsets": "q", "positions": "q"}


class NameTable:
    """The QUEUE kind of durable state."""

    def __init__(self) -> None:
        self.count = 0
        self.floor: tuple[int, int] | None = None
        self.next_id = 0
        """The id the next new queue gets."""
        self.on_dropped: Callable[[int], None] | None = None
        """Called with the number of a page that has lost its last queue."""
        self._blob = bytearray()
        self._dead_bytes = 0
        self._pages: dict[int, _NameRows] = {}
        self._order: list[int] = []
        """The numbers of the pages, rising."""
        self._slots = array("I", bytes(4 * _SLOTS_MIN))
        self._mask = _SLOTS_MIN - 1
        self._used = 0

    def exists(self, queue: int) -> bool:
        """Whether there is a queue with this id."""
        page = self._pages.get(queue >> PAGE_BITS)
        return page is not None and page.starts[queue & PAGE_MASK] >= 0

    def name(self, queue: int) -> bytes | None:
        """Return the name of id `queue`; None when it never was or is deleted."""
        page = self._pages.get(queue >> PAGE_BITS)
        return None if page is None else self._name(page, queue & PAGE_MASK)

    def _name(self, page: _NameRows, row: int) -> bytes | None:
        start = page.starts[row]
        return None if start < 0 else bytes(self._blob[start : start + page.lengths[row]])

    def ids(self, first: int, end: int) -> Column:
        """Return the ids in [first, end) that are queues."""
        return self._live(first, end)[2]

    def parts(self, count: int, first: int = 0) -> Iterator[int]:
        """Yield the first ids of the parts of `count` ids that may have queues, from the one with `first` on.

        The table may change meanwhile. Pages whose queues have all been deleted are passed over at no cost.
        """
        while (at := bisect_left(self._order, first >> PAGE_BITS)) < len(self._order):
            found = max(first, self._order[at] << PAGE_BITS) // count * count
            yield found
            first = found + count

    def find(self, name: bytes) -> int | None:
        """Return the id of `name`."""
        code = hash(name) & 0xFFFF_FFFF
        slots, pages, mask = self._slots, self._pages, self._mask
        at = code & mask
        while entry := slots[at]:
            if entry != GONE:
                queue = entry - 1
                page, row = pages[queue >> PAGE_BITS], queue & PAGE_MASK
                if page.hashes[row] == code and self._name(page, row) == name:
                    return queue
            at = (at + 1) & mask
        return None

    def value(self, queue: int) -> bytes:
        """Return the value of an existing queue as it stands in its record."""
        return VALUE.pack(queue, self._pages[queue >> PAGE_BITS].next_offsets[queue & PAGE_MASK])

    def position(self, queue: int) -> int:
        """Return the position of the latest record about an existing queue."""
        return self._pages[queue >> PAGE_BITS].positions[queue & PAGE_MASK]

    def get(self, name: bytes) -> Entry | None:
        """Return (value, position) or None."""
        if not name:
            return None if self.floor is None else (VALUE.pack(self.floor[0], 0), self.floor[1])
        queue = self.find(name)
        return None if queue is None else (self.value(queue), self.position(queue))

    def items(self) -> Iterator[tuple[bytes, Entry]]:
        """Yield (name, (value, position)) of every queue, then of the empty name."""
        for queue in self.ids(0, self.next_id):
            name = self.name(queue)
            if name is not None:
                yield name, (self.value(queue), self.position(queue))
        if self.floor is not None:
            yield b"", (VALUE.pack(self.floor[0], 0), self.floor[1])

    def __len__(self) -> int:
        return self.count + (self.floor is not None)

    def put(self, name: bytes, value: bytes, position: int) -> tuple[int, int] | None:
        """Apply the record at `position`; return (id, next offset), None for the empty name."""
        queue, next_offset = VALUE.unpack(value)
        if not name:
            self.floor = (queue, position)
            self.next_id = max(self.next_id, queue)
            return None
        known = self.find(name)
        if known != queue:
            if known is not None:
                self.discard(name)
            self._insert(name, queue)
        page, row = self._pages[queue >> PAGE_BITS], queue & PAGE_MASK
        page.next_offsets[row] = next_offset
        page.positions[row] = position
        return queue, next_offset

    def discard(self, name: bytes) -> None:
        """Forget `name`; its id stays taken."""
        if not name:
            self.floor = None
            return
        queue = self.find(name)
        if queue is None:
            return
        number, row = queue >> PAGE_BITS, queue & PAGE_MASK
        page = self._pages[number]
        at = page.hashes[row] & self._mask
        while self._slots[at] != queue + 1:
            at = (at + 1) & self._mask
        self._slots[at] = GONE
        self._dead_bytes += page.lengths[row]
        page.starts[row] = -1
        page.live -= 1
        self.count -= 1
        if not page.live:
            del self._pages[number], self._order[bisect_left(self._order, number)]
            if self.on_dropped is not None:
                self.on_dropped(number)
        if self._dead_bytes > _DEAD_BYTES_MIN and 2 * self._dead_bytes > len(self._blob):
            self._compact()

    def topic_keys(self, first: int, end: int) -> list[bytes]:
        """Return the keys (`names.topic_key`) of the exact light queues with ids in [first, end)."""
        pages, rows, _ = self._live(first, end)
        starts, lengths = (self._column(name, pages)[rows] for name in ("starts", "lengths"))
        return native.core.topic_keys(self._blob, starts, lengths)

    def ids_with_prefix(self, prefix: bytes) -> list[int]:
        """Return the ids of the names that begin with `prefix`, without reading all the others."""
        starts, blob = self._column("starts", self._order), view(self._blob, "B", len(self._blob))
        rows = nonzero((starts >= 0) & (self._column("lengths", self._order) >= len(prefix)))
        for at, byte in enumerate(prefix):
            rows = rows[blob[starts[rows] + at] == byte]
        return _ids(self._order, rows).tolist()

    def older_than(self, position: int) -> Iterator[list[int]]:
        """Yield the ids of queues whose latest record is below `position`, in small lists, bounded work each.

        The table may change between two lists: what is added meanwhile is younger.
        """
        for first in self.parts(_LOOK_ROWS):
            pages, rows, ids = self._live(first, first + _LOOK_ROWS)
            yield ids[self._column("positions", pages)[rows] < position].tolist()

    def next_offsets(self) -> Column:
        """Return, per id, the latest recorded next offset; 0 for ids that are no queue."""
        found = empty(self.next_id, "q")
        pages, rows, ids = self._live(0, self.next_id)
        found[ids] = self._column("next_offsets", pages)[rows]
        return found

    def frozen(self) -> FrozenNames:
        """Return all queues as they are now, for a snapshot written elsewhere: plain copies, without parsing."""
        starts, lengths, next_offsets, positions = (
            self._bytes(name, self._order) for name in ("starts", "lengths", "next_offsets", "positions")
        )
        return FrozenNames(list(self._order), starts, lengths, next_offsets, positions, self._blob, self.floor)

    def load(self, columns: QueueColumns) -> None:
        """Take in queues of a snapshot; the table is empty before."""
        assert not self.next_id, "only an empty table is loaded"
        ids, blob = columns.ids, columns.blob
        self.floor, self._blob, self.count = columns.floor, blob, len(ids)
        self.next_id = max(ids[-1] + 1 if len(ids) else 0, columns.floor[0] if columns.floor else 0)
        codes = empty(len(ids), "I")
        for at in range(0, len(ids), _HASH_CHUNK):  # in pieces: lists of a million numbers would stay in the heap
            part = slice(at, at + _HASH_CHUNK)
            codes[part] = native.core.hash_spans(blob, columns.starts[part], columns.lengths[part])
        whole = {
            "starts": columns.starts, "lengths": columns.lengths, "hashes": codes,
            "next_offsets": columns.next_offsets, "positions": columns.positions,
        }  # fmt: skip
        for number, part in _by_page(ids):
            self._pages[number] = page = _NameRows()
            self._order.append(number)
            page.live = part.stop - part.start
            rows = ids[part] & PAGE_MASK
            for name, values in whole.items():
                view(getattr(page, name), _KINDS[name], PAGE)[rows] = values[part]
        self._rehash()

    def _live(self, first: int, end: int) -> tuple[list[int], Column, Column]:
        """Return the pages with ids in [first, end), the rows of these that are queues in the range, and their ids."""
        order = self._order
        pages = order[bisect_left(order, first >> PAGE_BITS) : bisect_left(order, (end + PAGE_MASK) >> PAGE_BITS)]
        rows = nonzero(self._column("starts", pages) >= 0)
        ids = _ids(pages, rows)
        if (first | end) & PAGE_MASK:
            inside = within(ids, first, end)
            rows, ids = rows[inside], ids[inside]
        return pages, rows, ids

    def _bytes(self, name: str, pages: Sequence[int]) -> bytes:
        return b"".join([getattr(self._pages[number], name) for number in pages])

    def _column(self, name: str, pages: Sequence[int]) -> Column:
        """One column of these pages, which lie back to back."""
        return view(self._bytes(name, pages), _KINDS[name], len(pages) * PAGE)

    def _insert(self, name: bytes, queue: int) -> None:
        former = self.name(queue)
        if former is not None:
            self.discard(former)
        self.next_id = max(self.next_id, queue + 1)
        number, row = queue >> PAGE_BITS, queue & PAGE_MASK
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = _NameRows()
            insort(self._order, number)
        page.starts[row] = len(self._blob)
        page.lengths[row] = len(name)
        page.hashes[row] = hash(name) & 0xFFFF_FFFF
        page.live += 1
        self._blob += name
        self.count += 1
        if 3 * (self._used + 1) > 2 * len(self._slots):
            self._rehash()
        else:
            self._take_slot(queue)

    def _take_slot(self, queue: int) -> None:
        slots, mask = self._slots, self._mask
        at = self._pages[queue >> PAGE_BITS].hashes[queue & PAGE_MASK] & mask
        while slots[at]:
            at = (at + 1) & mask
        slots[at] = queue + 1
        self._used += 1

    def _rehash(self) -> None:
        """Make slots with room for half as many again: sorted by home slot, each goes to the next free one."""
        size = _SLOTS_MIN
        while size < 2 * self.count:
            size *= 2
        pages, rows, ids = self._live(0, self.next_id)
        home = (self._column("hashes", pages)[rows] & (size - 1)).astype("I")
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
        starts, at = cumsum(frozen.lengths) - frozen.lengths, 0
        for number in self._order:
            page = self._pages[number]
            rows = view(page.starts, "q", PAGE)
            rows[nonzero(rows >= 0)] = starts[at : at + page.live]
            at += page.live
        self._dead_bytes = 0


def _by_page(ids: Column) -> Iterator[tuple[int, slice]]:
    """Yield (page, the part of the rising ids that is in it)."""
    if not len(ids):
        return
    pages = ids >> PAGE_BITS
    breaks = (nonzero(pages[1:] != pages[:-1]) + 1).tolist()
    for first, end in zip([0, *breaks], [*breaks, len(ids)], strict=True):
        yield pages[first], slice(first, end)


def names_with_prefix(table: NameTable, prefix: bytes) -> list[bytes]:
    """Return the names that begin with `prefix`, in order of their ids."""
    return [name for queue in table.ids_with_prefix(prefix) if (name := table.name(queue)) is not None]
