"""The compiled twin of an append: images become records, offsets and index entries, and a batch goes into the log.

A first pass checks sizes, a second one determines how many images fit into the segment, a third one stamps them in
place; the writer does encode, pwrite, index and publish in one call. Pure-Python-mode Cython; the classes are declared
in `encoder.pxd`, and C pointers make it useless uncompiled. Invariants: byte for byte what the pure twin makes; a batch
that is refused or fails leaves rows, index and published numbers as they were; entries are published only when every
byte is with the kernel. Thread rule: loop thread; the interpreter's lock is released for large writes.
"""

import os

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.errno import EINTR, errno
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.remoting.native.compiled.encoder import Planned, prefetch, pwrite, release_stores
from cython.cimports.remoting.native.compiled.machine import (
    all_ascii,
    crc32c_ready,
    record_checksum,
    record_dispatch,
    record_fits,
    record_header,
)
from cython.cimports.remoting.native.compiled.ring import Entry, EntryBlock, Ring, Row

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from remoting.native.contracts import COUNT_AT, END_AT, KEPT_BYTES_MAX, RETAINED_MASK, RETAINED_VALUE
from remoting.protocol.errors import LocalMisuse, RecordTooLarge, TooManyQueues
from remoting.protocol.records import record
from remoting.protocol.records.record import HEADER_SIZE

crc32c_ready()
HEADER = cython.declare(cython.longlong, HEADER_SIZE)
PAIR = cython.declare(cython.longlong, 16)
MESSAGE = cython.declare(cython.uint, record.MESSAGE)
BATCH = cython.declare(cython.uint, record.BATCH)
CONTROL = cython.declare(cython.uint, record.CONTROL)
FILLER = cython.declare(cython.uint, record.FILLER)
GROUP_OPEN = cython.declare(cython.uint, record.FLAG_GROUP_OPEN)
FORMAT_MASK = cython.declare(cython.uint, record.FLAG_FORMAT_MASK)
COUNT_MAX = cython.declare(cython.longlong, record.BATCH_COUNT_MAX)
MQTT = cython.declare(cython.uint, record.FLAG_MQTT)
KEPT_MASK = cython.declare(cython.uint, RETAINED_MASK)
KEPT_VALUE = cython.declare(cython.uint, RETAINED_VALUE)
AHEAD = cython.declare(cython.Py_ssize_t, 24)
"""How many entries ahead a row is prefetched: with a million queues, most rows are in no cache."""


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_count(head: cython.pointer(record_header)) -> cython.bint:
    """`record.is_count`, for the types written here."""
    if head.magic == BATCH:
        return head.flags & FORMAT_MASK and 1 <= head.count <= COUNT_MAX
    return (head.magic == MESSAGE or head.magic == CONTROL) and head.count == 1 and not head.flags & FORMAT_MASK


@cython.final
@cython.cclass
class Encoded:
    """An encoded batch: records, index entries, positions."""

    @property
    def pieces(self):
        """Return (log position, bytes) per segment; none when a large batch was not kept."""
        return self._pieces if self._piece is None else [(self.first_position, self._piece)]

    def forget_bytes(self):
        """Keep everything but the pieces."""
        self._pieces, self._piece = [], None


@cython.final
@cython.cclass
class Encoder:
    """Makes records of one epoch."""

    def __init__(self, epoch: cython.uint, record_limit: cython.longlong, queues_max: cython.longlong):
        self._epoch, self._record_limit, self._queues_max = epoch, record_limit, queues_max

    def encode(
        self,
        ring: Ring,
        images: list,
        queues: list,
        atomic: cython.bint,
        store_ms: cython.longlong,
        queue_limit: cython.longlong,
        position: cython.longlong,
        segment_end: cython.longlong,
        next_segment,
    ):
        """Return the records of the images in all parts from `position` on."""
        batch: Encoded = self._begin(ring, images, queues, atomic, store_ms, queue_limit, position)
        batch._pieces = []
        try:
            batch.end_position = self._encode_pieces(batch, self._last + 1, position, segment_end, next_segment)
        except BaseException:
            self._undo(ring, batch)
            raise
        finally:
            self._images = self._plan_memory = None
        batch.entries._length = self._entry - batch.entries._at
        return batch

    @cython.cfunc
    def _begin(
        self,
        ring: Ring,
        images: list,
        queues: list,
        atomic: cython.bint,
        store_ms: cython.longlong,
        queue_limit: cython.longlong,
        position: cython.longlong,
    ) -> Encoded:
        """Return an empty batch with room for the entries, and set what stays constant while it is filled."""
        batch: Encoded = Encoded.__new__(Encoded)
        count: cython.Py_ssize_t = self._survey(images, queues)
        packed: bytes = PyBytes_FromStringAndSize(cython.NULL, 32 * count)
        batch.entries = EntryBlock.__new__(EntryBlock)
        batch.entries._packed, batch.entries._length = packed, 0
        batch.entries._at = cython.cast(cython.pointer(Entry), PyBytes_AS_STRING(packed))
        batch.first_position, batch.offsets, batch.retained, batch.controls = position, [], [], []
        self._entry, self._entries_end = batch.entries._at, batch.entries._at + count
        self._name_queues(queues, min(queue_limit, ring._queues))
        self._images, self._atomic, self._store_ms, self._rows = images, atomic, store_ms, ring._rows
        return batch

    @cython.cfunc
    @cython.exceptval(-1)
    def _name_queues(self, queues: list, limit: cython.longlong) -> cython.int:
        """Write the queue ids into the entries. Raises LocalMisuse for a queue that does not exist."""
        queue: cython.longlong
        entry: cython.pointer(Entry) = self._entry
        try:
            for of_part in queues:
                for of_one in cython.cast(list, of_part):
                    for one in cython.cast(tuple, of_one):
                        queue = one
                        if not 0 <= queue < limit:
                            raise LocalMisuse(f"queue id {queue} does not exist")
                        entry.queue = queue
                        entry += 1
        except (OverflowError, TypeError) as error:
            raise LocalMisuse(f"a message has an invalid queue: {error}") from error
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _undo(self, ring: Ring, batch: Encoded) -> cython.int:
        """Take back the offsets assigned so far."""
        batch.entries._length = self._entry - batch.entries._at
        ring.undo(batch.entries)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _survey(self, images: list, queues: list) -> cython.Py_ssize_t:
        """Note the place of each image and the size of its record; return the number of their index entries.

        Raises LocalMisuse unless each is whole and has its queues. `_size` is set to the size of all records.
        """
        count: cython.Py_ssize_t = 0
        part: cython.Py_ssize_t
        for of_part in queues:
            count += len(cython.cast(list, of_part))
        self._last, self._size, self._entries = count - 1, 0, 0
        self._plan_memory = PyBytes_FromStringAndSize(cython.NULL, cython.sizeof(Planned) * count)
        self._planned = cython.cast(cython.pointer(Planned), PyBytes_AS_STRING(self._plan_memory))
        at: cython.pointer(Planned) = self._planned
        for part in range(len(queues)):
            of_images: bytes = images[part]
            of_queues: list = queues[part]
            self._survey_part(of_images, of_queues, part, at)
            at += len(of_queues)
        return self._entries

    @cython.cfunc
    @cython.exceptval(-1)
    def _survey_part(
        self, images: bytes, queues: list, part: cython.uint, planned: cython.pointer(Planned)
    ) -> cython.int:
        at: cython.pointer(cython.char) = PyBytes_AS_STRING(images)
        left: cython.longlong = len(images)
        head: cython.pointer(record_header)
        size: cython.longlong
        for of_one in queues:
            picked: tuple = of_one
            count: cython.Py_ssize_t = len(picked)
            head = cython.cast(cython.pointer(record_header), at)
            if not record_fits(at, left) or head.n_dispatch:
                raise LocalMisuse("an image is cut short or its sizes contradict each other")
            if not _is_count(head):
                raise LocalMisuse(f"{head.count} messages in a record with flags {head.flags:#x}")
            if count > self._queues_max:
                raise TooManyQueues(f"a record for {count} queues; at most {self._queues_max}")
            size = head.total + PAIR * count
            if size > self._record_limit:
                raise RecordTooLarge(f"a record of {size} bytes; the largest the store takes is {self._record_limit}")
            planned.image, planned.size, planned.part = at, size, part
            planned += 1
            self._size += size
            self._entries += count
            at += head.total
            left -= head.total
        if left:
            raise LocalMisuse(f"{left} bytes of images without queues")
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _encode_pieces(
        self,
        batch: Encoded,
        total: cython.Py_ssize_t,
        position: cython.longlong,
        segment_end: cython.longlong,
        next_segment,
    ) -> cython.longlong:
        """Write one piece per segment; return the end position of the last record."""
        at: cython.Py_ssize_t = 0
        room: cython.longlong
        filler: cython.longlong
        while at < total:
            room = segment_end - position
            self._plan(at, total, room)
            filler = 0 if at + self._fitting == total else room - self._bytes
            if self._bytes + filler:
                piece: bytes = PyBytes_FromStringAndSize(cython.NULL, self._bytes + filler)
                self._put_all(batch, at, PyBytes_AS_STRING(piece), position)
                at += self._fitting
                if filler:
                    self._put_filler(PyBytes_AS_STRING(piece) + self._bytes, filler, position + self._bytes)
                batch._pieces.append((position, piece))
                position += self._bytes + filler
            if at < total:
                segment_end = next_segment(position)
        return position

    @cython.cfunc
    @cython.exceptval(-1)
    def _plan(self, at: cython.Py_ssize_t, total: cython.Py_ssize_t, room: cython.longlong) -> cython.int:
        """Count the messages from `at` on that fit into `room` bytes, and their bytes.

        The space left after a record is none or at least a header, so that a filler always fits.
        """
        size: cython.longlong
        left: cython.longlong = room
        first: cython.Py_ssize_t = at
        while at < total:
            size = self._planned[at].size
            if left != size and left - size < HEADER:
                break
            left -= size
            at += 1
        self._fitting, self._bytes = at - first, room - left
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _put_all(
        self, batch: Encoded, first: cython.Py_ssize_t, to: cython.pointer(cython.char), position: cython.longlong
    ) -> cython.int:
        """Write the records that `_plan` counted, from message `first` on, for log position `position` at `to`."""
        size: cython.longlong
        at: cython.Py_ssize_t
        for at in range(first, first + self._fitting):
            size = self._put(batch, at, to, position)
            to += size
            position += size
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _put(
        self, batch: Encoded, at: cython.Py_ssize_t, to: cython.pointer(cython.char), position: cython.longlong
    ) -> cython.longlong:
        """Write the record of image `at` to `to`, and make its entries; return the size of the record."""
        planned: cython.pointer(Planned) = self._planned + at
        image: cython.pointer(cython.char) = planned.image
        head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), to)
        tail: cython.longlong = cython.cast(cython.pointer(record_header), image).total - HEADER
        added: cython.longlong = planned.size - HEADER - tail
        memcpy(to, image, HEADER)
        memcpy(to + HEADER + added, image + HEADER, tail)
        flags: cython.uint = head.flags & ~GROUP_OPEN
        head.total, head.body_off, head.n_dispatch = planned.size, head.body_off + added, added // PAIR
        head.epoch, head.position, head.store_ms = self._epoch, position, self._store_ms
        if head.keys_len or (head.n_props and not flags & MQTT):
            batch.keyed = True
        head.flags = flags | GROUP_OPEN if at < self._last and (head.magic == CONTROL or self._atomic) else flags
        head.tag_hash = self._tag(head, to + HEADER + added) if head.tags_len else 0
        self._dispatch(cython.cast(cython.pointer(record_dispatch), to + HEADER), head)
        head.crc = record_checksum(to, head.total)
        if head.magic == CONTROL:
            batch.controls.append(position)
        else:
            batch.offsets.append(cython.cast(cython.pointer(record_dispatch), to + HEADER).offset if added else -1)
            if flags & KEPT_MASK == KEPT_VALUE:
                batch.retained.append((planned.part, image - PyBytes_AS_STRING(self._images[planned.part]), position))
        return head.total

    @cython.cfunc
    @cython.exceptval(0, check=True)
    def _tag(self, head: cython.pointer(record_header), meta: cython.pointer(cython.char)) -> cython.uint:
        """Return `record.tag_hash` of the image's tags."""
        value: cython.uint = 0
        row: cython.Py_ssize_t
        at: cython.pointer(cython.uchar) = cython.cast(
            cython.pointer(cython.uchar), meta + 4 * head.n_props + head.topic_len + head.keys_len
        )
        if not all_ascii(cython.cast(cython.pointer(cython.char), at), head.tags_len):
            return record.tag_hash(
                PyBytes_FromStringAndSize(cython.cast(cython.pointer(cython.char), at), head.tags_len)
            )
        for row in range(head.tags_len):
            value = 31 * value + at[row]
        return value

    @cython.cfunc
    @cython.exceptval(check=False)
    def _dispatch(self, to: cython.pointer(record_dispatch), head: cython.pointer(record_header)) -> cython.void:
        """Assign the record its offset in each queue, and advance the queues' rows."""
        row: cython.Py_ssize_t
        entry: cython.pointer(Entry) = self._entry
        line: cython.pointer(Row)
        for row in range(head.n_dispatch):
            if self._entries_end - entry > AHEAD:
                prefetch(self._rows + entry[AHEAD].queue)
            line = self._rows + entry.queue
            entry.offset, entry.position = line.next, head.position
            entry.size, entry.tag, entry.count = head.total, head.tag_hash, head.count
            to[row].queue, to[row].reserved, to[row].offset = entry.queue, 0, entry.offset
            line.next = entry.offset + head.count
            entry += 1
        self._entry = entry

    @cython.cfunc
    @cython.exceptval(check=False)
    def _put_filler(
        self, to: cython.pointer(cython.char), size: cython.longlong, position: cython.longlong
    ) -> cython.void:
        """Write a filler record up to the end of the segment."""
        head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), to)
        memset(to, 0, size)
        head.total, head.magic, head.epoch, head.position = size, FILLER, self._epoch, position
        head.body_len, head.body_off = size - HEADER, HEADER
        head.crc = record_checksum(to, size)


KEPT_MAX = cython.declare(cython.longlong, KEPT_BYTES_MAX)
COUNT = cython.declare(cython.Py_ssize_t, COUNT_AT)
END = cython.declare(cython.Py_ssize_t, END_AT)
BYTES_MAX = cython.declare(cython.longlong, 8 * 1024 * 1024)
"""Larger batches take the slow path, which reserves no memory for them."""
UNLOCKED_MIN = cython.declare(cython.longlong, 32768)
"""Writing this much takes longer than releasing and reacquiring the interpreter's lock."""


@cython.final
@cython.cclass
class SegmentWriter:
    """Writes batches into one range of a log file."""

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
        """Write into the file that starts at `base`, up to position `limit`; `counters` are those of the index tail."""
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
        """Append the images at `position`, their entries after number `count`; None when they do not fit the range.

        Raises RecordTooLarge, LocalMisuse, OSError; then up to `attempted` bytes may be in the file.
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
        """Return where to write the records: bytes kept by the batch or, for a large one, a reused buffer."""
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
        """Write `size` bytes; a short write is repeated, since it means that the disk is filling up."""
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
