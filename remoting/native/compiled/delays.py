"""The compiled twin of what waits for its time: counts by second, the order of what is due, records back into images.

`DueSpan` is declared in `delays.pxd`, because the walk over images counts in it. Pure-Python-mode Cython. Invariants:
the results are those of the pure twin; nothing is copied out of a record whose checksum is wrong. Thread rule: loop
thread, holding the interpreter's lock.
"""

import cython
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.stdlib import free, malloc, qsort, realloc
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.remoting.native.compiled.encoder import prefetch
from cython.cimports.remoting.native.compiled.machine import crc32c_ready, record_checksum, record_fits, record_header
from cython.cimports.remoting.native.compiled.vectors import I64, Column, made, packed

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from remoting.native.contracts import SPAN_S
from remoting.protocol.records import record

crc32c_ready()
assert SPAN_S == 300, SPAN_S
SECONDS = cython.declare(cython.int, SPAN_S)
HEADER = cython.declare(cython.longlong, record.HEADER_SIZE)
PAIR = cython.declare(cython.longlong, record.DISPATCH_SIZE)
MESSAGE_TYPE = cython.declare(cython.uint, record.MESSAGE)
STAGED = cython.declare(cython.uint, record.FLAG_STAGED)
FORMAT_MASK = cython.declare(cython.uint, record.FLAG_FORMAT_MASK)
SIFTED_SHARE = cython.declare(cython.Py_ssize_t, 8)
"""More new entries than this part of the heap are taken in at once, which costs the whole heap; fewer one by one."""
AHEAD = cython.declare(cython.Py_ssize_t, 6)
"""How many records ahead one is prefetched: those of one span lie anywhere in the log."""
LINE = cython.declare(cython.Py_ssize_t, 64)

Due = cython.struct(due=cython.longlong, offset=cython.longlong, position=cython.longlong)
Mapped = cython.struct(base=cython.longlong, size=cython.longlong, at=cython.p_char)


@cython.final
@cython.cclass
class DueSpan:
    """The waiting messages of one span of due times: their queues, and how many are due in each second."""

    def __init__(self, queues: tuple):
        self.queues = queues
        memset(self._counts, 0, cython.sizeof(self._counts))

    def count(self, second: cython.int):
        """Return how many messages are due in this second of the span."""
        assert 0 <= second < SECONDS, second
        return self._counts[second]

    def add(self, second: cython.int, count: cython.int):
        """Count messages that are due in this second; negative for those that no longer are."""
        assert 0 <= second < SECONDS, second
        self._counts[second] += count

    def fullest(self):
        """Return (second, messages due in it) of the first second with most."""
        row: cython.int
        best: cython.int = 0
        for row in range(SECONDS):
            if self._counts[row] > self._counts[best]:
                best = row
        return best, self._counts[best]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _before(one: cython.pointer(Due), due: cython.longlong, offset: cython.longlong) -> cython.bint:
    return one.due < due or (one.due == due and one.offset < offset)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _compare(
    left: cython.pointer(cython.const[cython.void]), right: cython.pointer(cython.const[cython.void])
) -> cython.int:
    one: cython.pointer(Due) = cython.cast(cython.pointer(Due), left)
    two: cython.pointer(Due) = cython.cast(cython.pointer(Due), right)
    return -1 if _before(one, two.due, two.offset) else 1


@cython.final
@cython.cclass
class DueHeap:
    """Entries (due, offset, log position), the first in this order at hand: a binary heap without objects."""

    _at: cython.pointer(Due)
    _count: cython.Py_ssize_t
    _room: cython.Py_ssize_t

    def __cinit__(self):
        self._at, self._count, self._room = cython.NULL, 0, 0

    def __dealloc__(self):
        free(self._at)

    def __len__(self):
        return self._count

    def first(self):
        """Return (due, offset) of the first entry, None when there is none."""
        return (self._at[0].due, self._at[0].offset) if self._count else None

    def add(self, first_offset: cython.longlong, dues, positions, floor: cython.longlong, mark: tuple, limit: tuple):
        """Add entries of offsets from `first_offset` on, those at or above `floor` between the keys, both exclusive."""
        due_column: Column = packed(dues, I64)
        position_column: Column = packed(positions, I64)
        due_of: cython.p_longlong = cython.cast(cython.p_longlong, due_column._at)
        position_of: cython.p_longlong = cython.cast(cython.p_longlong, position_column._at)
        row: cython.Py_ssize_t
        before: cython.Py_ssize_t = self._count
        mark_due: cython.longlong = mark[0]
        mark_offset: cython.longlong = mark[1]
        limit_due: cython.longlong = limit[0]
        limit_offset: cython.longlong = limit[1]
        one: Due
        assert due_column._length == position_column._length, "columns of one length"
        self._need(due_column._length)
        for row in range(due_column._length):
            one.due, one.offset, one.position = due_of[row], first_offset + row, position_of[row]
            if one.offset < floor or _before(cython.address(one), mark_due, mark_offset + 1):
                continue
            if _before(cython.address(one), limit_due, limit_offset):
                self._at[self._count] = one
                self._count += 1
        self._settle(before)

    def put_back(self, entries):
        """Add entries that `take` returned."""
        dues: Column = packed(entries[0], I64)
        offsets: Column = packed(entries[1], I64)
        positions: Column = packed(entries[2], I64)
        row: cython.Py_ssize_t
        before: cython.Py_ssize_t = self._count
        assert dues._length == offsets._length == positions._length, "columns of one length"
        self._need(dues._length)
        for row in range(dues._length):
            self._at[self._count].due = cython.cast(cython.p_longlong, dues._at)[row]
            self._at[self._count].offset = cython.cast(cython.p_longlong, offsets._at)[row]
            self._at[self._count].position = cython.cast(cython.p_longlong, positions._at)[row]
            self._count += 1
        self._settle(before)

    def take(self, count: cython.Py_ssize_t, floor: cython.longlong, mark: tuple, limit: tuple):
        """Remove up to `count` entries below the key `limit`; see `contracts.DueHeap.take`."""
        mark_due: cython.longlong = mark[0]
        mark_offset: cython.longlong = mark[1]
        limit_due: cython.longlong = limit[0]
        limit_offset: cython.longlong = limit[1]
        row: cython.Py_ssize_t = 0
        most: cython.Py_ssize_t = min(count, self._count)
        dues: Column = made(max(0, most), I64)
        offsets: Column = made(max(0, most), I64)
        positions: Column = made(max(0, most), I64)
        while row < most and self._count and _before(self._at, limit_due, limit_offset):
            if self._at.offset >= floor and not _before(self._at, mark_due, mark_offset + 1):
                cython.cast(cython.p_longlong, dues._at)[row] = self._at.due
                cython.cast(cython.p_longlong, offsets._at)[row] = self._at.offset
                cython.cast(cython.p_longlong, positions._at)[row] = self._at.position
                row += 1
            self._count -= 1
            if self._count:
                self._at[0] = self._at[self._count]
                self._sink(0)
        return dues[:row], offsets[:row], positions[:row]

    def keep(self, count: cython.Py_ssize_t):
        """Keep the first `count` entries, of more; return the key of the first that was dropped."""
        assert 0 <= count < self._count, (count, self._count)
        qsort(self._at, self._count, cython.sizeof(Due), _compare)
        self._count = count
        return self._at[count].due, self._at[count].offset

    def clear(self):
        """Drop all entries."""
        free(self._at)
        self._at, self._count, self._room = cython.NULL, 0, 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _need(self, more: cython.Py_ssize_t) -> cython.int:
        """Make room for so many more entries."""
        if self._count + more > self._room:
            room: cython.Py_ssize_t = self._count + more + self._count // 2 + 16
            moved: cython.pointer(Due) = cython.cast(cython.pointer(Due), realloc(self._at, room * cython.sizeof(Due)))
            if moved == cython.NULL:
                raise MemoryError
            self._at, self._room = moved, room
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def _settle(self, before: cython.Py_ssize_t) -> cython.void:
        """Make a heap of one that has new entries behind the first `before` ones."""
        row: cython.Py_ssize_t
        if (self._count - before) * SIFTED_SHARE > before:
            for row in range(self._count // 2 - 1, -1, -1):
                self._sink(row)
        else:
            for row in range(before, self._count):
                self._rise(row)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _rise(self, row: cython.Py_ssize_t) -> cython.void:
        one: Due = self._at[row]
        above: cython.Py_ssize_t = (row - 1) // 2
        while row and _before(cython.address(one), self._at[above].due, self._at[above].offset):
            self._at[row] = self._at[above]
            row = above
            above = (row - 1) // 2
        self._at[row] = one

    @cython.cfunc
    @cython.exceptval(check=False)
    def _sink(self, row: cython.Py_ssize_t) -> cython.void:
        one: Due = self._at[row]
        below: cython.Py_ssize_t = 2 * row + 1
        while below < self._count:
            if below + 1 < self._count and _before(self._at + below + 1, self._at[below].due, self._at[below].offset):
                below += 1
            if not _before(self._at + below, one.due, one.offset):
                break
            self._at[row] = self._at[below]
            row, below = below, 2 * below + 1
        self._at[row] = one


@cython.final
@cython.cclass
class Pages:
    """Files of the log as they are mapped, and the record at a position in one of them."""

    _files: cython.pointer(Mapped)
    _buffers: cython.pointer(Py_buffer)
    _count: cython.Py_ssize_t

    def __cinit__(self, files: list):
        self._count = 0
        self._files = cython.cast(cython.pointer(Mapped), malloc(cython.sizeof(Mapped) * (len(files) + 1)))
        self._buffers = cython.cast(cython.pointer(Py_buffer), malloc(cython.sizeof(Py_buffer) * (len(files) + 1)))
        if self._files == cython.NULL or self._buffers == cython.NULL:
            raise MemoryError
        for base, view in files:
            PyObject_GetBuffer(view, self._buffers + self._count, PyBUF_SIMPLE)
            self._files[self._count].base, self._files[self._count].size = base, self._buffers[self._count].len
            self._files[self._count].at = cython.cast(cython.p_char, self._buffers[self._count].buf)
            self._count += 1

    def __dealloc__(self):
        row: cython.Py_ssize_t
        for row in range(self._count):
            PyBuffer_Release(self._buffers + row)
        free(self._files)
        free(self._buffers)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _find(self, position: cython.longlong, left: cython.pointer(cython.longlong)) -> cython.p_char:
        """Return where a position is, with a header's room behind it, and how much is left there; NULL if nowhere."""
        row: cython.Py_ssize_t
        for row in range(self._count):
            left[0] = self._files[row].size - (position - self._files[row].base)
            if position >= self._files[row].base and left[0] >= HEADER:
                return self._files[row].at + (position - self._files[row].base)
        return cython.NULL

    @cython.cfunc
    @cython.exceptval(check=False)
    def _staged(self, position: cython.longlong) -> cython.p_char:
        """Return the staged record at a position, NULL when no sound one is there."""
        left: cython.longlong = 0
        at: cython.p_char = self._find(position, cython.address(left))
        head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), at)
        if at == cython.NULL or not record_fits(at, left) or head.magic != MESSAGE_TYPE or head.count != 1:
            return cython.NULL
        if not head.flags & STAGED or head.flags & FORMAT_MASK:
            return cython.NULL
        if head.position != cython.cast(cython.ulonglong, position) or record_checksum(at, head.total) != head.crc:
            return cython.NULL
        return at

    @cython.cfunc
    @cython.exceptval(check=False)
    def _warm(self, position: cython.longlong, size: cython.Py_ssize_t) -> cython.void:
        """Ask the processor for a record that is read soon."""
        left: cython.longlong = 0
        row: cython.Py_ssize_t = 0
        at: cython.p_char = self._find(position, cython.address(left))
        if at != cython.NULL:
            while row < size and row < left:
                prefetch(at + row)
                row += LINE


@cython.boundscheck(False)
@cython.wraparound(False)
def staged_images(positions, files: list, bytes_max: cython.longlong):
    """Return (images of the staged records at these positions, how many); see `contracts.Core.staged_images`."""
    pages: Pages = Pages(files)
    places: Column = packed(positions, I64)
    at: cython.p_longlong = cython.cast(cython.p_longlong, places._at)
    total: cython.Py_ssize_t = places._length
    found: bytes = PyBytes_FromStringAndSize(cython.NULL, total * cython.sizeof(cython.p_char))
    sources: cython.pointer(cython.p_char) = cython.cast(cython.pointer(cython.p_char), PyBytes_AS_STRING(found))
    head: cython.pointer(record_header)
    count: cython.Py_ssize_t = 0
    size: cython.longlong = 0
    usual: cython.Py_ssize_t = 4 * LINE
    while count < total:
        if count + AHEAD < total:
            pages._warm(at[count + AHEAD], usual)
        sources[count] = pages._staged(at[count])
        head = cython.cast(cython.pointer(record_header), sources[count])
        if sources[count] == cython.NULL or (count and size + head.total > bytes_max):
            break
        size += head.total - PAIR * head.n_dispatch
        count += 1
    shown: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
    to: cython.p_char = PyBytes_AS_STRING(shown)
    row: cython.Py_ssize_t
    for row in range(count):
        to += show(sources[row], to)
    return shown, count


@cython.cfunc
@cython.exceptval(check=False)
def show(source: cython.p_char, to: cython.p_char) -> cython.longlong:
    """Write the image of the staged record at `source`; return its size."""
    head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), to)
    memcpy(to, source, HEADER)
    dropped: cython.longlong = PAIR * head.n_dispatch
    memcpy(to + HEADER, source + HEADER + dropped, head.total - HEADER - dropped)
    head.total, head.body_off, head.n_dispatch = head.total - dropped, head.body_off - dropped, 0
    head.flags = head.flags & 0xFFFFFF00 | (0 if head.flags & FORMAT_MASK else head.producer_seq >> 24 & 0xFF)
    head.epoch, head.crc = head.producer_seq & 0xFFFF, 0
    head.position, head.store_ms, head.tag_hash, head.producer_seq = 0, 0, 0, 0
    return head.total
