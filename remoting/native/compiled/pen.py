"""The compiled twin: a batch into the log in one call - encode, pwrite, index, publish. Pure-Python-mode Cython.

Declared in `encoder.pxd`; C pointers make it useless uncompiled. Invariant: what is refused or fails leaves
rows, index and published numbers as they were; entries are published only when every byte is with the kernel.
Thread rule: loop thread; the interpreter's lock is let go of for large writes.
"""

import os

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.errno import EINTR, errno
from cython.cimports.remoting.native.compiled.encoder import Encoded, Encoder, pwrite, release_stores
from cython.cimports.remoting.native.compiled.ring import Ring

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from remoting.native.contracts import COUNT_AT, END_AT, KEPT_BYTES_MAX
from remoting.protocol.records.record import HEADER_SIZE

KEPT_MAX = cython.declare(cython.longlong, KEPT_BYTES_MAX)
HEADER = cython.declare(cython.longlong, HEADER_SIZE)
COUNT = cython.declare(cython.Py_ssize_t, COUNT_AT)
END = cython.declare(cython.Py_ssize_t, END_AT)
BYTES_MAX = cython.declare(cython.longlong, 8 * 1024 * 1024)
"""Larger batches go the long way, which keeps no memory for them."""
UNLOCKED_MIN = cython.declare(cython.longlong, 32768)
"""Writing this much takes longer than letting go of the interpreter's lock and getting it back."""


@cython.final
@cython.cclass
class Pen:
    """Writes into one stretch of one log file."""

    _encoder: Encoder
    _descriptor: cython.int
    _base: cython.longlong
    _limit: cython.longlong
    _counters: cython.longlong[::1]
    _ring: Ring
    _queue_limit: cython.longlong
    _scratch: bytes
    attempted = cython.declare(cython.longlong, visibility="readonly")

    def __init__(self, encoder: Encoder):
        self._encoder, self._descriptor, self._base, self._limit = encoder, -1, 0, -1
        self._scratch = b""

    def aim(
        self,
        ring: Ring,
        queue_limit: cython.longlong,
        counters: cython.longlong[::1],
        descriptor: cython.int,
        base: cython.longlong,
        limit: cython.longlong,
    ):
        """Write into the file that starts at `base`, up to position `limit`; `counters` are the tail's."""
        self._ring, self._queue_limit, self._counters = ring, queue_limit, counters
        self._descriptor, self._base, self._limit = descriptor, base, limit

    @cython.boundscheck(False)
    @cython.wraparound(False)
    def write(
        self,
        images: list,
        queues: list,
        atomic: cython.bint,
        store_ms: cython.longlong,
        position: cython.longlong,
        first: cython.longlong,
        count: cython.longlong,
    ):
        """Append the images at `position`, their entries behind number `count`; None when they do not fit the stretch.

        Raises RecordTooLarge, LocalMisuse, OSError; then `attempted` bytes may lie in the file.
        """
        encoder: Encoder = self._encoder
        ring: Ring = self._ring
        if not self._base <= position < self._limit:
            return None
        batch: Encoded = encoder._begin(ring, images, queues, atomic, store_ms, self._queue_limit, position)
        start: cython.pointer(cython.char)
        entries: cython.longlong
        left: cython.longlong
        try:
            if len(batch.entries._packed) > 32 * (ring._capacity - (count - first)):
                return None
            left = self._limit - position - encoder._size
            if not encoder._size or (left and left < HEADER) or encoder._size > BYTES_MAX:
                return None
            encoder._fitting = encoder._last + 1
            start = self._room(batch, encoder._size)
            try:
                encoder._put_all(batch, 0, start, position)
                self._write(start, encoder._size, position - self._base)
            except BaseException:
                encoder._undo(ring, batch)
                raise
        finally:
            encoder._images = encoder._plan_memory = None
        batch.end_position = position + encoder._size
        batch.entries._length = entries = encoder._entry - batch.entries._at
        ring._store(batch.entries, first, count)
        self._counters[END] = batch.end_position
        release_stores()
        self._counters[COUNT] = count + entries
        return batch

    @cython.cfunc
    def _room(self, batch: Encoded, size: cython.longlong) -> cython.pointer(cython.char):
        """Return where to write the records: into bytes that the batch keeps, or, when large, that are used again."""
        if size <= KEPT_MAX:
            batch._piece = PyBytes_FromStringAndSize(cython.NULL, size)
            return PyBytes_AS_STRING(batch._piece)
        batch._pieces = []
        if len(self._scratch) < size:
            self._scratch = PyBytes_FromStringAndSize(cython.NULL, size + size // 2)
        return PyBytes_AS_STRING(self._scratch)

    @cython.cfunc
    @cython.exceptval(-1)
    def _write(self, start: cython.pointer(cython.char), size: cython.longlong, at: cython.longlong) -> cython.int:
        """Hand `size` bytes to the kernel; a short write is how a disk says that it is filling up."""
        written: cython.Py_ssize_t
        done: cython.longlong = 0
        failure: cython.int = 0
        self.attempted = size
        while done < size and not failure:
            if size < UNLOCKED_MIN:
                written = pwrite(self._descriptor, start + done, size - done, at + done)
                failure = errno if written < 0 else 0
            else:
                with cython.nogil:
                    written = pwrite(self._descriptor, start + done, size - done, at + done)
                    failure = errno if written < 0 else 0
            if failure == EINTR:
                failure = 0
            done += max(0, written)
        if failure:
            raise OSError(failure, os.strerror(failure))
        return 0
