"""The compiled twin, second part: messages become records, offsets and index entries. Pure-Python-mode Cython.

Messages are read by the places of their slots; a first pass says how many fit into the segment, a second one writes
them where they stay. Invariant: byte for byte what the pure twin makes; a batch that fails leaves the rows as they
were. Thread rule: loop thread, holding the interpreter's lock.
"""

import cython
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.remoting.native.compiled.encoder import prefetch_row
from cython.cimports.remoting.native.compiled.machine import (
    PyObject,
    crc32c_ready,
    record_checksum,
    record_dispatch,
    record_header,
    slot_object,
    slot_place,
)
from cython.cimports.remoting.native.compiled.ring import Entry, EntryBlock, Ring

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from broker.store.store_message import StoreMessage
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
U16_MAX = cython.declare(cython.longlong, 0xFFFF)
U32_MAX = cython.declare(cython.longlong, 0xFFFFFFFF)


def _place(name):
    place = slot_place(getattr(StoreMessage, name))
    assert place > 0, name
    return place


MESSAGE_CLASS = cython.declare(object, StoreMessage)
QUEUES = cython.declare(cython.Py_ssize_t, _place("queues"))
BORN_MS = cython.declare(cython.Py_ssize_t, _place("born_ms"))
FLAGS = cython.declare(cython.Py_ssize_t, _place("flags"))
TAG_HASH = cython.declare(cython.Py_ssize_t, _place("tag_hash"))
N_PROPS = cython.declare(cython.Py_ssize_t, _place("n_props"))
TOPIC_LEN = cython.declare(cython.Py_ssize_t, _place("topic_len"))
KEYS_LEN = cython.declare(cython.Py_ssize_t, _place("keys_len"))
TAGS_LEN = cython.declare(cython.Py_ssize_t, _place("tags_len"))
PROPS_LEN = cython.declare(cython.Py_ssize_t, _place("props_len"))
META = cython.declare(cython.Py_ssize_t, _place("meta"))
BODY = cython.declare(cython.Py_ssize_t, _place("body"))
PRODUCER_SEQ = cython.declare(cython.Py_ssize_t, _place("producer_seq"))
COUNT = cython.declare(cython.Py_ssize_t, _place("count"))


@cython.cfunc
@cython.inline
def _slot(message: object, place: cython.Py_ssize_t) -> object:
    found: cython.pointer(PyObject) = slot_object(message, place)
    if found == cython.NULL:
        raise AttributeError("a message without all of its fields")
    return cython.cast(object, found)


@cython.cfunc
@cython.inline
@cython.exceptval(-1, check=True)
def _number(message: object, place: cython.Py_ssize_t, most: cython.longlong) -> cython.longlong:
    number: cython.longlong = _slot(message, place)
    if not 0 <= number <= most:
        raise OverflowError(f"{number} is not from 0 to {most}")
    return number


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _body_size(body: object) -> cython.longlong:
    if type(body) is bytes:
        return len(cython.cast(bytes, body))
    return len(body)


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
        messages,
        controls: cython.Py_ssize_t,
        atomic: cython.bint,
        store_ms: cython.longlong,
        queue_limit: cython.longlong,
        position: cython.longlong,
        segment_end: cython.longlong,
        next_segment,
    ):
        """Return the records of `messages` from `position` on; the last `controls` of them are control records."""
        batch: Encoded = self._begin(ring, messages, controls, atomic, store_ms, queue_limit, position)
        batch._pieces = []
        try:
            batch.end_position = self._encode_pieces(batch, self._last + 1, position, segment_end, next_segment)
        except BaseException as error:
            self._undo(ring, batch)
            if isinstance(error, (OverflowError, TypeError)):
                raise LocalMisuse(f"a record field is out of range: {error}") from error
            raise
        finally:
            self._messages = None
        batch.entries._length = self._entry - batch.entries._at
        return batch

    @cython.cfunc
    def _begin(
        self,
        ring: Ring,
        messages,
        controls: cython.Py_ssize_t,
        atomic: cython.bint,
        store_ms: cython.longlong,
        queue_limit: cython.longlong,
        position: cython.longlong,
    ) -> Encoded:
        """Return an empty batch with room for the entries; what stands still while it is filled is set."""
        batch: Encoded = Encoded.__new__(Encoded)
        total: cython.Py_ssize_t = len(messages)
        packed: bytes = PyBytes_FromStringAndSize(cython.NULL, 32 * self._count_entries(messages))
        batch.entries = EntryBlock.__new__(EntryBlock)
        batch.entries._packed, batch.entries._length = packed, 0
        batch.entries._at = cython.cast(cython.pointer(Entry), PyBytes_AS_STRING(packed))
        batch.first_position, batch.offsets, batch.retained, batch.controls = position, [], [], []
        self._messages, self._store_ms, self._queue_limit = messages, store_ms, min(queue_limit, ring._queues)
        self._rows = ring._rows
        self._first_control, self._last, self._atomic = total - controls, total - 1, atomic
        self._entry = batch.entries._at
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
    def _count_entries(self, messages) -> cython.Py_ssize_t:
        total: cython.Py_ssize_t = 0
        for message in messages:
            if type(message) is not MESSAGE_CLASS:
                raise LocalMisuse(f"{type(message).__name__} is no StoreMessage")
            queues: tuple = _slot(message, QUEUES)
            if len(queues) > self._queues_max:
                raise LocalMisuse(f"a record for {len(queues)} queues; at most {self._queues_max}")
            total += len(queues)
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
        while at < total:
            message = self._messages[at]
            size = HEADER + PAIR * len(cython.cast(tuple, _slot(message, QUEUES)))
            size = (size + len(cython.cast(bytes, _slot(message, META))) + 7) & ~7
            size = (size + _body_size(_slot(message, BODY)) + 7) & ~7
            if size > self._record_limit:
                raise RecordTooLarge(f"a record of {size} bytes; the largest the store takes is {self._record_limit}")
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
                self._prefetch(self._messages[at + AHEAD])
            size = self._put(batch, at, to, position)
            to += size
            position += size
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def _prefetch(self, message) -> cython.void:
        """Ask for the memory of the rows that a later message needs: most of a million queues are in no cache."""
        queues: tuple = _slot(message, QUEUES)
        for queue in queues:
            prefetch_row(self._rows, queue, self._queue_limit)

    @cython.cfunc
    @cython.exceptval(-1)
    def _put(
        self, batch: Encoded, at: cython.Py_ssize_t, to: cython.pointer(cython.char), position: cython.longlong
    ) -> cython.longlong:
        """Write the record of message `at`, and its entries; return its size."""
        message = self._messages[at]
        head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), to)
        queues: tuple = _slot(message, QUEUES)
        meta: bytes = _slot(message, META)
        flags: cython.uint = _number(message, FLAGS, U32_MAX) & ~GROUP_OPEN
        is_control: cython.bint = at >= self._first_control
        head.n_dispatch = len(queues)
        self._put_numbers(message, head, len(meta))
        if head.keys_len or (head.n_props and not flags & MQTT):
            batch.keyed = True
        size: cython.longlong = self._put_bytes(to, HEADER + PAIR * len(queues), meta, _slot(message, BODY))
        head.magic = CONTROL if is_control else BATCH if flags & FORMAT_MASK else MESSAGE
        head.count = self._count(message, head.magic, flags)
        head.flags = flags | GROUP_OPEN if at < self._last and (is_control or self._atomic) else flags
        head.epoch, head.position, head.store_ms = self._epoch, position, self._store_ms
        self._dispatch(queues, cython.cast(cython.pointer(record_dispatch), to + HEADER), head)
        head.crc = record_checksum(to, size)
        if is_control:
            batch.controls.append(position)
        else:
            batch.offsets.append(
                cython.cast(cython.pointer(record_dispatch), to + HEADER).offset if head.n_dispatch else -1
            )
            if flags & KEPT_MASK == KEPT_VALUE:
                batch.retained.append((at, position))
        return size

    @cython.cfunc
    @cython.exceptval(-1)
    def _put_numbers(self, message, head: cython.pointer(record_header), meta_len: cython.longlong) -> cython.int:
        head.born_ms = _slot(message, BORN_MS)
        head.tag_hash = _number(message, TAG_HASH, U32_MAX)
        head.n_props = _number(message, N_PROPS, U16_MAX)
        head.topic_len = _number(message, TOPIC_LEN, U16_MAX)
        head.keys_len = _number(message, KEYS_LEN, U16_MAX)
        head.tags_len = _number(message, TAGS_LEN, U16_MAX)
        head.props_len = _number(message, PROPS_LEN, U16_MAX)
        head.producer_seq = _slot(message, PRODUCER_SEQ)
        parts: cython.longlong = 4 * head.n_props + head.topic_len + head.keys_len + head.tags_len + head.props_len
        if parts != meta_len:
            counts = (head.n_props, head.topic_len, head.keys_len, head.tags_len, head.props_len)
            raise LocalMisuse(f"meta of {meta_len} bytes does not have the lengths {counts}")
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _put_bytes(
        self, to: cython.pointer(cython.char), at: cython.longlong, meta: bytes, body: object
    ) -> cython.longlong:
        """Write meta, body and the zeros between and behind them; return the size of the record."""
        head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), to)
        meta_len: cython.longlong = len(meta)
        body_len: cython.longlong = _body_size(body)
        body_off: cython.longlong = (at + meta_len + 7) & ~7
        total: cython.longlong = (body_off + body_len + 7) & ~7
        view: Py_buffer
        memcpy(to + at, PyBytes_AS_STRING(meta), meta_len)
        memset(to + at + meta_len, 0, body_off - at - meta_len)
        if type(body) is bytes:
            memcpy(to + body_off, PyBytes_AS_STRING(body), body_len)
        else:
            PyObject_GetBuffer(body, cython.address(view), PyBUF_SIMPLE)
            try:
                assert view.len == body_len, (view.len, body_len)
                memcpy(to + body_off, view.buf, body_len)
            finally:
                PyBuffer_Release(cython.address(view))
        memset(to + body_off + body_len, 0, total - body_off - body_len)
        head.total, head.body_len, head.body_off = total, body_len, body_off
        return total

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _count(self, message, magic: cython.uint, flags: cython.uint) -> cython.longlong:
        """Return how many messages the record holds; `record.is_count` says how many it may."""
        count: cython.longlong = _slot(message, COUNT)
        if not 1 <= count <= (COUNT_MAX if magic == BATCH else 1):
            raise LocalMisuse(f"{count} messages in a record with flags {flags:#x}")
        return count

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
