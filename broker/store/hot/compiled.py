"""The compiled twin, first part: entry blocks, the index tail's memory, confirming. Pure-Python-mode Cython.

Declared in `compiled.pxd`; C pointers make it useless uncompiled. Invariant: number for number what `pure` does.
Thread rule: loop thread, holding the interpreter's lock.
"""

import cython
import numpy as np
from cython.cimports.cpython.buffer import PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

WALK_BEYOND = cython.declare(cython.longlong, 64)
"""Following the chain touches one cache line per entry; this far beyond what is wanted it still beats a search."""


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

    def columns(self):
        """Return the five columns as lists."""
        rows = range(self._length)
        return (
            [self._at[row].queue for row in rows],
            [self._at[row].offset for row in rows],
            [self._at[row].position for row in rows],
            [self._at[row].size for row in rows],
            [self._at[row].tag for row in rows],
        )


def make_block(queues, offsets, positions, sizes, tags):
    """Return a block of these columns."""
    length: cython.Py_ssize_t = len(queues)
    packed: bytes = PyBytes_FromStringAndSize(cython.NULL, 32 * length)
    at = cython.cast(cython.pointer(Entry), PyBytes_AS_STRING(packed))
    row: cython.Py_ssize_t
    for row in range(length):
        at[row].queue, at[row].offset, at[row].position = queues[row], offsets[row], positions[row]
        at[row].size, at[row].tag, at[row].spare = sizes[row], tags[row], 0
    return EntryBlock(packed, 0, length)


@cython.final
@cython.cclass
class Ring:
    """The mapped memory of the index tail."""

    def __init__(self, columns, rows):
        self._qid, self._offset, self._position, self._size, self._tag, self._prev = columns
        self._rows = rows
        self._capacity = self._qid.shape[0]
        self._queues = self._rows.shape[0] // 2

    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.cdivision(True)
    def store(self, entries: EntryBlock, first: cython.longlong, count: cython.longlong):
        """Put entries behind number `count`."""
        slot: cython.Py_ssize_t = count % self._capacity
        row: cython.Py_ssize_t
        newest: cython.longlong
        assert entries._length <= self._capacity - (count - first), (entries._length, first, count)
        for row in range(entries._length):
            entry = entries._at + row
            newest = self._rows[2 * entry.queue + 1]
            self._qid[slot], self._offset[slot], self._position[slot] = entry.queue, entry.offset, entry.position
            self._size[slot], self._tag[slot] = entry.size, entry.tag
            self._prev[slot] = cython.cast(cython.uint, count - newest) if newest >= first else 0
            self._rows[2 * entry.queue + 1] = count
            count += 1
            slot += 1
            if slot == self._capacity:
                slot = 0

    @cython.boundscheck(False)
    @cython.wraparound(False)
    def claim(self, entries: EntryBlock, at: cython.Py_ssize_t, queue_limit: cython.longlong):
        """Move the rows on while each entry is its queue's next."""
        queue_limit = min(queue_limit, self._queues)
        while at < entries._length:
            entry = entries._at + at
            if entry.queue >= queue_limit or self._rows[2 * entry.queue] != entry.offset:
                return at
            self._rows[2 * entry.queue] = entry.offset + 1
            at += 1
        return at

    @cython.boundscheck(False)
    @cython.wraparound(False)
    def undo(self, entries: EntryBlock):
        """Take the offsets back."""
        at: cython.Py_ssize_t = entries._length
        while at > 0:
            at -= 1
            self._rows[2 * entries._at[at].queue] = entries._at[at].offset

    @cython.boundscheck(False)
    @cython.wraparound(False)
    def find(
        self,
        queue: cython.uint,
        offset: cython.longlong,
        wanted: cython.longlong,
        first: cython.longlong,
        count: cython.longlong,
    ):
        """Return positions, sizes and tags of up to `wanted` entries of `queue` from `offset` on."""
        depth: cython.longlong = self._rows[2 * queue] - offset
        found: cython.longlong = max(0, min(depth, wanted))
        columns = np.empty(found, np.int64), np.empty(found, np.uint32), np.empty(found, np.uint32)
        if found:
            if depth <= 2 * found + WALK_BEYOND:
                self._walk(queue, depth, columns[0], columns[1], columns[2])
            else:
                self._search(queue, self._locate(queue, offset, first, count), columns[0], columns[1], columns[2])
        return columns

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.cdivision(True)
    def _walk(
        self,
        queue: cython.uint,
        depth: cython.longlong,
        position: cython.longlong[::1],
        size: cython.uint[::1],
        tag: cython.uint[::1],
    ) -> cython.void:
        """Follow the chain back from the queue's newest entry."""
        number: cython.longlong = self._rows[2 * queue + 1]
        at: cython.longlong = depth - 1
        slot: cython.Py_ssize_t
        while at >= 0:
            slot = number % self._capacity
            if at < position.shape[0]:
                position[at], size[at], tag[at] = self._position[slot], self._size[slot], self._tag[slot]
            number -= self._prev[slot]
            at -= 1

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.cdivision(True)
    def _search(
        self,
        queue: cython.uint,
        number: cython.longlong,
        position: cython.longlong[::1],
        size: cython.uint[::1],
        tag: cython.uint[::1],
    ) -> cython.void:
        """Look through the entries from `number` on; the caller knows that there are enough."""
        at: cython.Py_ssize_t = 0
        slot: cython.Py_ssize_t = number % self._capacity
        while at < position.shape[0]:
            if self._qid[slot] == queue:
                position[at], size[at], tag[at] = self._position[slot], self._size[slot], self._tag[slot]
                at += 1
            slot += 1
            if slot == self._capacity:
                slot = 0

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.cdivision(True)
    @cython.exceptval(-1)
    def _locate(
        self, queue: cython.uint, offset: cython.longlong, low: cython.longlong, high: cython.longlong
    ) -> cython.longlong:
        """Return the number of the live entry; entries of one queue rise with their numbers, so halving finds it."""
        at: cython.longlong
        middle: cython.longlong
        slot: cython.Py_ssize_t
        while low < high:
            middle = at = (low + high) // 2
            slot = at % self._capacity
            while at < high and self._qid[slot] != queue:
                at += 1
                slot += 1
                if slot == self._capacity:
                    slot = 0
            if at == high or self._offset[slot] > offset:
                high = middle
            elif self._offset[slot] == offset:
                return at
            else:
                low = at + 1
        raise AssertionError(f"offset {offset} of queue {queue} is not in the tail")


@cython.boundscheck(False)
@cython.wraparound(False)
def confirm(blocks: list, ends, stamps, stamp: cython.uint):
    """Move each queue's confirmed end; return the ids of the queues that moved, once each."""
    moved: list = []
    row: cython.Py_ssize_t
    limit: cython.Py_ssize_t
    block: EntryBlock
    end_buffer: Py_buffer
    stamp_buffer: Py_buffer
    PyObject_GetBuffer(ends, cython.address(end_buffer), PyBUF_WRITABLE)
    PyObject_GetBuffer(stamps, cython.address(stamp_buffer), PyBUF_WRITABLE)
    end_of = cython.cast(cython.p_longlong, end_buffer.buf)
    stamp_of = cython.cast(cython.p_uint, stamp_buffer.buf)
    limit = min(end_buffer.len // 8, stamp_buffer.len // 4)
    try:
        for block in blocks:
            for row in range(block._length):
                entry = block._at + row
                assert entry.queue < limit, (entry.queue, limit)
                end_of[entry.queue] = entry.offset + 1
                if stamp_of[entry.queue] != stamp:
                    stamp_of[entry.queue] = stamp
                    moved.append(entry.queue)
    finally:
        PyBuffer_Release(cython.address(end_buffer))
        PyBuffer_Release(cython.address(stamp_buffer))
    return moved
