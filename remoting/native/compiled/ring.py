"""The compiled twin, first part: entry blocks, the index tail's memory, confirming. Pure-Python-mode Cython.

Declared in `ring.pxd`; C pointers make it useless uncompiled. Invariant: number for number what the `Ring`
of the reference does. Thread rule: loop thread, holding the interpreter's lock.
"""

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.remoting.native.compiled.machine import find_u32
from cython.cimports.remoting.native.compiled.vectors import I64, U32, Column, made

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

WALK_MAX = cython.declare(cython.longlong, 128)
"""Messages up to which following the chain, at one cache line per entry, still beats a search."""


@cython.final
@cython.cclass
class EntryBlock:
    """Entries packed in one bytes object; slices share it."""

    def __init__(self, packed: bytes, first: cython.Py_ssize_t, length: cython.Py_ssize_t):
        assert first >= 0, first
        assert 0 <= length <= len(packed) // 32 - first, (first, length, len(packed))
        self._packed = packed
        self._at = cython.cast(cython.pointer(Entry), PyBytes_AS_STRING(packed)) + first
        self._length = length

    def __len__(self):
        return self._length

    def slice(self, first: cython.Py_ssize_t, end: cython.Py_ssize_t):
        """Return entries [first, end)."""
        origin = cython.cast(cython.pointer(Entry), PyBytes_AS_STRING(self._packed))
        return EntryBlock(self._packed, (self._at - origin) + first, end - first)

    def position(self, at: cython.Py_ssize_t):
        """Return the log position of entry `at`."""
        assert 0 <= at < self._length
        return self._at[at].position

    def positions(self, queue: cython.uint, offset: cython.longlong, count: cython.longlong, hint: cython.Py_ssize_t):
        """Return the log positions of the messages [offset, offset + count) of a queue, as far as they are here.

        The entries from `hint` on are examined first.
        """
        found: list = []
        _step: cython.Py_ssize_t
        at: cython.Py_ssize_t = hint if 0 <= hint < self._length else 0
        for _step in range(self._length):
            if len(found) == count:
                break
            if self._at[at].queue == queue and self._at[at].offset == offset + len(found):
                found.append(self._at[at].position)
            at = at + 1 if at + 1 < self._length else 0
        return found

    def columns(self):
        """Return the six columns as lists."""
        rows = range(self._length)
        return (
            [self._at[row].queue for row in rows],
            [self._at[row].offset for row in rows],
            [self._at[row].position for row in rows],
            [self._at[row].size for row in rows],
            [self._at[row].tag for row in rows],
            [self._at[row].count for row in rows],
        )


def make_block(queues, offsets, positions, sizes, tags, counts):
    """Return a block of these columns."""
    length: cython.Py_ssize_t = len(queues)
    packed: bytes = PyBytes_FromStringAndSize(cython.NULL, 32 * length)
    at = cython.cast(cython.pointer(Entry), PyBytes_AS_STRING(packed))
    row: cython.Py_ssize_t
    for row in range(length):
        at[row].queue, at[row].offset, at[row].position = queues[row], offsets[row], positions[row]
        at[row].size, at[row].tag, at[row].count = sizes[row], tags[row], counts[row]
    return EntryBlock(packed, 0, length)


@cython.final
@cython.cclass
class Ring:
    """The mapped memory of the index tail."""

    def __init__(self, queues, slots, rows):
        self._qid_view, self._slot_view, self._row_view = queues, slots, rows
        self._capacity = self._qid_view.shape[0]
        self._queues = self._row_view.shape[0] // 4
        assert self._slot_view.shape[0] == 32 * self._capacity, (self._slot_view.shape[0], self._capacity)
        self._qid = cython.address(self._qid_view[0])
        self._slots = cython.cast(cython.pointer(Slot), cython.address(self._slot_view[0]))
        self._rows = cython.cast(cython.pointer(Row), cython.address(self._row_view[0]))

    def store(self, entries: EntryBlock, first: cython.longlong, count: cython.longlong):
        """Append the entries after number `count`."""
        self._store(entries, first, count)

    @cython.cfunc
    @cython.cdivision(True)
    @cython.exceptval(-1)
    def _store(self, entries: EntryBlock, first: cython.longlong, count: cython.longlong) -> cython.int:
        slot: cython.Py_ssize_t = count % self._capacity
        at: cython.Py_ssize_t
        assert entries._length <= self._capacity - (count - first), (entries._length, first, count)
        for at in range(entries._length):
            entry = entries._at + at
            row = self._rows + entry.queue
            to = self._slots + slot
            if row.newest >= first:
                to.prev = cython.cast(cython.uint, count - row.newest)
            else:
                to.prev = 0
                row.flushed = entry.offset
            row.newest = count
            to.offset, to.position, to.size, to.tag = entry.offset, entry.position, entry.size, entry.tag
            to.count = entry.count
            self._qid[slot] = entry.queue
            count += 1
            slot += 1
            if slot == self._capacity:
                slot = 0
        return 0

    def claim(self, entries: EntryBlock, at: cython.Py_ssize_t, queue_limit: cython.longlong):
        """Advance the rows while each entry is its queue's next."""
        queue_limit = min(queue_limit, self._queues)
        while at < entries._length:
            entry = entries._at + at
            if entry.queue >= queue_limit or self._rows[entry.queue].next != entry.offset:
                return at
            self._rows[entry.queue].next = entry.offset + entry.count
            at += 1
        return at

    def undo(self, entries: EntryBlock):
        """Take back the offsets of these entries, which must be the latest."""
        at: cython.Py_ssize_t = entries._length
        while at > 0:
            at -= 1
            self._rows[entries._at[at].queue].next = entries._at[at].offset

    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.cdivision(True)
    def find(
        self,
        queue: cython.uint,
        offset: cython.longlong,
        wanted: cython.longlong,
        first: cython.longlong,
        count: cython.longlong,
    ):
        """Return the entries of `queue` that hold messages [offset, offset + wanted)."""
        number: cython.longlong = 0
        room: cython.longlong
        at: cython.longlong
        end: cython.longlong
        assert queue < self._queues, (queue, self._queues)
        if wanted > 0 and self._rows[queue].newest >= first and self._rows[queue].next > offset:
            number = self._last_below(queue, offset + wanted, first, count)
        slot = self._slots + number % self._capacity
        room = at = min(wanted, max(0, slot.offset - offset) + 1) if number else 0
        offsets: Column = made(room, I64)
        positions: Column = made(room, I64)
        sizes: Column = made(room, U32)
        tags: Column = made(room, U32)
        if not room:
            return offsets, positions, sizes, tags, offset
        end = slot.offset + slot.count
        to_offset: cython.p_longlong = cython.cast(cython.p_longlong, offsets._at)
        to_position: cython.p_longlong = cython.cast(cython.p_longlong, positions._at)
        to_size: cython.p_uint = cython.cast(cython.p_uint, sizes._at)
        to_tag: cython.p_uint = cython.cast(cython.p_uint, tags._at)
        while at > 0:
            at -= 1
            to_offset[at], to_position[at], to_size[at], to_tag[at] = slot.offset, slot.position, slot.size, slot.tag
            if slot.offset <= offset or not slot.prev:
                break
            number -= slot.prev
            slot = self._slots + number % self._capacity
        if at:  # batches: fewer entries than messages
            return offsets[at:], positions[at:], sizes[at:], tags[at:], end
        return offsets, positions, sizes, tags, end

    @cython.cfunc
    @cython.cdivision(True)
    @cython.exceptval(check=False)
    def _last_below(
        self, queue: cython.uint, limit: cython.longlong, first: cython.longlong, count: cython.longlong
    ) -> cython.longlong:
        """Return the number of the queue's last live entry that begins below `limit`, 0 when there is none.

        A queue's offsets rise with the numbers, so a binary search replaces a long walk along the chain.
        """
        found: cython.longlong = 0
        at: cython.longlong
        middle: cython.longlong
        if self._rows[queue].next - limit <= WALK_MAX:
            at = self._rows[queue].newest
            while self._slots[at % self._capacity].offset >= limit:
                if not self._slots[at % self._capacity].prev:
                    return 0
                at -= self._slots[at % self._capacity].prev
            return at
        while first < count:
            middle = (first + count) // 2
            at = self._next_of(queue, middle, count)
            if at == count or self._slots[at % self._capacity].offset >= limit:
                count = middle
            else:
                found = at
                first = at + 1
        return found

    @cython.cfunc
    @cython.cdivision(True)
    @cython.exceptval(check=False)
    def _next_of(self, queue: cython.uint, number: cython.longlong, count: cython.longlong) -> cython.longlong:
        """Return the number of the queue's first entry from `number` on, `count` when there is none."""
        slot: cython.longlong = number % self._capacity
        turn: cython.longlong = min(self._capacity, slot + count - number)
        at: cython.longlong = find_u32(self._qid, slot, turn, queue)
        if at < turn or number + turn - slot == count:
            return number + at - slot
        number += turn - slot
        return number + find_u32(self._qid, 0, count - number, queue)

    def confirm(self, blocks: list):
        """Advance each queue's confirmed end; return the distinct ids of the queues that advanced."""
        moved: list = []
        at: cython.Py_ssize_t
        which: cython.Py_ssize_t = len(blocks)
        end: cython.longlong
        block: EntryBlock
        while which > 0:
            which -= 1
            block = blocks[which]
            at = block._length
            while at > 0:
                at -= 1
                entry = block._at + at
                assert entry.queue < self._queues, (entry.queue, self._queues)
                end = entry.offset + entry.count
                if self._rows[entry.queue].confirmed < end:
                    self._rows[entry.queue].confirmed = end
                    moved.append(entry.queue)
        moved.reverse()
        return moved

    @cython.cdivision(True)
    def release(self, end: cython.longlong, count: cython.longlong):
        """Note the new first offset of the queues whose chain reaches below number `end`."""
        number: cython.longlong
        for number in range(end, count):
            slot = self._slots + number % self._capacity
            if slot.prev and number - slot.prev < end:
                self._rows[self._qid[number % self._capacity]].flushed = slot.offset
