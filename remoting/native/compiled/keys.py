"""The compiled twin, fourth part: the key index's memory. Pure-Python-mode Cython.

Invariant: number for number what `reference.keys` takes in. Thread rule: `take` on the loop thread, holding the
interpreter's lock; the entries below `count` are never changed again, so that the index thread may read them.
"""

import cython
import numpy as np
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.libc.string import memchr, memcmp
from cython.cimports.remoting.native.compiled.machine import crc32c_extend, crc32c_ready, record_header

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from remoting.protocol.records import record
from remoting.protocol.records.properties import KEYS_PER_RECORD_MAX, SEPARATOR, UNIQUE_KEY

crc32c_ready()
assert UNIQUE_KEY == b"UNIQ_KEY", UNIQUE_KEY
assert SEPARATOR == b" ", SEPARATOR
HEADER = cython.declare(cython.longlong, 80)
PAIR = cython.declare(cython.longlong, 16)
MESSAGE = cython.declare(cython.uint, record.MESSAGE)
BATCH = cython.declare(cython.uint, record.BATCH)
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
    _arrays: tuple
    _hashes: cython.uint[::1]
    _positions: cython.longlong[::1]
    _sizes: cython.uint[::1]
    _seconds: cython.uint[::1]

    def __init__(self, capacity: cython.Py_ssize_t):
        self.capacity, self.count = capacity, 0
        self._arrays = (
            np.empty(capacity, np.uint32), np.empty(capacity, np.int64),
            np.empty(capacity, np.uint32), np.empty(capacity, np.uint32),
        )  # fmt: skip
        self._hashes, self._positions, self._sizes, self._seconds = self._arrays

    def columns(self):
        """Return hashes, positions, sizes and store times in seconds of the entries so far."""
        return tuple([column[: self.count] for column in self._arrays])

    def take(self, view, base: cython.longlong, position: cython.longlong, end: cython.longlong):
        """Take in the keys of the sound records in [position, end); return the first record there was no room for."""
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
        """Take in the unique key, then the keys between the spaces of the keys field."""
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
        """Find the first property UNIQ_KEY, whose bytes begin at `at` or behind, and take in its value."""
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
        """Take in one key, unless it is empty, the record's entries from `first` on have its number, or are enough."""
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
