"""The compiled twin of the read side: scans, checks and copies records, collects keys. Pure-Python-mode Cython.

Invariant: accepts and refuses exactly what `reference.scan` does; reasons come from `check_record`. Thread rule: pure
functions over buffers the caller keeps alive; `scan` and `gather` release the interpreter's lock. `KeyChunk.take` runs
on the loop thread with the interpreter's lock; entries below `count` are never changed again, so that the index thread
may read them.
"""

import cython
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.string import memchr, memcmp, memcpy
from cython.cimports.remoting.native.compiled.machine import (
    crc32c_extend,
    crc32c_ready,
    record_checksum,
    record_dispatch,
    record_fits,
    record_header,
)
from cython.cimports.remoting.native.compiled.ring import Entry, EntryBlock
from cython.cimports.remoting.native.compiled.vectors import I64, U32, Column, made, packed

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from remoting.native.contracts import RETAINED_MASK, RETAINED_VALUE, Progress
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records import record
from remoting.protocol.records.properties import KEYS_PER_RECORD_MAX, SEPARATOR, UNIQUE_KEY

crc32c_ready()
HEADER = cython.declare(cython.longlong, 80)
BATCH = cython.declare(cython.uint, record.BATCH)
CONTROL = cython.declare(cython.uint, record.CONTROL)
FILLER = cython.declare(cython.uint, record.FILLER)
MAGIC_LOW = cython.declare(cython.uint, record.MESSAGE)
MAGIC_HIGH = cython.declare(cython.uint, record.FILLER)
GROUP_OPEN = cython.declare(cython.uint, record.FLAG_GROUP_OPEN)
FORMAT_MASK = cython.declare(cython.uint, record.FLAG_FORMAT_MASK)
COUNT_MAX = cython.declare(cython.uint, record.BATCH_COUNT_MAX)
KEPT_MASK = cython.declare(cython.uint, RETAINED_MASK)
KEPT_VALUE = cython.declare(cython.uint, RETAINED_VALUE)

Walk = cython.struct(
    at=cython.longlong,
    groups_end=cython.longlong,
    store_ms=cython.longlong,
    records=cython.longlong,
    epoch=cython.uint,
    group_open=cython.bint,
)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_sound(at: cython.pointer(cython.char), available: cython.longlong, position: cython.longlong) -> cython.bint:
    """Whether `remoting.protocol.records.record.check_record` would accept the record."""
    head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), at)
    if not record_fits(at, available) or head.magic < MAGIC_LOW or head.magic > MAGIC_HIGH:
        return False
    if head.magic == BATCH:
        if not head.flags & FORMAT_MASK or not 1 <= head.count <= COUNT_MAX:
            return False
    elif head.flags & FORMAT_MASK or head.count != (head.magic != FILLER):
        return False
    if head.position != cython.cast(cython.ulonglong, position):
        return False
    return record_checksum(at, head.total) == head.crc


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _walk(
    start: cython.pointer(cython.char), size: cython.longlong, base: cython.longlong, walk: cython.pointer(Walk)
) -> cython.void:
    """Advance while records are sound and their epochs do not fall."""
    head: cython.pointer(record_header)
    while walk.at < size and _is_sound(start + walk.at, size - walk.at, base + walk.at):
        head = cython.cast(cython.pointer(record_header), start + walk.at)
        if head.epoch < walk.epoch:
            return
        walk.epoch, walk.store_ms = head.epoch, head.store_ms
        walk.at += head.total
        walk.records += 1
        if head.magic != FILLER:
            walk.group_open = head.flags & GROUP_OPEN != 0
        if not walk.group_open:
            walk.groups_end = base + walk.at


def scan(view, base: cython.longlong, size: cython.longlong, progress):
    """Walk one segment from `progress.position` on; see `contracts.Core.scan`."""
    buffer: Py_buffer
    walk: Walk
    walk.at, walk.groups_end, walk.store_ms = progress.position - base, progress.groups_end, progress.store_ms
    walk.records, walk.epoch, walk.group_open = progress.records, progress.epoch, progress.group_open
    PyObject_GetBuffer(view, cython.address(buffer), PyBUF_SIMPLE)
    try:
        assert 0 <= walk.at <= size <= buffer.len, (walk.at, size, buffer.len)
        with cython.nogil:
            _walk(cython.cast(cython.pointer(cython.char), buffer.buf), size, base, cython.address(walk))
    finally:
        PyBuffer_Release(cython.address(buffer))
    reason = ""
    if walk.at < size:
        try:
            record.check_record(view, walk.at, base + walk.at)
            epoch = record.HEADER.unpack_from(view, walk.at)[3]
            reason = f"its epoch {epoch} is lower than {walk.epoch} of the record before"
        except CorruptRecord as error:
            reason = error.reason
    return Progress(
        base + walk.at, walk.groups_end, walk.epoch, walk.store_ms, walk.records, bool(walk.group_open), reason
    )


def collect(
    view,
    base: cython.longlong,
    position: cython.longlong,
    end: cython.longlong,
    index_from: cython.longlong,
    state_from: cython.longlong,
    entries_max: cython.longlong,
):
    """Gather what a replay needs of the records in [position, end); see `contracts.Core.collect`."""
    buffer: Py_buffer
    packed: bytes = PyBytes_FromStringAndSize(cython.NULL, 32 * entries_max)
    entry: cython.pointer(Entry) = cython.cast(cython.pointer(Entry), PyBytes_AS_STRING(packed))
    head: cython.pointer(record_header)
    filled: cython.Py_ssize_t = 0
    records: cython.longlong = 0
    marks: list = []
    PyObject_GetBuffer(view, cython.address(buffer), PyBUF_SIMPLE)
    try:
        assert base <= position, (base, position)
        assert end - base <= buffer.len, (base, end)
        while position < end:
            head = cython.cast(
                cython.pointer(record_header), cython.cast(cython.pointer(cython.char), buffer.buf) + (position - base)
            )
            if head.magic != FILLER:
                if position >= index_from and head.n_dispatch:
                    if filled + head.n_dispatch > entries_max:
                        break
                    _take_entries(head, entry + filled)
                    filled += head.n_dispatch
                records += 1
                if position >= state_from and (head.magic == CONTROL or head.flags & KEPT_MASK == KEPT_VALUE):
                    marks.append(position)
            assert head.total >= HEADER, (position, head.total)
            position += head.total
    finally:
        PyBuffer_Release(cython.address(buffer))
    return position, records, EntryBlock(packed, 0, filled), marks


def record_end(
    view,
    base: cython.longlong,
    position: cython.longlong,
    wanted: cython.longlong,
    end: cython.longlong,
):
    """Return where the record ends that `wanted` lies in; see `contracts.Core.record_end`."""
    buffer: Py_buffer
    head: cython.pointer(record_header)
    total: cython.longlong
    PyObject_GetBuffer(view, cython.address(buffer), PyBUF_SIMPLE)
    try:
        assert base <= position, (base, position)
        assert end - base <= buffer.len, (base, end)
        while position < wanted:
            total = 0
            if end - position >= HEADER:
                head = cython.cast(
                    cython.pointer(record_header),
                    cython.cast(cython.pointer(cython.char), buffer.buf) + (position - base),
                )
                total = head.total
            if total < HEADER or total > end - position:
                return -1
            position += total
    finally:
        PyBuffer_Release(cython.address(buffer))
    return position


@cython.cfunc
@cython.exceptval(check=False)
def _take_entries(head: cython.pointer(record_header), entry: cython.pointer(Entry)) -> cython.void:
    """Turn the record's dispatch list into index entries."""
    row: cython.Py_ssize_t
    dispatch: cython.pointer(record_dispatch) = cython.cast(
        cython.pointer(record_dispatch), cython.cast(cython.pointer(cython.char), head) + HEADER
    )
    for row in range(head.n_dispatch):
        entry[row].queue, entry[row].offset, entry[row].position = (
            dispatch[row].queue,
            dispatch[row].offset,
            head.position,
        )
        entry[row].size, entry[row].tag, entry[row].count = head.total, head.tag_hash, head.count


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _longs(column: Column) -> cython.p_longlong:
    """Return where the numbers of an i64 column without gaps stand."""
    return cython.cast(cython.p_longlong, column._at)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _uints(column: Column) -> cython.p_uint:
    """Return where the numbers of a u32 column without gaps stand."""
    return cython.cast(cython.p_uint, column._at)


@cython.boundscheck(False)
@cython.wraparound(False)
def survey(view, base: cython.longlong, position: cython.longlong, end: cython.longlong):
    """Return the index entries of the sound records in [position, end), for a check; see `contracts.Core.survey`."""
    buffer: Py_buffer
    head: cython.pointer(record_header)
    dispatch: cython.pointer(record_dispatch)
    at: cython.longlong = position
    total: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t
    records: cython.longlong = 0
    marks: list = []
    PyObject_GetBuffer(view, cython.address(buffer), PyBUF_SIMPLE)
    try:
        assert base <= position, (base, position)
        assert end - base <= buffer.len, (base, end)
        start: cython.pointer(cython.char) = cython.cast(cython.pointer(cython.char), buffer.buf)
        while at < end:
            head = cython.cast(cython.pointer(record_header), start + (at - base))
            assert head.total >= HEADER, (at, head.total)
            if head.magic != FILLER:
                records += 1
                total += head.n_dispatch
                if head.magic == CONTROL or head.flags & KEPT_MASK == KEPT_VALUE:
                    marks.append(at)
            at += head.total
        columns = (
            made(total, U32), made(total, I64), made(total, I64), made(total, U32), made(total, U32), made(total, U32),
        )  # fmt: skip
        queues: cython.p_uint = _uints(columns[0])
        offsets: cython.p_longlong = _longs(columns[1])
        positions: cython.p_longlong = _longs(columns[2])
        sizes: cython.p_uint = _uints(columns[3])
        tags: cython.p_uint = _uints(columns[4])
        counts: cython.p_uint = _uints(columns[5])
        at = position
        with cython.nogil:
            while at < end:
                head = cython.cast(cython.pointer(record_header), start + (at - base))
                if head.magic != FILLER:
                    dispatch = cython.cast(cython.pointer(record_dispatch), start + (at - base) + HEADER)
                    for place in range(head.n_dispatch):
                        queues[row], offsets[row], positions[row] = dispatch[place].queue, dispatch[place].offset, at
                        sizes[row], tags[row] = head.total, head.tag_hash
                        counts[row] = head.count if head.magic == BATCH else 1
                        row += 1
                at += head.total
    finally:
        PyBuffer_Release(cython.address(buffer))
    return records, columns, marks


@cython.boundscheck(False)
@cython.wraparound(False)
def follow(queues, offsets, positions, counts, following, newest, damage: cython.longlong):
    """Return the entries whose offset is not their queue's next one; see `contracts.Core.follow`."""
    of_queues: Column = packed(queues, U32)
    of_offsets: Column = packed(offsets, I64)
    of_positions: Column = packed(positions, I64)
    of_counts: Column = packed(counts, U32)
    of_following: Column = following
    of_newest: Column = newest
    known: cython.Py_ssize_t = min(of_following._length, of_newest._length)
    assert of_following._kind == of_newest._kind == I64, "the numbers per queue are i64"
    assert of_following._step == of_newest._step == 8, "the numbers per queue have no gaps"
    if of_following._fixed or of_newest._fixed:
        raise AssertionError("the numbers per queue can be changed")
    assert of_queues._length == of_offsets._length == of_positions._length == of_counts._length, "columns of one length"
    ids: cython.p_uint = _uints(of_queues)
    firsts: cython.p_longlong = _longs(of_offsets)
    places: cython.p_longlong = _longs(of_positions)
    messages: cython.p_uint = _uints(of_counts)
    expected: cython.p_longlong = _longs(of_following)
    last: cython.p_longlong = _longs(of_newest)
    row: cython.Py_ssize_t
    queue: cython.Py_ssize_t
    wrong: list = []
    for row in range(of_queues._length):
        queue = ids[row]
        assert queue < known, queue
        lower: cython.bint = firsts[row] < expected[queue]
        if firsts[row] != expected[queue] and expected[queue] >= 0 and (lower or last[queue] >= damage):
            wrong.append((row, expected[queue]))
        expected[queue] = firsts[row] + messages[row]
        last[queue] = places[row]
    return wrong


@cython.boundscheck(False)
@cython.wraparound(False)
def hash_spans(data, starts, lengths):
    """Return the low 32 bits of the hash of each span, as `hash(bytes)` of this process gives it."""
    of_starts: Column = packed(starts, I64)
    of_lengths: Column = packed(lengths, I64)
    assert of_starts._length == of_lengths._length, "columns of one length"
    codes: Column = made(of_starts._length, U32)
    begins: cython.p_longlong = _longs(of_starts)
    sizes: cython.p_longlong = _longs(of_lengths)
    filled: cython.p_uint = _uints(codes)
    buffer: Py_buffer
    row: cython.Py_ssize_t
    PyObject_GetBuffer(data, cython.address(buffer), PyBUF_SIMPLE)
    try:
        for row in range(of_starts._length):
            assert 0 <= begins[row] <= buffer.len, row
            assert 0 <= sizes[row] <= buffer.len - begins[row], row
            at: cython.pointer(cython.char) = cython.cast(cython.pointer(cython.char), buffer.buf) + begins[row]
            filled[row] = cython.cast(cython.uint, hash(PyBytes_FromStringAndSize(at, sizes[row])) & 0xFFFFFFFF)
    finally:
        PyBuffer_Release(cython.address(buffer))
    return codes


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _hex_digit(byte: cython.int) -> cython.int:
    """The value of an upper-case hexadecimal digit, -1 of anything else."""
    if 48 <= byte <= 57:
        return byte - 48
    return byte - 55 if 65 <= byte <= 70 else -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_plain(byte: cython.int) -> cython.bint:
    """Whether `escape` leaves this byte as it is: a letter, a digit, `_` or `-`."""
    return 97 <= (byte | 32) <= 122 or 48 <= byte <= 57 or byte == 95 or byte == 45


@cython.cfunc
@cython.exceptval(check=False)
def _topic_key(at: cython.p_uchar, size: cython.Py_ssize_t, out: cython.p_uchar) -> cython.Py_ssize_t:
    """Write the key of a queue name, at most `size` bytes; returns its length, 0 when it has none."""
    place: cython.Py_ssize_t = 5
    used: cython.Py_ssize_t = 0
    byte: cython.int
    high: cython.int
    low: cython.int
    if size < 5 or memcmp(at, b"%LMQ%", 5) != 0:
        return 0
    while place < size:
        byte = at[place]
        place += 1
        if byte == 37:  # an escape
            if place + 2 > size:
                return 0
            high, low = _hex_digit(at[place]), _hex_digit(at[place + 1])
            byte = 16 * high + low
            if high < 0 or low < 0 or _is_plain(byte) or byte == 0 or byte == 35 or byte == 43:
                return 0
            if byte == 47:
                byte = 0
            place += 2
        elif not _is_plain(byte):
            return 0
        out[used] = cython.cast(cython.uchar, byte)
        used += 1
    return used


@cython.boundscheck(False)
@cython.wraparound(False)
def topic_keys(data, starts, lengths):
    """Return the keys of the exact light queues among these names; a start below 0 is no name."""
    of_starts: Column = packed(starts, I64)
    of_lengths: Column = packed(lengths, I64)
    assert of_starts._length == of_lengths._length, "columns of one length"
    begins: cython.p_longlong = _longs(of_starts)
    sizes: cython.p_longlong = _longs(of_lengths)
    room: bytearray = bytearray(max(lengths, default=0) + 1)
    out: cython.p_uchar = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(room))
    buffer: Py_buffer
    row: cython.Py_ssize_t
    used: cython.Py_ssize_t
    keys: list = []
    PyObject_GetBuffer(data, cython.address(buffer), PyBUF_SIMPLE)
    try:
        for row in range(of_starts._length):
            if begins[row] < 0:
                continue
            assert begins[row] <= buffer.len, row
            assert 0 <= sizes[row] <= buffer.len - begins[row], row
            used = _topic_key(cython.cast(cython.p_uchar, buffer.buf) + begins[row], sizes[row], out)
            if used:
                keys.append(PyBytes_FromStringAndSize(cython.cast(cython.p_char, out), used))
    finally:
        PyBuffer_Release(cython.address(buffer))
    return keys


def first_bad(view, base: cython.longlong, positions: list, sizes: list):
    """Return the index of the first position without a sound record of that size, -1 when all are sound."""
    buffer: Py_buffer
    row: cython.Py_ssize_t
    at: cython.longlong
    size: cython.longlong
    PyObject_GetBuffer(view, cython.address(buffer), PyBUF_SIMPLE)
    try:
        start: cython.pointer(cython.char) = cython.cast(cython.pointer(cython.char), buffer.buf)
        for row in range(len(positions)):
            at, size = positions[row] - base, sizes[row]
            if not (at >= 0 and HEADER <= size <= buffer.len - at and _is_sound(start + at, size, base + at)):
                return row
    finally:
        PyBuffer_Release(cython.address(buffer))
    return -1


@cython.boundscheck(False)
@cython.wraparound(False)
def gather(source, starts, sizes, out):
    """Copy the spans back to back into `out`."""
    of_starts: Column = packed(starts, I64)
    of_sizes: Column = packed(sizes, I64)
    assert of_starts._length == of_sizes._length, "columns of one length"
    begins: cython.p_longlong = _longs(of_starts)
    lengths: cython.p_longlong = _longs(of_sizes)
    read: Py_buffer
    written: Py_buffer
    row: cython.Py_ssize_t
    at: cython.longlong = 0
    PyObject_GetBuffer(source, cython.address(read), PyBUF_SIMPLE)
    PyObject_GetBuffer(out, cython.address(written), PyBUF_WRITABLE)
    try:
        for row in range(of_starts._length):
            if begins[row] < 0 or lengths[row] < 0 or begins[row] + lengths[row] > read.len:
                raise AssertionError(f"span {row} lies outside the source of {read.len} bytes")
            if at + lengths[row] > written.len:
                raise AssertionError(f"{written.len} bytes do not hold the spans")
            memcpy(
                cython.cast(cython.pointer(cython.char), written.buf) + at,
                cython.cast(cython.pointer(cython.char), read.buf) + begins[row],
                lengths[row],
            )
            at += lengths[row]
        assert at == written.len, (at, written.len)
    finally:
        PyBuffer_Release(cython.address(read))
        PyBuffer_Release(cython.address(written))


assert UNIQUE_KEY == b"UNIQ_KEY", UNIQUE_KEY
assert SEPARATOR == b" ", SEPARATOR
PAIR = cython.declare(cython.longlong, 16)
MESSAGE = cython.declare(cython.uint, record.MESSAGE)
MQTT = cython.declare(cython.uint, record.FLAG_MQTT)
STAGED = cython.declare(cython.uint, record.FLAG_STAGED)
KEYS_MAX = cython.declare(cython.Py_ssize_t, KEYS_PER_RECORD_MAX)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _may_have_keys(head: cython.pointer(record_header)) -> cython.bint:
    """Whether readers may see the record and it has a keys field, or properties that are not from MQTT."""
    if (head.magic != MESSAGE and head.magic != BATCH) or not head.n_dispatch or head.flags & STAGED:
        return False
    return head.keys_len != 0 or (head.n_props != 0 and not head.flags & MQTT)


@cython.final
@cython.cclass
class KeyChunk:
    """Entries in log order in four columns of one length."""

    capacity = cython.declare(cython.Py_ssize_t, visibility="readonly")
    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _columns: tuple
    _hashes: cython.p_uint
    _positions: cython.p_longlong
    _sizes: cython.p_uint
    _seconds: cython.p_uint

    def __init__(self, capacity: cython.Py_ssize_t):
        self.capacity, self.count = capacity, 0
        self._columns = (made(capacity, U32), made(capacity, I64), made(capacity, U32), made(capacity, U32))
        self._hashes, self._positions = _uints(self._columns[0]), _longs(self._columns[1])
        self._sizes, self._seconds = _uints(self._columns[2]), _uints(self._columns[3])

    def columns(self):
        """Return hashes, positions, sizes and store times in seconds of the entries so far."""
        return tuple([column[: self.count] for column in self._columns])

    def take(self, view, base: cython.longlong, position: cython.longlong, end: cython.longlong):
        """Add the keys of the sound records in [position, end); return the first record there was no room for."""
        buffer: Py_buffer
        head: cython.pointer(record_header)
        PyObject_GetBuffer(view, cython.address(buffer), PyBUF_SIMPLE)
        try:
            assert base <= position, (base, position)
            assert end - base <= buffer.len, (base, end)
            while position < end:
                head = cython.cast(
                    cython.pointer(record_header), cython.cast(cython.p_char, buffer.buf) + (position - base)
                )
                if _may_have_keys(head):
                    if self.capacity - self.count < KEYS_MAX:
                        break
                    self._take_record(head)
                assert head.total >= HEADER, (position, head.total)
                position += head.total
        finally:
            PyBuffer_Release(cython.address(buffer))
        return position

    @cython.cfunc
    @cython.exceptval(check=False)
    def _take_record(self, head: cython.pointer(record_header)) -> cython.void:
        """Add the unique key, then the space-separated keys of the keys field."""
        lengths: cython.p_char = cython.cast(cython.p_char, head) + HEADER + PAIR * head.n_dispatch
        topic: cython.p_char = lengths + 4 * cython.cast(cython.longlong, head.n_props)
        key: cython.p_char = topic + head.topic_len
        end: cython.p_char = key + head.keys_len
        stop: cython.p_char
        topic_sum: cython.uint = crc32c_extend(crc32c_extend(0, topic, head.topic_len), b"\0", 1)
        first: cython.Py_ssize_t = self.count
        if head.n_props and not head.flags & MQTT:
            self._take_unique(head, lengths, end + head.tags_len, topic_sum, first)
        while key < end:
            stop = cython.cast(cython.p_char, memchr(key, 32, end - key))
            if stop == cython.NULL:
                stop = end
            self._put(head, crc32c_extend(topic_sum, key, stop - key), stop - key, first)
            key = stop + 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _take_unique(
        self,
        head: cython.pointer(record_header),
        lengths: cython.p_char,
        at: cython.p_char,
        topic_sum: cython.uint,
        first: cython.Py_ssize_t,
    ) -> cython.void:
        """Find the first property UNIQ_KEY from `at` on, and add its value."""
        sizes: cython.p_uchar = cython.cast(cython.p_uchar, lengths)
        row: cython.Py_ssize_t
        name: cython.Py_ssize_t
        value: cython.Py_ssize_t
        for row in range(head.n_props):
            name = sizes[4 * row] | sizes[4 * row + 1] << 8
            value = sizes[4 * row + 2] | sizes[4 * row + 3] << 8
            if name == 8 and memcmp(at, b"UNIQ_KEY", 8) == 0:
                self._put(head, crc32c_extend(topic_sum, at + 8, value), value, first)
                return
            at += name + value

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(check=False)
    def _put(
        self,
        head: cython.pointer(record_header),
        number: cython.uint,
        length: cython.Py_ssize_t,
        first: cython.Py_ssize_t,
    ) -> cython.void:
        """Add one key unless it is empty, already among the record's entries from `first` on, or one too many."""
        at: cython.Py_ssize_t
        second: cython.longlong = head.store_ms // 1000
        if not length or self.count - first == KEYS_MAX:
            return
        for at in range(first, self.count):
            if self._hashes[at] == number:
                return
        at = self.count
        self._hashes[at], self._positions[at], self._sizes[at] = number, head.position, head.total
        self._seconds[at] = min(max(second, 0), 0xFFFFFFFF)
        self.count += 1
