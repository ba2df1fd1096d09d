"""The compiled twin of the runs of the index: sorting, look-up over all of them, merging. Pure-Python-mode Cython.

C pointers into mapped files, whose directories were checked when they were opened, make it useless uncompiled.
Invariants: number for number what `reference.runs` does; every array is checked before it is read through a pointer,
and no entry is read that lies outside a run's columns. Thread rule: `RunTable` on the loop thread, with the
interpreter's lock; sorting and `merge` on any thread, without it; the entries to be sorted must not change meanwhile.
"""

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.remoting.native.compiled.ring import Slot
from cython.cimports.remoting.native.compiled.vectors import I64, U32, U64, Column, made, packed

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from remoting.native.contracts import SLOT_BYTES, RunData

assert cython.sizeof(Slot) == SLOT_BYTES, SLOT_BYTES


def sort_entries(queues, slots, first: cython.longlong, end: cython.longlong):
    """Return entries [first, end) of a ring as a run: a radix sort of queue ids, then one pass over the entries."""
    length: cython.Py_ssize_t = end - first
    capacity: cython.longlong = len(queues)
    count: cython.Py_ssize_t
    dense: cython.bint
    slot_bytes: cython.const[cython.uchar][::1] = slots
    assert queues.kind == "I", queues.kind
    assert slot_bytes.shape[0] == SLOT_BYTES * capacity, (slot_bytes.shape[0], capacity)
    assert 0 <= first <= end <= first + capacity, (first, end, capacity)
    assert capacity <= 0xFFFFFFFF
    one: Column = made(length + 1, U64)
    other: Column = made(length + 1, U64)
    qids: cython.p_uint = cython.cast(cython.p_uint, _address(queues))
    ring: cython.pointer(Slot) = cython.NULL
    if capacity:
        ring = cython.cast(cython.pointer(Slot), cython.cast(cython.size_t, cython.address(slot_bytes[0])))
    source: cython.p_ulonglong = cython.cast(cython.p_ulonglong, one._at)
    target: cython.p_ulonglong = cython.cast(cython.p_ulonglong, other._at)
    with cython.nogil:
        source = _sort(qids, first, length, capacity, source, target)
        count = _queues_of(source, length)
    run = RunData(
        made(count, U32), made(count, I64), made(count, I64), made(count + 1, U32), made(length, I64),
        made(length, U32), made(length, U32), None,
    )  # fmt: skip
    to_queue: cython.p_uint = cython.cast(cython.p_uint, _address(run.queues))
    to_first: cython.p_longlong = cython.cast(cython.p_longlong, _address(run.first_offsets))
    to_next: cython.p_longlong = cython.cast(cython.p_longlong, _address(run.next_offsets))
    to_start: cython.p_uint = cython.cast(cython.p_uint, _address(run.starts))
    to_position: cython.p_longlong = cython.cast(cython.p_longlong, _address(run.positions))
    to_size: cython.p_uint = cython.cast(cython.p_uint, _address(run.sizes))
    to_tag: cython.p_uint = cython.cast(cython.p_uint, _address(run.tags))
    with cython.nogil:
        _gather(source, length, ring, to_position, to_size, to_tag)
        dense = _directory(source, length, ring, to_queue, to_first, to_next, to_start)
    if not dense:
        run.offsets = made(length, I64)
        to_offset: cython.p_longlong = cython.cast(cython.p_longlong, _address(run.offsets))
        with cython.nogil:
            _gather_offsets(source, length, ring, to_offset)
    return run


def order_by_queue(queues):
    """Return the stable order that sorts queue ids, without the interpreter's lock."""
    keys: Column = packed(queues, U32)
    length: cython.Py_ssize_t = keys._length
    assert length <= 0xFFFFFFFF
    one: Column = made(length + 1, U64)
    other: Column = made(length + 1, U64)
    qids: cython.p_uint = cython.cast(cython.p_uint, keys._at)
    source: cython.p_ulonglong = cython.cast(cython.p_ulonglong, one._at)
    target: cython.p_ulonglong = cython.cast(cython.p_ulonglong, other._at)
    order: Column = made(length, I64)
    to: cython.p_longlong = cython.cast(cython.p_longlong, order._at)
    row: cython.Py_ssize_t
    with cython.nogil:
        source = _sort(qids, 0, length, length, source, target)
        for row in range(length):
            to[row] = cython.cast(cython.uint, source[row])
    return order


@cython.cfunc
def _address(numbers) -> cython.size_t:
    """Return the address of a column without gaps, which the caller keeps."""
    known: Column = numbers
    assert known._step == (8 if known._kind == I64 else 4), "a column of this width without gaps"
    return cython.cast(cython.size_t, known._at)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sort(
    qids: cython.p_uint,
    first: cython.longlong,
    length: cython.Py_ssize_t,
    capacity: cython.longlong,
    source: cython.p_ulonglong,
    target: cython.p_ulonglong,
) -> cython.p_ulonglong:
    """Fill one of the two with queue id << 32 | slot, sorted stably by queue id in 11-bit digits; return it."""
    places: cython.uint[6144]
    row: cython.Py_ssize_t
    slot: cython.Py_ssize_t = first % capacity if capacity else 0
    shift: cython.int
    digit: cython.int
    queue: cython.uint
    memset(places, 0, 6144 * 4)
    for row in range(length):
        queue = qids[slot]
        source[row] = cython.cast(cython.ulonglong, queue) << 32 | cython.cast(cython.ulonglong, slot)
        places[queue & 2047] += 1
        places[2048 + (queue >> 11 & 2047)] += 1
        places[4096 + (queue >> 22)] += 1
        slot += 1
        if slot == capacity:
            slot = 0
    for digit in range(3 if length else 0):
        shift = 11 * digit
        if places[2048 * digit + (queue >> shift & 2047)] != length:  # else all have this digit
            _pass(places + 2048 * digit, source, target, length, 32 + shift)
            source, target = target, source
    return source


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _pass(
    places: cython.p_uint,
    source: cython.p_ulonglong,
    target: cython.p_ulonglong,
    length: cython.Py_ssize_t,
    shift: cython.int,
) -> cython.void:
    """Sort `source` by one digit, whose counts are in `places`."""
    row: cython.Py_ssize_t
    digit: cython.uint
    size: cython.uint
    at: cython.uint = 0
    for digit in range(2048):
        size = places[digit]
        places[digit] = at
        at += size
    for row in range(length):
        digit = source[row] >> shift & 2047
        target[places[digit]] = source[row]
        places[digit] += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _queues_of(packed: cython.p_ulonglong, length: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Count the distinct queue ids."""
    row: cython.Py_ssize_t
    count: cython.Py_ssize_t = 1 if length else 0
    for row in range(1, length):
        count += packed[row] >> 32 != packed[row - 1] >> 32
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _gather(
    packed: cython.p_ulonglong,
    length: cython.Py_ssize_t,
    ring: cython.pointer(Slot),
    positions: cython.p_longlong,
    sizes: cython.p_uint,
    tags: cython.p_uint,
) -> cython.void:
    """Write the columns."""
    row: cython.Py_ssize_t
    slot: cython.pointer(Slot)
    for row in range(length):
        slot = ring + cython.cast(cython.uint, packed[row])
        positions[row], sizes[row], tags[row] = slot.position, slot.size, slot.tag


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _gather_offsets(
    packed: cython.p_ulonglong, length: cython.Py_ssize_t, ring: cython.pointer(Slot), offsets: cython.p_longlong
) -> cython.void:
    """Write the column of queue offsets."""
    row: cython.Py_ssize_t
    for row in range(length):
        offsets[row] = ring[cython.cast(cython.uint, packed[row])].offset


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _directory(
    packed: cython.p_ulonglong,
    length: cython.Py_ssize_t,
    ring: cython.pointer(Slot),
    queues: cython.p_uint,
    firsts: cython.p_longlong,
    nexts: cython.p_longlong,
    starts: cython.p_uint,
) -> cython.bint:
    """Write the directory; return whether the offsets of every queue are consecutive."""
    row: cython.Py_ssize_t
    start: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    dense: cython.bint = True
    slot: cython.pointer(Slot)
    for row in range(length):
        if row + 1 < length and packed[row] >> 32 == packed[row + 1] >> 32:
            continue
        slot = ring + cython.cast(cython.uint, packed[row])
        queues[at], starts[at] = packed[row] >> 32, start
        firsts[at], nexts[at] = ring[cython.cast(cython.uint, packed[start])].offset, slot.offset + slot.count
        dense = dense and nexts[at] - firsts[at] == row + 1 - start
        start = row + 1
        at += 1
    starts[at] = length
    return dense


Columns = cython.struct(
    queue_count=cython.longlong,
    entry_count=cython.longlong,
    queues=cython.p_uint,
    starts=cython.p_uint,
    first_offsets=cython.p_longlong,
    next_offsets=cython.p_longlong,
    offsets=cython.p_longlong,
    positions=cython.p_longlong,
    sizes=cython.p_uint,
    tags=cython.p_uint,
)
Cursor = cython.struct(row=cython.longlong, at=cython.longlong, queue=cython.longlong)
"""Place of a merge in a run: row of its directory, entry, queue id of the row; NO_QUEUE after the last row."""
NO_QUEUE = cython.declare(cython.longlong, 1 << 32)
SMALL = cython.declare(cython.longlong, 16)
"""Pieces with fewer entries are copied in a loop."""
Span = cython.struct(run=cython.Py_ssize_t, start=cython.longlong, count=cython.longlong, offset=cython.longlong)


@cython.final
@cython.cclass
class RunTable:
    """The columns of all runs, oldest first."""

    _columns: list
    _memory: bytes
    _spans_memory: bytes
    _runs: cython.pointer(Columns)
    _spans: cython.pointer(Span)
    _count: cython.Py_ssize_t

    def __init__(self, runs):
        self._count = len(runs)
        self._columns = []
        self._memory = PyBytes_FromStringAndSize(cython.NULL, cython.sizeof(Columns) * self._count)
        self._spans_memory = PyBytes_FromStringAndSize(cython.NULL, cython.sizeof(Span) * self._count)
        self._runs = cython.cast(cython.pointer(Columns), PyBytes_AS_STRING(self._memory))
        self._spans = cython.cast(cython.pointer(Span), PyBytes_AS_STRING(self._spans_memory))
        for at, run in enumerate(runs):
            self._take(self._runs + cython.cast(cython.Py_ssize_t, at), run)

    @cython.cfunc
    def _take(self, to: cython.pointer(Columns), run):
        to.queue_count, to.entry_count = len(run.queues), len(run.positions)
        to.queues = cython.cast(cython.p_uint, self._address(run.queues, U32, to.queue_count))
        to.starts = cython.cast(cython.p_uint, self._address(run.starts, U32, to.queue_count + 1))
        to.first_offsets = cython.cast(cython.p_longlong, self._address(run.first_offsets, I64, to.queue_count))
        to.next_offsets = cython.cast(cython.p_longlong, self._address(run.next_offsets, I64, to.queue_count))
        to.positions = cython.cast(cython.p_longlong, self._address(run.positions, I64, to.entry_count))
        to.sizes = cython.cast(cython.p_uint, self._address(run.sizes, U32, to.entry_count))
        to.tags = cython.cast(cython.p_uint, self._address(run.tags, U32, to.entry_count))
        to.offsets = cython.NULL
        if run.offsets is not None:
            to.offsets = cython.cast(cython.p_longlong, self._address(run.offsets, I64, to.entry_count))

    @cython.cfunc
    def _address(self, column: Column, kind: cython.int, length: cython.longlong) -> cython.size_t:
        """Return the column's address and keep it as long as the table."""
        assert column._kind == kind, (column.kind, kind)
        assert column._length == length, (column._length, length)
        self._columns.append(column)
        return _address(column)

    @cython.boundscheck(False)
    @cython.wraparound(False)
    def find(self, queue: cython.uint, offset: cython.longlong, limit: cython.longlong):
        """Return the entries of `queue` that hold messages [offset, limit), as far as the runs go."""
        end: cython.longlong = offset
        used: cython.Py_ssize_t = self._locate(queue, cython.address(end), limit)
        total: cython.longlong = 0
        at: cython.Py_ssize_t
        row: cython.Py_ssize_t
        span: cython.pointer(Span)
        run: cython.pointer(Columns)
        for at in range(used):
            total += self._spans[at].count
        offsets: Column = made(total, I64)
        positions: Column = made(total, I64)
        sizes: Column = made(total, U32)
        tags: Column = made(total, U32)
        if total:
            to_offset: cython.p_longlong = cython.cast(cython.p_longlong, offsets._at)
            to_position: cython.p_longlong = cython.cast(cython.p_longlong, positions._at)
            to_size: cython.p_uint = cython.cast(cython.p_uint, sizes._at)
            to_tag: cython.p_uint = cython.cast(cython.p_uint, tags._at)
            total = 0
            for at in range(used):
                span = self._spans + at
                run = self._runs + span.run
                memcpy(cython.address(to_position[total]), run.positions + span.start, 8 * span.count)
                memcpy(cython.address(to_size[total]), run.sizes + span.start, 4 * span.count)
                memcpy(cython.address(to_tag[total]), run.tags + span.start, 4 * span.count)
                if run.offsets != cython.NULL:
                    memcpy(cython.address(to_offset[total]), run.offsets + span.start, 8 * span.count)
                else:
                    for row in range(span.count):
                        to_offset[total + row] = span.offset + row
                total += span.count
        return offsets, positions, sizes, tags, end

    @cython.cfunc
    @cython.exceptval(-1)
    def _locate(self, queue: cython.uint, end: cython.p_longlong, limit: cython.longlong) -> cython.Py_ssize_t:
        """Fill the spans; advance `end` from the offset wanted to the offset after the last entry found."""
        used: cython.Py_ssize_t = 0
        at: cython.Py_ssize_t
        row: cython.Py_ssize_t
        run: cython.pointer(Columns)
        span: cython.pointer(Span)
        start: cython.longlong
        stop: cython.longlong
        last: cython.longlong
        for at in range(self._count):
            if end[0] >= limit:
                break
            run = self._runs + at
            row = _row(run, queue)
            if row < 0 or not run.first_offsets[row] <= end[0] < run.next_offsets[row]:
                continue
            start, stop = run.starts[row], run.starts[row + 1]
            if not start < stop <= run.entry_count:
                raise AssertionError(f"queue {queue} of run {at} lies outside its {run.entry_count} entries")
            span = self._spans + used
            used += 1
            span.run, span.offset = at, end[0]
            if run.offsets == cython.NULL:
                span.start = start + end[0] - run.first_offsets[row]
                last = min(stop, start + limit - run.first_offsets[row])
                span.count = last - span.start
                end[0] += span.count
            else:
                span.start = _first_at_least(run.offsets, end[0] + 1, start, stop) - 1
                last = _first_at_least(run.offsets, limit, start, stop)
                span.count = last - span.start
                end[0] = run.next_offsets[row] if last == stop else run.offsets[last]
            if not (start <= span.start < last):
                raise AssertionError(f"the directory of run {at} contradicts itself at queue {queue}")
        return used

    def first_at(self, queue: cython.uint, begin: cython.longlong) -> cython.longlong:
        """Return the offset of the queue's first entry at or above log position `begin`, -1 when there is none."""
        at: cython.Py_ssize_t
        row: cython.Py_ssize_t
        run: cython.pointer(Columns)
        start: cython.longlong
        stop: cython.longlong
        found: cython.longlong
        for at in range(self._count):
            run = self._runs + at
            row = _row(run, queue)
            if row < 0:
                continue
            start, stop = run.starts[row], run.starts[row + 1]
            if not start < stop <= run.entry_count:
                raise AssertionError(f"queue {queue} of run {at} lies outside its {run.entry_count} entries")
            found = _first_at_least(run.positions, begin, start, stop)
            if found < stop:
                return run.first_offsets[row] + found - start if run.offsets == cython.NULL else run.offsets[found]
        return -1

    def merge(self):
        """Return all of them as one run: a merge of the directories, then each column piece by piece."""
        rows: cython.longlong = 0
        total: cython.longlong = 0
        at: cython.Py_ssize_t
        for at in range(self._count):
            if not _adds_up(self._runs + at):
                raise AssertionError(f"the directory of run {at} does not add up")
            rows += self._runs[at].queue_count
            total += self._runs[at].entry_count
        assert total <= 0xFFFFFFFF, total
        merged = RunData(
            made(rows, U32), made(rows, I64), made(rows, I64), made(rows + 1, U32), made(total, I64),
            made(total, U32), made(total, U32), None,
        )  # fmt: skip
        cursors: Column = made(3 * self._count, I64)
        pieces: Column = made(rows, U32)
        cursor: cython.pointer(Cursor) = cython.cast(cython.pointer(Cursor), cursors._at)
        piece: cython.p_uint = cython.cast(cython.p_uint, pieces._at)
        to: Columns
        to.queue_count, to.entry_count, to.offsets = 0, total, cython.NULL
        to.queues = cython.cast(cython.p_uint, _address(merged.queues))
        to.starts = cython.cast(cython.p_uint, _address(merged.starts))
        to.first_offsets = cython.cast(cython.p_longlong, _address(merged.first_offsets))
        to.next_offsets = cython.cast(cython.p_longlong, _address(merged.next_offsets))
        to.positions = cython.cast(cython.p_longlong, _address(merged.positions))
        to.sizes = cython.cast(cython.p_uint, _address(merged.sizes))
        to.tags = cython.cast(cython.p_uint, _address(merged.tags))
        with cython.nogil:
            dense = _merge_directories(self._runs, self._count, cursor, piece, cython.address(to))
        if not dense:
            merged.offsets = made(total, I64)
            to.offsets = cython.cast(cython.p_longlong, _address(merged.offsets))
        with cython.nogil:
            _merge_columns(self._runs, self._count, cursor, piece, rows, cython.address(to))
        count = to.queue_count
        merged.queues, merged.starts = merged.queues[:count], merged.starts[: count + 1]
        merged.first_offsets, merged.next_offsets = merged.first_offsets[:count], merged.next_offsets[:count]
        return merged


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _adds_up(run: cython.pointer(Columns)) -> cython.bint:
    """Whether the directory covers every entry exactly once."""
    row: cython.Py_ssize_t
    good: cython.bint = run.starts[0] == 0 and run.starts[run.queue_count] == run.entry_count
    for row in range(run.queue_count):
        good &= run.starts[row] < run.starts[row + 1]
    return good


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _rewind(runs: cython.pointer(Columns), count: cython.Py_ssize_t, cursors: cython.pointer(Cursor)) -> cython.void:
    """Set the cursors to the beginnings of their runs."""
    at: cython.Py_ssize_t
    for at in range(count):
        cursors[at].row = cursors[at].at = 0
        cursors[at].queue = runs[at].queues[0] if runs[at].queue_count else NO_QUEUE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _merge_directories(
    runs: cython.pointer(Columns),
    count: cython.Py_ssize_t,
    cursors: cython.pointer(Cursor),
    pieces: cython.p_uint,
    to: cython.pointer(Columns),
) -> cython.bint:
    """Write the directory and the run of each piece; return whether the offsets of every queue are consecutive."""
    at: cython.Py_ssize_t
    row: cython.longlong
    queue: cython.longlong
    out: cython.longlong = 0
    start: cython.longlong = 0
    size: cython.longlong
    used: cython.Py_ssize_t = 0
    dense: cython.bint = True
    cursor: cython.pointer(Cursor)
    _rewind(runs, count, cursors)
    while True:
        queue = NO_QUEUE
        for at in range(count):
            queue = min(queue, cursors[at].queue)
        if queue == NO_QUEUE:
            break
        size = 0
        for at in range(count):
            cursor = cursors + at
            if cursor.queue != queue:
                continue
            row = cursor.row
            if size == 0:
                to.first_offsets[out] = runs[at].first_offsets[row]
            to.next_offsets[out] = runs[at].next_offsets[row]
            size += runs[at].starts[row + 1] - runs[at].starts[row]
            pieces[used] = at
            used += 1
            cursor.row = row + 1
            cursor.queue = runs[at].queues[row + 1] if row + 1 < runs[at].queue_count else NO_QUEUE
        to.queues[out], to.starts[out] = queue, start
        dense = dense and to.next_offsets[out] - to.first_offsets[out] == size
        start += size
        out += 1
    to.starts[out], to.queue_count = start, out
    return dense


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _merge_columns(
    runs: cython.pointer(Columns),
    count: cython.Py_ssize_t,
    cursors: cython.pointer(Cursor),
    pieces: cython.p_uint,
    piece_count: cython.longlong,
    to: cython.pointer(Columns),
) -> cython.void:
    """Write the columns, piece by piece, each from the run noted for it."""
    piece: cython.longlong
    at: cython.longlong = 0
    row: cython.longlong
    start: cython.longlong
    size: cython.longlong
    run: cython.pointer(Columns)
    cursor: cython.pointer(Cursor)
    _rewind(runs, count, cursors)
    for piece in range(piece_count):
        run, cursor = runs + pieces[piece], cursors + pieces[piece]
        start = cursor.at
        size = run.starts[cursor.row + 1] - start
        if size < SMALL:
            for row in range(size):
                to.positions[at + row] = run.positions[start + row]
                to.sizes[at + row], to.tags[at + row] = run.sizes[start + row], run.tags[start + row]
        else:
            memcpy(to.positions + at, run.positions + start, 8 * size)
            memcpy(to.sizes + at, run.sizes + start, 4 * size)
            memcpy(to.tags + at, run.tags + start, 4 * size)
        if to.offsets != cython.NULL and run.offsets != cython.NULL:
            memcpy(to.offsets + at, run.offsets + start, 8 * size)
        elif to.offsets != cython.NULL:
            for row in range(size):
                to.offsets[at + row] = run.first_offsets[cursor.row] + row
        at += size
        cursor.row, cursor.at = cursor.row + 1, start + size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _row(run: cython.pointer(Columns), queue: cython.uint) -> cython.Py_ssize_t:
    """Return the queue's row in the directory, -1 when the run has no entries of it."""
    low: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = run.queue_count
    half: cython.Py_ssize_t
    while size > 1:
        half = size >> 1
        low = low + half if run.queues[low + half - 1] < queue else low
        size -= half
    return low if size and run.queues[low] == queue else -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _first_at_least(
    column: cython.p_longlong, value: cython.longlong, low: cython.longlong, high: cython.longlong
) -> cython.longlong:
    """Return the first place in [low, high) of a rising column that is not below `value`, `high` when there is none."""
    middle: cython.longlong
    while low < high:
        middle = (low + high) >> 1
        if column[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low
