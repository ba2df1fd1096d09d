"""The compiled twin: records of a blob into runs, and runs into PUBLISH packets. Pure-Python-mode Cython.

C pointers make it useless uncompiled. Invariant: no pointer is followed before the sizes of its record have been
checked against the blob. Thread rule: loop thread, holding the interpreter's lock.
"""

import cython
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.stdlib import calloc, malloc
from cython.cimports.libc.stdlib import free as release
from cython.cimports.libc.string import memcmp, memcpy
from cython.cimports.remoting.native.compiled.machine import record_dispatch, record_header

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from remoting.native import contracts
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records import record

HEADER = cython.declare(cython.Py_ssize_t, 80)
PAIR = cython.declare(cython.Py_ssize_t, 16)
MESSAGE = cython.declare(cython.uint, record.MESSAGE)
FLAG_MQTT = cython.declare(cython.uint, record.FLAG_MQTT)
NOTHING = cython.declare(cython.int, contracts.NOTHING)
FULL = cython.declare(cython.int, contracts.FULL)
SPECIAL = cython.declare(cython.int, contracts.SPECIAL)
ID_MAX = cython.declare(cython.int, 65535)
CLIENT_ID_KEY = cython.declare(bytes, record.CLIENT_ID_KEY)
CLIENT_ID = cython.declare(cython.p_char, PyBytes_AS_STRING(CLIENT_ID_KEY))
CLIENT_ID_LEN = cython.declare(cython.Py_ssize_t, len(CLIENT_ID_KEY))
LEVEL_5 = cython.declare(cython.int, 5)
SPREAD = cython.declare(uint32_t, 2654435761)
"""Multiplier that spreads queue ids over a table; a bare literal would make the product a Python integer."""

Place = cython.struct(queue=uint32_t, run=cython.int)
Run = cython.struct(queue=uint32_t, count=uint32_t, first=uint64_t, size=cython.Py_ssize_t, filled=uint32_t)
Hit = cython.struct(run=cython.int, start=uint32_t)
Part = cython.struct(
    topic=cython.p_char, body=cython.p_char, topic_len=cython.Py_ssize_t, body_len=cython.Py_ssize_t, qos=cython.int
)


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _check(at: cython.p_char, left: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the size of the record at `at`, whose dispatch table and body lie within the `left` bytes."""
    head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), at)
    if left < HEADER or head.total < HEADER or head.total > left:
        raise CorruptRecord(f"no record where {left} bytes are left")
    if HEADER + PAIR * cython.cast(cython.Py_ssize_t, head.n_dispatch) > head.total:
        raise CorruptRecord("a record whose queues pass its end")
    return head.total


def starts_of(blob):
    """Return the starts of records that lie back to back."""
    view: cython.Py_buffer
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    PyObject_GetBuffer(blob, cython.address(view), PyBUF_SIMPLE)
    try:
        base: cython.p_char = cython.cast(cython.p_char, view.buf)
        while at < view.len:
            at += _check(base + at, view.len - at)
            count += 1
        found: bytes = PyBytes_FromStringAndSize(cython.NULL, 4 * count)
        starts: cython.pointer(uint32_t) = cython.cast(cython.pointer(uint32_t), PyBytes_AS_STRING(found))
        at = count = 0
        while at < view.len:
            starts[count] = at
            count += 1
            at += cython.cast(cython.pointer(record_header), base + at).total
        return found
    finally:
        PyBuffer_Release(cython.address(view))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _slot(table: cython.pointer(Place), mask: uint32_t, queue: uint32_t) -> uint32_t:
    """Return the queue's place in the table, or the free place for it."""
    at: uint32_t = (queue * SPREAD) & mask
    while table[at].run != -1 and table[at].queue != queue:
        at = (at + 1) & mask
    return at


def split(blob, wanted):
    """Return the first gapless run of each wanted queue, in order of appearance."""
    size: uint32_t = 16
    index: uint32_t
    total: cython.Py_ssize_t = len(wanted)
    while size < 4 * total:
        size *= 2
    table: cython.pointer(Place) = cython.cast(cython.pointer(Place), malloc(size * cython.sizeof(Place)))
    runs: cython.pointer(Run) = cython.cast(cython.pointer(Run), calloc(total + 1, cython.sizeof(Run)))
    view: cython.Py_buffer
    try:
        if table == cython.NULL or runs == cython.NULL:
            raise MemoryError
        for index in range(size):
            table[index].run = -1
        for queue in wanted:
            index = _slot(table, size - 1, queue)
            table[index].queue, table[index].run = queue, -2
        PyObject_GetBuffer(blob, cython.address(view), PyBUF_SIMPLE)
        try:
            return _split(cython.cast(cython.p_char, view.buf), view.len, table, size - 1, runs)
        finally:
            PyBuffer_Release(cython.address(view))
    finally:
        release(table)
        release(runs)


@cython.cfunc
def _split(
    base: cython.p_char,
    length: cython.Py_ssize_t,
    table: cython.pointer(Place),
    mask: uint32_t,
    runs: cython.pointer(Run),
) -> list:
    hits: cython.pointer(Hit) = cython.NULL
    count: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = 0
    made: cython.int = 0
    at: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    pair: cython.Py_ssize_t
    place: uint32_t
    grown: cython.pointer(Hit)
    try:
        while at < length:
            size = _check(base + at, length - at)
            head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), base + at)
            pairs: cython.pointer(record_dispatch) = cython.cast(cython.pointer(record_dispatch), base + at + HEADER)
            for pair in range(head.n_dispatch):
                place = _slot(table, mask, pairs[pair].queue)
                if table[place].run == -1:
                    continue
                if table[place].run == -2:
                    table[place].run = made
                    runs[made].queue, runs[made].first = pairs[pair].queue, pairs[pair].offset
                    made += 1
                run: cython.pointer(Run) = cython.address(runs[table[place].run])
                if pairs[pair].offset != run.first + run.count:
                    continue
                if count == room:
                    room = 2 * room + 64
                    grown = cython.cast(cython.pointer(Hit), malloc(room * cython.sizeof(Hit)))
                    if grown == cython.NULL:
                        raise MemoryError
                    if hits != cython.NULL:
                        memcpy(grown, hits, count * cython.sizeof(Hit))
                        release(hits)
                    hits = grown
                hits[count].run, hits[count].start = table[place].run, at
                count += 1
                run.count += 1
                run.size += size
            at += size
        return _collect(runs, made, hits, count)
    finally:
        release(hits)


@cython.cfunc
def _collect(runs: cython.pointer(Run), made: cython.int, hits: cython.pointer(Hit), count: cython.Py_ssize_t) -> list:
    """Return the runs as Python tuples."""
    found: list = []
    starts: list = []
    number: cython.int
    index: cython.Py_ssize_t
    packed: bytes
    places: cython.pointer(cython.pointer(uint32_t)) = cython.cast(
        cython.pointer(cython.pointer(uint32_t)), malloc((made + 1) * cython.sizeof(cython.p_void))
    )
    if places == cython.NULL:
        raise MemoryError
    try:
        for number in range(made):
            packed = PyBytes_FromStringAndSize(cython.NULL, 4 * runs[number].count)
            starts.append(packed)
            places[number] = cython.cast(cython.pointer(uint32_t), PyBytes_AS_STRING(packed))
        for index in range(count):
            number = hits[index].run
            places[number][runs[number].filled] = hits[index].start
            runs[number].filled += 1
        for number in range(made):
            run: cython.pointer(Run) = cython.address(runs[number])
            one = (run.queue, run.first, starts[number], run.size)
            found.append(one)
        return found
    finally:
        release(places)


def pick(blob, starts: bytes):
    """Return the records at these starts, back to back."""
    view: cython.Py_buffer
    index: cython.Py_ssize_t
    size: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = len(starts) // 4
    places: cython.pointer(uint32_t) = cython.cast(cython.pointer(uint32_t), PyBytes_AS_STRING(starts))
    PyObject_GetBuffer(blob, cython.address(view), PyBUF_SIMPLE)
    try:
        base: cython.p_char = cython.cast(cython.p_char, view.buf)
        for index in range(count):
            size += _check(base + places[index], view.len - places[index])
        picked: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        to: cython.p_char = PyBytes_AS_STRING(picked)
        for index in range(count):
            size = cython.cast(cython.pointer(record_header), base + places[index]).total
            memcpy(to, base + places[index], size)
            to += size
        return picked
    finally:
        PyBuffer_Release(cython.address(view))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_client_id(
    props: cython.p_char, lengths: cython.pointer(cython.ushort), props_len: cython.Py_ssize_t
) -> cython.bint:
    """Whether the second property is the client id."""
    before: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, lengths[0]) + lengths[1]
    if lengths[2] != CLIENT_ID_LEN or before + lengths[2] > props_len:
        return False
    return memcmp(props + before, CLIENT_ID, CLIENT_ID_LEN) == 0


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _parts(at: cython.p_char, left: cython.Py_ssize_t, qos_max: cython.int, part: cython.pointer(Part)) -> cython.int:
    """Find topic and body of a plain record; return NOTHING, or SPECIAL when the record is not plain."""
    head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), at)
    if left < HEADER:
        raise CorruptRecord(f"no record where {left} bytes are left")
    if head.magic != MESSAGE or not head.flags & FLAG_MQTT or not 1 <= head.n_props <= 2:
        return SPECIAL
    part.qos = min(cython.cast(cython.int, head.flags & 3), qos_max)
    if part.qos > 1:
        return SPECIAL
    _check(at, left)
    table: cython.Py_ssize_t = HEADER + PAIR * cython.cast(cython.Py_ssize_t, head.n_dispatch)
    props: cython.Py_ssize_t = table + 4 * head.n_props
    props += cython.cast(cython.Py_ssize_t, head.topic_len) + head.keys_len + head.tags_len
    end: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, head.body_off) + head.body_len
    if props + head.props_len > head.body_off or end > head.total:
        raise CorruptRecord("a record whose parts pass its end")
    lengths: cython.pointer(cython.ushort) = cython.cast(cython.pointer(cython.ushort), at + table)
    if cython.cast(cython.Py_ssize_t, lengths[0]) + lengths[1] > head.props_len:
        raise CorruptRecord("a record whose topic passes its properties")
    if head.n_props == 2 and not _is_client_id(at + props, lengths, head.props_len):
        return SPECIAL
    part.topic, part.topic_len = at + props + lengths[0], lengths[1]
    part.body, part.body_len = at + head.body_off, head.body_len
    return NOTHING


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _remaining(part: cython.pointer(Part), level: cython.int) -> cython.Py_ssize_t:
    """Return the remaining length of one PUBLISH, in bytes."""
    return 2 + part.topic_len + 2 * part.qos + (level == LEVEL_5) + part.body_len


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _packet_size(part: cython.pointer(Part), level: cython.int) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t = _remaining(part, level)
    return size + (2 if size < 128 else 3 if size < 16384 else 4 if size < 2097152 else 5)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_length(to: cython.p_char, length: cython.Py_ssize_t) -> cython.p_char:
    while length >= 128:
        to[0] = cython.cast(cython.char, length & 127 | 128)
        length >>= 7
        to += 1
    to[0] = cython.cast(cython.char, length)
    return to + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put(to: cython.p_char, part: cython.pointer(Part), packet_id: cython.int, level: cython.int) -> cython.p_char:
    """Write one PUBLISH; return its end."""
    to[0] = cython.cast(cython.char, 0x30 | part.qos << 1)
    to = _put_length(to + 1, _remaining(part, level))
    to[0], to[1] = cython.cast(cython.char, part.topic_len >> 8), cython.cast(cython.char, part.topic_len & 255)
    memcpy(to + 2, part.topic, part.topic_len)
    to += 2 + part.topic_len
    if part.qos:
        to[0], to[1] = cython.cast(cython.char, packet_id >> 8), cython.cast(cython.char, packet_id & 255)
        to += 2
    if level == LEVEL_5:
        to[0] = 0
        to += 1
    memcpy(to, part.body, part.body_len)
    return to + part.body_len


def write_run(
    blob,
    starts: bytes,
    index: cython.Py_ssize_t,
    portion: cython.Py_ssize_t,
    qos_max: cython.int,
    level: cython.int,
    free: cython.Py_ssize_t,
    budget: cython.Py_ssize_t,
    last_id: cython.int,
    window: dict,
    unacked: dict,
    source,
    offset: cython.longlong,
):
    """Return plain records as PUBLISH packets, see `contracts.PacketCore`."""
    view: cython.Py_buffer
    part: Part
    spent: cython.Py_ssize_t = 0
    with_qos: cython.Py_ssize_t = 0
    taken: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t
    reason: cython.int = NOTHING
    places: cython.pointer(uint32_t) = cython.cast(cython.pointer(uint32_t), PyBytes_AS_STRING(starts)) + index
    count: cython.Py_ssize_t = min(portion, len(starts) // 4 - index)
    PyObject_GetBuffer(blob, cython.address(view), PyBUF_SIMPLE)
    try:
        base: cython.p_char = cython.cast(cython.p_char, view.buf)
        while taken < count:
            reason = _parts(base + places[taken], view.len - places[taken], qos_max, cython.address(part))
            if reason != NOTHING:
                break
            if spent >= budget or (part.qos and with_qos >= free):
                reason = FULL
                break
            spent += part.body_len
            with_qos += part.qos
            size += _packet_size(cython.address(part), level)
            taken += 1
        out: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        to: cython.p_char = PyBytes_AS_STRING(out)
        for at in range(taken):
            _parts(base + places[at], view.len - places[at], qos_max, cython.address(part))
            if part.qos:
                last_id = _next_id(last_id, window)
                place = offset + at
                window[last_id] = (source, place)
                unacked[place] = None
            to = _put(to, cython.address(part), last_id, level)
        assert to == PyBytes_AS_STRING(out) + size
    finally:
        PyBuffer_Release(cython.address(view))
    return out, taken, with_qos, spent, last_id, reason


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _next_id(last_id: cython.int, window: dict) -> cython.int:
    while True:
        last_id = last_id + 1 if last_id < ID_MAX else 1
        if last_id not in window:
            return last_id
