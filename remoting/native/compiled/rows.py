"""The compiled twin: images and staged records to messages, no step of Python for each. Pure-Python-mode Cython.

An image is looked at once: its sizes are checked as `image.check_image` checks them, its properties for what
makes a message wait or remembered for a time. Invariant: what is made here is, field for field, what the careful way
makes; what is not plain, and everything malformed, is left to that way by answering None. Thread rule: loop thread,
holding the interpreter's lock.
"""

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.string import memcmp
from cython.cimports.remoting.native.compiled.machine import (
    bare_instance,
    crc32c_ready,
    fill_slot,
    record_checksum,
    record_fits,
    record_header,
    slot_place,
)

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from broker.store.store_message import StoreMessage
from remoting.protocol.records import image, record

crc32c_ready()
HEADER = cython.declare(cython.longlong, record.HEADER_SIZE)
PAIR = cython.declare(cython.longlong, record.DISPATCH_SIZE)
MESSAGE_TYPE = cython.declare(cython.uint, record.MESSAGE)
KIND_MQTT = cython.declare(cython.uint, 0)
KIND_QUEUE = cython.declare(cython.uint, 1)
ANY_QUEUE = cython.declare(cython.uint, image.QUEUE_INDEX_ANY)
MQTT_FLAGS = cython.declare(cython.uint, image.MQTT_FLAGS)
QUEUE_FLAGS = cython.declare(cython.uint, image.QUEUE_FLAGS)
MQTT = cython.declare(cython.uint, record.FLAG_MQTT)
RETAIN = cython.declare(cython.uint, record.FLAG_RETAIN)
STAGED = cython.declare(cython.uint, record.FLAG_STAGED)
UPPER = cython.declare(cython.uint, 0xFFFFFF00)
"""Flags that a staged record keeps where they were."""
TOPIC_KEY = cython.declare(bytes, record.MQTT_TOPIC_KEY)
TOPIC_KEY_LEN = cython.declare(cython.int, len(record.MQTT_TOPIC_KEY))

Parts = cython.struct(
    meta=cython.p_char, body=cython.p_char, born_ms=cython.longlong, n_props=cython.longlong,
    topic_len=cython.longlong, keys_len=cython.longlong, tags_len=cython.longlong, props_len=cython.longlong,
    body_len=cython.longlong, kind=cython.uint, flags=cython.uint, queue_index=cython.uint, tag_hash=cython.uint,
)  # fmt: skip


def _place(name):
    place = slot_place(getattr(StoreMessage, name))
    assert place > 0, name
    return place


assert len(StoreMessage.__slots__) == 13, "a slot that is not filled here"
MESSAGE = cython.declare(object, StoreMessage)
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
@cython.exceptval(check=False)
def _texts_len(one: cython.pointer(Parts)) -> cython.longlong:
    """Bytes of an image's meta in front of its properties."""
    return 4 * one.n_props + one.topic_len + one.keys_len + one.tags_len


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_named(
    at: cython.p_char, length: cython.longlong, name: cython.p_char, name_len: cython.longlong
) -> cython.bint:
    return length == name_len and memcmp(at, name, name_len) == 0


@cython.cfunc
@cython.exceptval(check=False)
def _is_plain(one: cython.pointer(Parts)) -> cython.bint:
    """Whether the property lengths add up and no property asks for more than to be stored."""
    lengths: cython.pointer(cython.ushort) = cython.cast(cython.pointer(cython.ushort), one.meta)
    at: cython.p_char = one.meta + _texts_len(one)
    end: cython.p_char = at + one.props_len
    row: cython.longlong
    key_len: cython.longlong
    if one.kind == KIND_MQTT:
        if one.n_props == 0 or lengths[0] != TOPIC_KEY_LEN or one.props_len < TOPIC_KEY_LEN:
            return False
        if memcmp(at, PyBytes_AS_STRING(TOPIC_KEY), TOPIC_KEY_LEN) != 0:
            return False
    elif one.kind != KIND_QUEUE:
        return False
    for row in range(one.n_props):
        key_len = lengths[2 * row]
        if key_len + lengths[2 * row + 1] > end - at:
            return False
        if one.kind == KIND_MQTT:
            if _is_named(at, key_len, b"delay-ms", 8) or (
                one.flags & RETAIN and _is_named(at, key_len, b"mqttExpiry", 10)
            ):
                return False
        elif (
            _is_named(at, key_len, b"DELAY", 5)
            or _is_named(at, key_len, b"INNER_MULTI_DISPATCH", 20)
            or (key_len > 6 and memcmp(at, b"TIMER_", 6) == 0)
        ):
            return False
        at += key_len + lengths[2 * row + 1]
    return at == end


@cython.cfunc
@cython.exceptval(check=False)
def _image(at: cython.p_char, available: cython.longlong, one: cython.pointer(Parts)) -> cython.longlong:
    """Read the image at `at`; return its size, 0 when it is not sound or not plain."""
    head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), at)
    if not record_fits(at, available) or head.magic != MESSAGE_TYPE or head.count != 1 or head.n_dispatch or head.crc:
        return 0
    if head.position or head.store_ms or head.tag_hash or head.producer_seq or head.epoch > ANY_QUEUE:
        return 0
    one.kind = KIND_MQTT if head.flags & MQTT else KIND_QUEUE
    if head.flags & ~(MQTT_FLAGS if one.kind == KIND_MQTT else QUEUE_FLAGS):
        return 0
    _parts(head, one)
    one.meta, one.body = at + HEADER, at + head.body_off
    one.flags, one.queue_index, one.tag_hash = head.flags, head.epoch, 0
    return head.total if _is_plain(one) else 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _parts(head: cython.pointer(record_header), one: cython.pointer(Parts)) -> cython.void:
    one.n_props, one.topic_len, one.keys_len, one.tags_len = head.n_props, head.topic_len, head.keys_len, head.tags_len
    one.props_len, one.body_len, one.born_ms = head.props_len, head.body_len, head.born_ms


@cython.cfunc
@cython.exceptval(check=False)
def _record(at: cython.p_char, available: cython.longlong, one: cython.pointer(Parts)) -> cython.bint:
    """Read the staged record at `at`; False when it is not sound or not plain."""
    head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), at)
    if not record_fits(at, available) or head.magic != MESSAGE_TYPE or not head.flags & STAGED:
        return False
    _parts(head, one)
    meta_at: cython.longlong = HEADER + PAIR * head.n_dispatch
    if record_checksum(at, head.total) != head.crc:
        return False
    one.meta, one.body = at + meta_at, at + head.body_off
    one.queue_index, one.kind = head.producer_seq & 0xFFFF, head.producer_seq >> 16 & 0xFF
    one.flags, one.tag_hash = head.producer_seq >> 24 & 0xFF | head.flags & UPPER, head.tag_hash
    return _is_plain(one)


@cython.cfunc
@cython.exceptval(check=False)
def _hash_tags(one: cython.pointer(Parts)) -> cython.bint:
    """Fill in the tag's hash; False for a tag that is not ASCII."""
    value: cython.uint = 0
    at: cython.pointer(cython.uchar) = cython.cast(
        cython.pointer(cython.uchar), one.meta + 4 * one.n_props + one.topic_len + one.keys_len
    )
    row: cython.longlong
    for row in range(one.tags_len):
        if at[row] > 127:
            return False
        value = 31 * value + at[row]
    one.tag_hash = value
    return True


@cython.cfunc
def _message(one: cython.pointer(Parts), queues, flags: cython.uint, producer_seq: cython.longlong) -> object:
    message = bare_instance(MESSAGE)
    fill_slot(message, QUEUES, queues)
    fill_slot(message, BORN_MS, one.born_ms)
    fill_slot(message, FLAGS, flags)
    fill_slot(message, TAG_HASH, one.tag_hash)
    fill_slot(message, N_PROPS, one.n_props)
    fill_slot(message, TOPIC_LEN, one.topic_len)
    fill_slot(message, KEYS_LEN, one.keys_len)
    fill_slot(message, TAGS_LEN, one.tags_len)
    fill_slot(message, PROPS_LEN, one.props_len)
    fill_slot(message, META, PyBytes_FromStringAndSize(one.meta, _texts_len(one) + one.props_len))
    fill_slot(message, BODY, PyBytes_FromStringAndSize(one.body, one.body_len))
    fill_slot(message, PRODUCER_SEQ, producer_seq)
    fill_slot(message, COUNT, 1)
    return message


@cython.cfunc
def _topic(one: cython.pointer(Parts)) -> bytes:
    """The MQTT topic of an MQTT row, the RocketMQ topic of another."""
    if one.kind == KIND_MQTT:
        lengths: cython.pointer(cython.ushort) = cython.cast(cython.pointer(cython.ushort), one.meta)
        return PyBytes_FromStringAndSize(one.meta + _texts_len(one) + TOPIC_KEY_LEN, lengths[1])
    return PyBytes_FromStringAndSize(one.meta + 4 * one.n_props, one.topic_len)


@cython.final
@cython.cclass
class Rows:
    """What stands still during one call: where messages go, and the queues of RocketMQ topics with their turns."""

    _queues: dict
    _missed: object
    _writable: object
    _turned: object
    _body_max: cython.longlong
    _properties_max: cython.longlong
    _plain: dict
    _counts: dict

    def __init__(self, way):
        self._queues, self._missed = way.queues, way.missed
        self._writable, self._turned = way.writable, way.turned
        self._body_max, self._properties_max = way.body_bytes_max, way.properties_bytes_max
        self._plain, self._counts = {}, {}

    @cython.cfunc
    def _go(self, one: cython.pointer(Parts)) -> object:
        """The queues of a row, None when it names one that is not there.

        Raises what the careful way raises for a topic that cannot be written to.
        """
        topic: bytes = _topic(one)
        if one.kind == KIND_MQTT:
            found = self._queues.get(topic)
            return found or self._missed(topic)
        known: tuple = self._plain.get(topic)
        if known is None:
            known = self._plain[topic] = self._writable(topic)
        queues: tuple = known[0]
        if one.queue_index != ANY_QUEUE:
            return queues[one.queue_index] if one.queue_index < len(queues) else None
        count: cython.Py_ssize_t = self._counts.get(topic, 0)
        self._counts[topic] = count + 1
        turn: cython.Py_ssize_t = known[1]
        return queues[(turn + count) % len(queues)]

    @cython.cfunc
    @cython.exceptval(check=False)
    def _fits(self, one: cython.pointer(Parts)) -> cython.bint:
        return one.body_len <= self._body_max and one.props_len <= self._properties_max

    @cython.cfunc
    def _placed(self, one: cython.pointer(Parts)) -> object:
        """The row as a message for everybody; None when it names a queue that is not there."""
        queues = self._go(one)
        if queues is None:
            return None
        if one.kind == KIND_MQTT:
            return _message(one, queues, one.flags, 0)
        return _message(one, queues, one.flags, 0)

    @cython.cfunc
    def _told(self, made: list) -> list:
        """Report how many messages took turns in each topic."""
        for topic, count in self._counts.items():
            self._turned(topic, count)
        return made


@cython.cfunc
def _made(body: bytes, rows: Rows, hidden) -> object:
    """The body's images as messages, staged in the queue `hidden` or (None) placed; None: the careful way decides."""
    at: cython.p_char = PyBytes_AS_STRING(body)
    end: cython.p_char = PyBytes_AS_STRING(body) + len(body)
    one: Parts
    size: cython.longlong
    seq: cython.longlong
    made: list = []
    while at < end:
        size = _image(at, end - at, cython.address(one))
        if size == 0 or not rows._fits(cython.address(one)) or not _hash_tags(cython.address(one)):
            return None
        at += size
        if hidden is None:
            message = rows._placed(cython.address(one))
        elif rows._go(cython.address(one)) is None:
            message = None
        else:
            seq = one.flags & 0xFF
            seq = one.queue_index | one.kind << 16 | seq << 24
            message = _message(cython.address(one), hidden, STAGED | one.flags & UPPER, seq)
        if message is None:
            return None
        made.append(message)
    return made or None


def staged(body: bytes, way, hidden: tuple):
    """The images of a body as staged messages of the queue `hidden`; None when one of them is not plain."""
    return _made(body, Rows(way), hidden)


def placed(body: bytes, way):
    """The images of a body as messages with their queues; None when one of them is not plain."""
    rows: Rows = Rows(way)
    made = _made(body, rows, None)
    return None if made is None else rows._told(made)


@cython.boundscheck(False)
@cython.wraparound(False)
def shown(blob: cython.const[cython.uchar][::1], starts: cython.const[cython.uint][::1], way):
    """Staged records as the messages they were sent as, with their queues; None when one is not plain or not sound."""
    rows: Rows = Rows(way)
    one: Parts
    row: cython.Py_ssize_t
    at: cython.longlong
    size: cython.longlong = blob.shape[0]
    made: list = []
    for row in range(starts.shape[0]):
        at = starts[row]
        if at % 8 or at > size - HEADER:
            return None
        if not _record(cython.cast(cython.p_char, cython.address(blob[at])), size - at, cython.address(one)):
            return None
        if not rows._fits(cython.address(one)):
            return None
        message = rows._placed(cython.address(one))
        if message is None:
            return None
        made.append(message)
    return rows._told(made)


def topics(body: bytes):
    """The topics the images of a body are for, each once; None when one of them is not plain."""
    at: cython.p_char = PyBytes_AS_STRING(body)
    end: cython.p_char = PyBytes_AS_STRING(body) + len(body)
    one: Parts
    size: cython.longlong
    found: set = set()
    while at < end:
        size = _image(at, end - at, cython.address(one))
        if size == 0:
            return None
        at += size
        found.add(_topic(cython.address(one)))
    return found or None
