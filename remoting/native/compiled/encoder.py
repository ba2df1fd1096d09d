"""The compiled twin, second part: images become records, offsets and index entries. Pure-Python-mode Cython.

A first pass checks sizes, a second one says how many images fit into the segment, a third one stamps them where they
stay. Invariant: byte for byte what the pure twin makes; a batch that fails leaves the rows as they
were. Thread rule: loop thread, holding the interpreter's lock.
"""

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.remoting.native.compiled.encoder import prefetch_row
from cython.cimports.remoting.native.compiled.machine import (
    all_ascii,
    crc32c_ready,
    record_checksum,
    record_dispatch,
    record_fits,
    record_header,
)
from cython.cimports.remoting.native.compiled.ring import Entry, EntryBlock, Ring

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from remoting.native.contracts import RETAINED_MASK, RETAINED_VALUE
from remoting.protocol.errors import LocalMisuse, RecordTooLarge
from remoting.protocol.records import record

crc32c_ready()
HEADER = cython.declare(cython.longlong, 80)
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
AHEAD = cython.declare(cython.Py_ssize_t, 8)
"""How many messages before its turn a message's rows are asked for."""


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_count(head: cython.pointer(record_header)) -> cython.bint:
    """`record.is_count`, for the types that are written here."""
    if head.magic == BATCH:
        return head.flags & FORMAT_MASK and 1 <= head.count <= COUNT_MAX
    return (head.magic == MESSAGE or head.magic == CONTROL) and head.count == 1 and not head.flags & FORMAT_MASK


@cython.final
@cython.cclass
class Encoded:
    """A batch as bytes."""

    @property
    def pieces(self):
        """(log position, bytes) per segment; nothing where a large batch is not kept."""
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
        images: bytes,
        queues: list,
        atomic: cython.bint,
        store_ms: cython.longlong,
        queue_limit: cython.longlong,
        position: cython.longlong,
        segment_end: cython.longlong,
        next_segment,
    ):
        """Return the records of the images from `position` on, `queues` of each."""
        batch: Encoded = self._begin(ring, images, queues, atomic, store_ms, queue_limit, position)
        batch._pieces = []
        try:
            batch.end_position = self._encode_pieces(batch, self._last + 1, position, segment_end, next_segment)
        except BaseException as error:
            self._undo(ring, batch)
            if isinstance(error, (OverflowError, TypeError)):
                raise LocalMisuse(f"a queue of a message is none: {error}") from error
            raise
        finally:
            self._images = self._queues = None
        batch.entries._length = self._entry - batch.entries._at
        return batch

    @cython.cfunc
    def _begin(
        self,
        ring: Ring,
        images: bytes,
        queues: list,
        atomic: cython.bint,
        store_ms: cython.longlong,
        queue_limit: cython.longlong,
        position: cython.longlong,
    ) -> Encoded:
        """Return an empty batch with room for the entries; what stands still while it is filled is set."""
        batch: Encoded = Encoded.__new__(Encoded)
        packed: bytes = PyBytes_FromStringAndSize(cython.NULL, 32 * self._count_entries(images, queues))
        batch.entries = EntryBlock.__new__(EntryBlock)
        batch.entries._packed, batch.entries._length = packed, 0
        batch.entries._at = cython.cast(cython.pointer(Entry), PyBytes_AS_STRING(packed))
        batch.first_position, batch.offsets, batch.retained, batch.controls = position, [], [], []
        self._images, self._queues = images, queues
        self._store_ms, self._queue_limit = store_ms, min(queue_limit, ring._queues)
        self._rows = ring._rows
        self._last, self._atomic = len(queues) - 1, atomic
        self._at, self._entry = 0, batch.entries._at
        return batch

    @cython.cfunc
    @cython.exceptval(-1)
    def _undo(self, ring: Ring, batch: Encoded) -> cython.int:
        """Take the offsets given out so far back."""
        batch.entries._length = self._entry - batch.entries._at
        ring.undo(batch.entries)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _count_entries(self, images: bytes, queues: list) -> cython.Py_ssize_t:
        """Return how many index entries the images make; LocalMisuse unless each is whole and has its queues."""
        total: cython.Py_ssize_t = 0
        at: cython.pointer(cython.char) = PyBytes_AS_STRING(images)
        left: cython.longlong = len(images)
        head: cython.pointer(record_header)
        for of_one in queues:
            picked: tuple = of_one
            count: cython.Py_ssize_t = len(picked)
            head = cython.cast(cython.pointer(record_header), at)
            if not record_fits(at, left) or head.n_dispatch:
                raise LocalMisuse("an image is cut short or its sizes contradict each other")
            if not _is_count(head):
                raise LocalMisuse(f"{head.count} messages in a record with flags {head.flags:#x}")
            if count > self._queues_max:
                raise LocalMisuse(f"a record for {count} queues; at most {self._queues_max}")
            if head.total + PAIR * count > self._record_limit:
                size: cython.longlong = head.total + PAIR * count
                raise RecordTooLarge(f"a record of {size} bytes; the largest the store takes is {self._record_limit}")
            total += count
            at += head.total
            left -= head.total
        if left:
            raise LocalMisuse(f"{left} bytes of images without queues")
        return total

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
        """Write piece after piece, one per segment; return where the last record ends."""
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
        """Find out how many messages from `at` fit into `room` bytes, and how many bytes they take.

        What stays free behind a record is nothing or at least a header, so that a filler always fits.
        """
        size: cython.longlong
        left: cython.longlong = room
        first: cython.Py_ssize_t = at
        image: cython.pointer(cython.char) = PyBytes_AS_STRING(self._images) + self._at
        while at < total:
            size = cython.cast(cython.pointer(record_header), image).total
            image += size
            size += PAIR * len(cython.cast(tuple, self._queues[at]))
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
        """Write the records of the messages from `first` that `_plan` found to fit, at `position` and `to`."""
        size: cython.longlong
        at: cython.Py_ssize_t
        for at in range(first, first + self._fitting):
            if at + AHEAD <= self._last:
                self._prefetch(self._queues[at + AHEAD])
            size = self._put(batch, at, to, position)
            to += size
            position += size
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def _prefetch(self, queues: tuple) -> cython.void:
        """Ask for the memory of the rows that a later message needs: most of a million queues are in no cache."""
        for queue in queues:
            prefetch_row(self._rows, queue, self._queue_limit)

    @cython.cfunc
    @cython.exceptval(-1)
    def _put(
        self, batch: Encoded, at: cython.Py_ssize_t, to: cython.pointer(cython.char), position: cython.longlong
    ) -> cython.longlong:
        """Stamp image `at` to `to`, and make its entries; return the size of the record."""
        image: cython.pointer(cython.char) = PyBytes_AS_STRING(self._images) + self._at
        head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), to)
        queues: tuple = self._queues[at]
        added: cython.longlong = PAIR * len(queues)
        tail: cython.longlong = cython.cast(cython.pointer(record_header), image).total - HEADER
        memcpy(to, image, HEADER)
        memcpy(to + HEADER + added, image + HEADER, tail)
        flags: cython.uint = head.flags & ~GROUP_OPEN
        head.total, head.body_off, head.n_dispatch = HEADER + added + tail, head.body_off + added, len(queues)
        head.epoch, head.position, head.store_ms = self._epoch, position, self._store_ms
        if head.keys_len or (head.n_props and not flags & MQTT):
            batch.keyed = True
        head.flags = flags | GROUP_OPEN if at < self._last and (head.magic == CONTROL or self._atomic) else flags
        head.tag_hash = self._tag(head, to + HEADER + added) if head.tags_len else 0
        self._dispatch(queues, cython.cast(cython.pointer(record_dispatch), to + HEADER), head)
        head.crc = record_checksum(to, head.total)
        if head.magic == CONTROL:
            batch.controls.append(position)
        else:
            batch.offsets.append(cython.cast(cython.pointer(record_dispatch), to + HEADER).offset if added else -1)
            if flags & KEPT_MASK == KEPT_VALUE:
                batch.retained.append((self._at, position))
        self._at += HEADER + tail
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
    @cython.exceptval(-1)
    def _dispatch(
        self,
        queues: tuple,
        to: cython.pointer(record_dispatch),
        head: cython.pointer(record_header),
    ) -> cython.int:
        """Give the record its offset in each queue, and move the queues' rows on."""
        queue: cython.longlong
        row: cython.Py_ssize_t
        for row in range(len(queues)):
            queue = queues[row]
            if not 0 <= queue < self._queue_limit:
                raise LocalMisuse(f"queue id {queue} does not exist")
            entry = self._entry
            entry.offset, entry.position = self._rows[queue].next, head.position
            entry.queue, entry.size, entry.tag, entry.count = queue, head.total, head.tag_hash, head.count
            to[row].queue, to[row].reserved, to[row].offset = queue, 0, entry.offset
            self._rows[queue].next = entry.offset + head.count
            self._entry += 1
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def _put_filler(
        self, to: cython.pointer(cython.char), size: cython.longlong, position: cython.longlong
    ) -> cython.void:
        """Write a record of nothing up to the end of the segment."""
        head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), to)
        memset(to, 0, size)
        head.total, head.magic, head.epoch, head.position = size, FILLER, self._epoch, position
        head.body_len, head.body_off = size - HEADER, HEADER
        head.crc = record_checksum(to, size)
