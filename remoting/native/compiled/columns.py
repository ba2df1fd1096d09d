"""Records to columns, compiled: checks, and Arrow buffers of every variable-length part; a sum of hashes of many rows.
Pure-Python-mode Cython.

The pure twin is what readers do with numpy without it. A column comes as (offsets i32[n + 1], bytes, validity bitmap or
None, nulls, whether all bytes are ASCII): two passes over the headers, one for the lengths, one that copies. Invariant:
`first_bad` has accepted the records before anything else looks at them. Thread rule: pure functions over buffers the
caller keeps alive.
"""

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.string import memcmp, memcpy, memset
from cython.cimports.remoting.native.compiled.machine import (
    all_ascii,
    crc32c_ready,
    record_checksum,
    record_fits,
    record_header,
)

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records import record

crc32c_ready()
HEADER = cython.declare(cython.longlong, 80)
PAIR = cython.declare(cython.longlong, 16)
MESSAGE = cython.declare(cython.uint, record.MESSAGE)
FLAG_MQTT = cython.declare(cython.uint, record.FLAG_MQTT)
OFFSET_MAX = cython.declare(cython.longlong, (1 << 31) - 1)
TOPIC = cython.declare(cython.int, 0)
KEYS = cython.declare(cython.int, 1)
TAGS = cython.declare(cython.int, 2)
MQTT_TOPIC = cython.declare(cython.int, 3)
BODY = cython.declare(cython.int, 4)
PROPERTY = cython.declare(cython.int, 5)

Span = cython.struct(at=cython.p_char, length=cython.longlong)
Pairs = cython.struct(lengths=cython.pointer(cython.ushort), at=cython.p_char, count=cython.longlong)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _pairs_of(head: cython.pointer(record_header)) -> Pairs:
    """Return where a record's table of property lengths and its first property begin."""
    found: Pairs
    start: cython.p_char = cython.cast(cython.p_char, head) + HEADER + PAIR * head.n_dispatch
    found.lengths = cython.cast(cython.pointer(cython.ushort), start)
    found.count = head.n_props
    found.at = start + 4 * found.count + head.topic_len + head.keys_len + head.tags_len
    return found


@cython.cfunc
@cython.exceptval(check=False)
def _is_sound(at: cython.p_char, available: cython.longlong, checked: cython.bint) -> cython.bint:
    """Whether `at` has a whole message record with consistent property lengths and, if `checked`, a valid checksum."""
    head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), at)
    if not record_fits(at, available) or head.magic != MESSAGE:
        return False
    pairs: Pairs = _pairs_of(head)
    row: cython.longlong
    length: cython.longlong = 0
    for row in range(2 * pairs.count):
        length += pairs.lengths[row]
    return length == head.props_len and (not checked or record_checksum(at, head.total) == head.crc)


@cython.boundscheck(False)
@cython.wraparound(False)
def first_bad(data: cython.const[cython.uchar][::1], starts: cython.const[cython.longlong][::1], checked: cython.bint):
    """Return the index of the first start that has no sound message record, -1 when all are sound.

    Checksums are verified only when `checked` is set.
    """
    row: cython.Py_ssize_t
    size: cython.longlong = data.shape[0]
    for row in range(starts.shape[0]):
        at: cython.longlong = starts[row]
        if at < 0 or at % 8 or at > size - HEADER:
            return row
        if not _is_sound(cython.cast(cython.p_char, cython.address(data[at])), size - at, checked):
            return row
    return -1


@cython.cfunc
@cython.exceptval(check=False)
def _find(head: cython.pointer(record_header), part: cython.int, key: cython.p_char, key_len: cython.longlong) -> Span:
    """Return where a part of a record is; length -1 when the record has no such part."""
    span: Span
    pairs: Pairs = _pairs_of(head)
    row: cython.longlong
    at: cython.p_char = pairs.at
    span.at, span.length = at, -1
    if part == BODY:
        span.at, span.length = cython.cast(cython.p_char, head) + head.body_off, head.body_len
    elif part == MQTT_TOPIC:
        if head.flags & FLAG_MQTT and pairs.count:
            span.at, span.length = at + pairs.lengths[0], pairs.lengths[1]
    elif part == PROPERTY:
        for row in range(pairs.count):
            if pairs.lengths[2 * row] == key_len and memcmp(at, key, key_len) == 0:
                span.at, span.length = at + key_len, pairs.lengths[2 * row + 1]
            at += cython.cast(cython.longlong, pairs.lengths[2 * row]) + pairs.lengths[2 * row + 1]
    else:
        span = _find_text(head, part)
    return span


@cython.cfunc
@cython.exceptval(check=False)
def _find_text(head: cython.pointer(record_header), part: cython.int) -> Span:
    """Return where topic, keys or tags are; empty keys and tags count as absent."""
    span: Span
    span.at = cython.cast(cython.p_char, head) + HEADER + PAIR * head.n_dispatch + 4 * head.n_props
    span.length = head.topic_len
    if part == KEYS:
        span.at += head.topic_len
        span.length = head.keys_len
    elif part == TAGS:
        span.at += head.topic_len + head.keys_len
        span.length = head.tags_len
    if part != TOPIC and span.length == 0:
        span.length = -1
    return span


@cython.boundscheck(False)
@cython.wraparound(False)
def column(
    data: cython.const[cython.uchar][::1], starts: cython.const[cython.longlong][::1], part: cython.int, key: bytes
):
    """Return one part of every record; the last of a repeated property counts. Raises LocalMisuse above 2 GiB."""
    rows: cython.Py_ssize_t = starts.shape[0]
    row: cython.Py_ssize_t
    span: Span
    name: cython.p_char = PyBytes_AS_STRING(key)
    name_len: cython.longlong = len(key)
    offsets: bytes = PyBytes_FromStringAndSize(cython.NULL, 4 * (rows + 1))
    edges: cython.p_int = cython.cast(cython.p_int, PyBytes_AS_STRING(offsets))
    bitmap: bytes = PyBytes_FromStringAndSize(cython.NULL, (rows + 7) // 8)
    bits: cython.p_char = PyBytes_AS_STRING(bitmap)
    total: cython.longlong = 0
    nulls: cython.longlong = 0
    memset(bits, 0, (rows + 7) // 8)
    for row in range(rows):
        edges[row] = total
        span = _find(_head(data, starts, row), part, name, name_len)
        if span.length < 0:
            nulls += 1
            continue
        bits[row >> 3] |= 1 << (row & 7)
        total += span.length
        if total > OFFSET_MAX:
            raise LocalMisuse("a column of more than 2 GiB")
    edges[rows] = total
    values: bytes = PyBytes_FromStringAndSize(cython.NULL, total)
    to: cython.p_char = PyBytes_AS_STRING(values)
    for row in range(rows):
        if edges[row + 1] > edges[row]:
            span = _find(_head(data, starts, row), part, name, name_len)
            memcpy(to + edges[row], span.at, span.length)
    return offsets, values, bitmap if nulls else None, nulls, bool(all_ascii(to, total))


@cython.boundscheck(False)
@cython.wraparound(False)
def judge_texts(
    data: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    part: cython.int,
    verdicts: dict,
    out: cython.uchar[::1],
):
    """Set `out` to the verdict on one part of every record (`verdicts`: bytes to bool); return the texts it lacks.

    Records without the part get 0; so do, for now, those whose text has no verdict yet.
    """
    rows: cython.Py_ssize_t = starts.shape[0]
    row: cython.Py_ssize_t
    span: Span
    text: bytes
    lacking: set = set()
    for row in range(rows):
        out[row] = 0
        span = _find(_head(data, starts, row), part, cython.NULL, 0)
        if span.length < 0:
            continue
        text = PyBytes_FromStringAndSize(span.at, span.length)
        verdict = verdicts.get(text)
        if verdict is None:
            lacking.add(text)
        elif verdict is True:
            out[row] = 1
    return lacking


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(check=False)
def _head(
    data: cython.const[cython.uchar][::1], starts: cython.const[cython.longlong][::1], row: cython.Py_ssize_t
) -> cython.pointer(record_header):
    return cython.cast(cython.pointer(record_header), cython.address(data[starts[row]]))


@cython.boundscheck(False)
@cython.wraparound(False)
def properties(data: cython.const[cython.uchar][::1], starts: cython.const[cython.longlong][::1]):
    """Return (first pair of each record i32[n + 1], keys, values): two columns without nulls, a row per pair."""
    rows: cython.Py_ssize_t = starts.shape[0]
    row: cython.Py_ssize_t
    pair: cython.longlong
    count: cython.longlong = 0
    size: cython.longlong = 0
    first: bytes = PyBytes_FromStringAndSize(cython.NULL, 4 * (rows + 1))
    firsts: cython.p_int = cython.cast(cython.p_int, PyBytes_AS_STRING(first))
    key_size: cython.longlong = 0
    pairs: Pairs
    for row in range(rows):
        firsts[row] = count
        pairs = _pairs_of(_head(data, starts, row))
        count += pairs.count
        size += _head(data, starts, row).props_len
        for pair in range(pairs.count):
            key_size += pairs.lengths[2 * pair]
        if size > OFFSET_MAX:
            raise LocalMisuse("a column of more than 2 GiB")
    firsts[rows] = count
    keys = _Texts(count, key_size)
    values = _Texts(count, size - key_size)
    for row in range(rows):
        pairs = _pairs_of(_head(data, starts, row))
        for pair in range(pairs.count):
            keys.add(pairs.at, pairs.lengths[2 * pair])
            pairs.at += pairs.lengths[2 * pair]
            values.add(pairs.at, pairs.lengths[2 * pair + 1])
            pairs.at += pairs.lengths[2 * pair + 1]
    return first, keys.column(), values.column()


STEP = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)
MIX = cython.declare(cython.ulonglong, 0xBF58476D1CE4E5B9)
MIX_LOW = cython.declare(cython.ulonglong, 0x94D049BB133111EB)
MIX_HIGH = cython.declare(cython.ulonglong, 0xD6E8FEB86659FD93)


@cython.boundscheck(False)
@cython.wraparound(False)
def digest(data: cython.const[cython.uchar][::1], edges: cython.const[cython.longlong][::1], skipped: cython.int):
    """Return (low, high): the sums, modulo 2^64, of two hashes of every row, but for its first `skipped` words.

    Row i is data[edges[i]:edges[i + 1]], whole words of 8 bytes. Raises LocalMisuse for any other edges.
    """
    row: cython.Py_ssize_t
    at: cython.longlong
    low: cython.ulonglong = 0
    high: cython.ulonglong = 0
    for row in range(edges.shape[0] - 1):
        if edges[row] < 0 or edges[row + 1] < edges[row] or (edges[row] | edges[row + 1]) & 7:
            raise LocalMisuse("rows of other than whole words")
    if edges.shape[0] and edges[edges.shape[0] - 1] > data.shape[0]:
        raise LocalMisuse("rows behind the end of their bytes")
    for row in range(edges.shape[0] - 1):
        sum_low: cython.ulonglong = 0
        sum_high: cython.ulonglong = 0
        key: cython.ulonglong = 0
        at = edges[row] + 8 * skipped
        while at < edges[row + 1]:
            word: cython.ulonglong
            memcpy(cython.address(word), cython.address(data[at]), 8)
            key += STEP
            word = (word ^ key) * MIX
            word ^= word >> 32
            other: cython.ulonglong = word * MIX_HIGH
            word *= MIX_LOW
            sum_low += word ^ (word >> 29)
            sum_high += other ^ (other >> 31)
            at += 8
        sum_low = (sum_low ^ (sum_low >> 32)) * MIX
        low += sum_low ^ (sum_low >> 29)
        sum_high = (sum_high ^ (sum_high >> 32)) * MIX_LOW
        high += sum_high ^ (sum_high >> 31)
    return low, high


@cython.final
@cython.cclass
class _Texts:
    """A column of known size that is filled value by value."""

    _offsets: bytes
    _values: bytes
    _edges: cython.p_int
    _to: cython.p_char
    _row: cython.longlong
    _at: cython.longlong

    def __cinit__(self, rows: cython.longlong, size: cython.longlong):
        self._offsets = PyBytes_FromStringAndSize(cython.NULL, 4 * (rows + 1))
        self._values = PyBytes_FromStringAndSize(cython.NULL, size)
        self._edges = cython.cast(cython.p_int, PyBytes_AS_STRING(self._offsets))
        self._to = PyBytes_AS_STRING(self._values)
        self._edges[0] = 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def add(self, at: cython.p_char, length: cython.longlong) -> cython.void:
        memcpy(self._to + self._at, at, length)
        self._at += length
        self._row += 1
        self._edges[self._row] = self._at

    @cython.cfunc
    def column(self):
        return self._offsets, self._values, None, 0, bool(all_ascii(self._to, self._at))
