"""The compiled twin: checks record images and finds their queues, without Python per image. Pure-Python-mode Cython.

One pass per image: its sizes are checked as by `image.check_image`, its properties for those that delay a message or
have it remembered for deduplication. Invariant: the queues and refusals are those of the pure twin. Thread rule: loop
thread, holding the interpreter's lock.
"""

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.string import memcmp, memcpy
from cython.cimports.remoting.native.compiled.machine import crc32c_ready, record_checksum, record_fits, record_header

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.records import image, record

crc32c_ready()
HEADER = cython.declare(cython.longlong, record.HEADER_SIZE)
PAIR = cython.declare(cython.longlong, record.DISPATCH_SIZE)
MESSAGE_TYPE = cython.declare(cython.uint, record.MESSAGE)
BATCH_TYPE = cython.declare(cython.uint, record.BATCH)
COUNT_MAX = cython.declare(cython.uint, record.BATCH_COUNT_MAX)
KIND_MQTT = cython.declare(cython.uint, image.KIND_MQTT)
KIND_QUEUE = cython.declare(cython.uint, image.KIND_QUEUE)
KIND_BATCH = cython.declare(cython.uint, image.KIND_BATCH)
ANY_QUEUE = cython.declare(cython.uint, image.QUEUE_INDEX_ANY)
MQTT_FLAGS = cython.declare(cython.uint, image.MQTT_FLAGS)
QUEUE_FLAGS = cython.declare(cython.uint, image.QUEUE_FLAGS)
BATCH_FLAGS = cython.declare(cython.uint, image.BATCH_FLAGS)
MQTT = cython.declare(cython.uint, record.FLAG_MQTT)
RETAIN = cython.declare(cython.uint, record.FLAG_RETAIN)
QOS_MASK = cython.declare(cython.uint, record.FLAG_QOS_MASK)
STAGED = cython.declare(cython.uint, record.FLAG_STAGED)
FORMAT_MASK = cython.declare(cython.uint, record.FLAG_FORMAT_MASK)
FORMAT_SHIFT = cython.declare(cython.int, record.FLAG_FORMAT_SHIFT)
UPPER = cython.declare(cython.uint, 0xFFFFFF00)
"""Flags that a staged record keeps in place."""
TOPIC_KEY = cython.declare(bytes, record.MQTT_TOPIC_KEY)
TOPIC_KEY_LEN = cython.declare(cython.int, len(record.MQTT_TOPIC_KEY))
CHECK = cython.declare(object, image.check_image)
MALFORMED = cython.declare(cython.int, 0)
PLAIN = cython.declare(cython.int, 1)
ASKS_MORE = cython.declare(cython.int, 2)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _texts_len(head: cython.pointer(record_header)) -> cython.longlong:
    """Bytes of an image's meta before its properties."""
    return 4 * head.n_props + head.topic_len + head.keys_len + head.tags_len


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _kind(head: cython.pointer(record_header)) -> cython.uint:
    return KIND_BATCH if head.magic == BATCH_TYPE else KIND_MQTT if head.flags & MQTT else KIND_QUEUE


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_named(
    at: cython.p_char, length: cython.longlong, name: cython.p_char, name_len: cython.longlong
) -> cython.bint:
    return length == name_len and memcmp(at, name, name_len) == 0


@cython.cfunc
@cython.exceptval(check=False)
def _check(at: cython.p_char, available: cython.longlong) -> cython.int:
    """Whether the image at `at` is sound and, if so, whether it needs more than storing."""
    head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), at)
    if not record_fits(at, available) or head.n_dispatch:
        return MALFORMED
    if head.position or head.store_ms or head.tag_hash or head.producer_seq or head.epoch > ANY_QUEUE:
        return MALFORMED
    if head.magic == BATCH_TYPE:
        if head.flags & ~BATCH_FLAGS or not 1 <= head.count <= COUNT_MAX or head.crc:
            return MALFORMED
        return MALFORMED if head.n_props or head.keys_len or head.tags_len or head.props_len else ASKS_MORE
    if head.magic != MESSAGE_TYPE or head.count != 1:
        return MALFORMED
    if head.flags & MQTT:
        return MALFORMED if head.flags & ~MQTT_FLAGS else _check_mqtt(at, head)
    return MALFORMED if head.flags & ~QUEUE_FLAGS or head.crc else _check_queue(at, head)


@cython.cfunc
@cython.exceptval(check=False)
def _check_mqtt(image_at: cython.p_char, head: cython.pointer(record_header)) -> cython.int:
    lengths: cython.pointer(cython.ushort) = cython.cast(cython.pointer(cython.ushort), image_at + HEADER)
    at: cython.p_char = image_at + HEADER + _texts_len(head)
    end: cython.p_char = at + head.props_len
    found: cython.int = PLAIN
    row: cython.longlong
    key_len: cython.longlong
    if head.n_props == 0 or lengths[0] != TOPIC_KEY_LEN or head.props_len < TOPIC_KEY_LEN:
        return MALFORMED
    if memcmp(at, PyBytes_AS_STRING(TOPIC_KEY), TOPIC_KEY_LEN) != 0:
        return MALFORMED
    if head.crc:
        if head.flags & QOS_MASK != 2 or head.n_props < 2 or head.crc > 0xFFFF:
            return MALFORMED
        found = ASKS_MORE
    for row in range(head.n_props):
        key_len = lengths[2 * row]
        if key_len + lengths[2 * row + 1] > end - at:
            return MALFORMED
        if _is_named(at, key_len, b"delay-ms", 8) or (
            head.flags & RETAIN and _is_named(at, key_len, b"mqttExpiry", 10)
        ):
            found = ASKS_MORE
        at += key_len + lengths[2 * row + 1]
    return found if at == end else MALFORMED


@cython.cfunc
@cython.exceptval(check=False)
def _check_queue(image_at: cython.p_char, head: cython.pointer(record_header)) -> cython.int:
    lengths: cython.pointer(cython.ushort) = cython.cast(cython.pointer(cython.ushort), image_at + HEADER)
    at: cython.p_char = image_at + HEADER + _texts_len(head)
    end: cython.p_char = at + head.props_len
    found: cython.int = PLAIN
    row: cython.longlong
    key_len: cython.longlong
    for row in range(head.n_props):
        key_len = lengths[2 * row]
        if key_len + lengths[2 * row + 1] > end - at:
            return MALFORMED
        if (
            _is_named(at, key_len, b"DELAY", 5)
            or _is_named(at, key_len, b"INNER_MULTI_DISPATCH", 20)
            or (key_len > 6 and memcmp(at, b"TIMER_", 6) == 0)
        ):
            found = ASKS_MORE
        at += key_len + lengths[2 * row + 1]
    return found if at == end else MALFORMED


@cython.cfunc
def _topic(at: cython.p_char) -> bytes:
    """Return the MQTT topic of an MQTT image, the RocketMQ topic of any other."""
    head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), at)
    if head.flags & MQTT:
        lengths: cython.pointer(cython.ushort) = cython.cast(cython.pointer(cython.ushort), at + HEADER)
        return PyBytes_FromStringAndSize(at + HEADER + _texts_len(head) + TOPIC_KEY_LEN, lengths[1])
    return PyBytes_FromStringAndSize(at + HEADER + 4 * head.n_props, head.topic_len)


@cython.final
@cython.cclass
class Walk:
    """Constants of one call: where messages go, and the queues of RocketMQ topics with their round-robin counts."""

    _queues: dict
    _missed: object
    _writable: object
    _plain: dict
    _counts: dict

    def __init__(self, way):
        self._queues, self._missed, self._writable = way.queues, way.missed, way.writable
        self._plain, self._counts = {}, {}

    @cython.cfunc
    def _go(self, at: cython.p_char) -> object:
        """Return the queues of an image, None when it names a queue that does not exist.

        Raises what the placement raises for a topic that takes no writes.
        """
        head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), at)
        topic: bytes = _topic(at)
        if head.flags & MQTT:
            found = self._queues.get(topic)
            return found or self._missed(topic)
        known: tuple = self._plain.get(topic)
        if known is None:
            known = self._plain[topic] = self._writable(topic)
        queues: tuple = known[0]
        if head.epoch != ANY_QUEUE:
            return queues[head.epoch] if head.epoch < len(queues) else None
        count: cython.Py_ssize_t = self._counts.get(topic, 0)
        self._counts[topic] = count + 1
        turn: cython.Py_ssize_t = known[1]
        return queues[(turn + count) % len(queues)]


@cython.cfunc
@cython.exceptval(-1)
def _refuse(images: bytes, at: cython.longlong, number: cython.longlong) -> cython.int:
    """Raise RemoteViolation with what is wrong with image `number`."""
    CHECK(images, at, number)
    raise RemoteViolation(f"image {number} is malformed")


def placed(images: bytes, way):
    """Return the queues of each image, and (number, start) of those that need more than storing, with queues None."""
    walk: Walk = Walk(way)
    body_max: cython.longlong = way.body_bytes_max
    properties_max: cython.longlong = way.properties_bytes_max
    begin: cython.p_char = PyBytes_AS_STRING(images)
    at: cython.longlong = 0
    number: cython.longlong = 0
    size: cython.longlong = len(images)
    kind: cython.int
    head: cython.pointer(record_header)
    queues: list = []
    odd: list = []
    while at < size:
        head = cython.cast(cython.pointer(record_header), begin + at)
        kind = _check(begin + at, size - at)
        if kind == MALFORMED:
            _refuse(images, at, number)
        if head.body_len > body_max or head.props_len > properties_max:
            raise way.too_large(head.body_len, head.props_len)
        found = walk._go(begin + at) if kind == PLAIN else None
        if found is None:
            odd.append((number, at))
        queues.append(found)
        at += head.total
        number += 1
    for topic, count in walk._counts.items():
        way.turned(topic, count)
    return queues, odd


def topics(images: bytes):
    """Return the distinct topics of the images."""
    begin: cython.p_char = PyBytes_AS_STRING(images)
    at: cython.longlong = 0
    number: cython.longlong = 0
    size: cython.longlong = len(images)
    found: set = set()
    while at < size:
        if _check(begin + at, size - at) == MALFORMED:
            _refuse(images, at, number)
        found.add(_topic(begin + at))
        at += cython.cast(cython.pointer(record_header), begin + at).total
        number += 1
    return found


def hidden(images: bytes, own: cython.ulonglong):
    """Return the images as staged ones, see `image.hide`; they must have been checked."""
    size: cython.longlong = len(images)
    made: bytes = PyBytes_FromStringAndSize(PyBytes_AS_STRING(images), size)
    begin: cython.p_char = PyBytes_AS_STRING(made)
    at: cython.longlong = 0
    kept: cython.ulonglong
    head: cython.pointer(record_header)
    while at < size:
        head = cython.cast(cython.pointer(record_header), begin + at)
        kept = head.flags >> FORMAT_SHIFT if head.magic == BATCH_TYPE else head.flags
        kept &= 0xFF
        head.producer_seq = head.epoch | cython.cast(cython.ulonglong, _kind(head)) << 16 | kept << 24 | own << 32
        head.flags = STAGED | head.flags & UPPER
        head.epoch = 0
        at += head.total
    return made


@cython.boundscheck(False)
@cython.wraparound(False)
def shown(blob: cython.const[cython.uchar][::1], starts: cython.const[cython.uint][::1]):
    """Return staged records as the images they were sent as, see `image.show`; None when one is not sound."""
    row: cython.Py_ssize_t
    at: cython.longlong
    wanted: cython.longlong = 0
    size: cython.longlong = blob.shape[0]
    source: cython.p_char
    head: cython.pointer(record_header)
    for row in range(starts.shape[0]):
        at = starts[row]
        if at % 8 or at > size - HEADER:
            return None
        source = cython.cast(cython.p_char, cython.address(blob[at]))
        head = cython.cast(cython.pointer(record_header), source)
        if not record_fits(source, size - at) or not head.flags & STAGED:
            return None
        if head.magic != MESSAGE_TYPE and head.magic != BATCH_TYPE:
            return None
        if record_checksum(source, head.total) != head.crc:
            return None
        wanted += head.total - PAIR * head.n_dispatch
    made: bytes = PyBytes_FromStringAndSize(cython.NULL, wanted)
    to: cython.p_char = PyBytes_AS_STRING(made)
    for row in range(starts.shape[0]):
        to += _show(cython.cast(cython.p_char, cython.address(blob[starts[row]])), to)
    return made


@cython.cfunc
@cython.exceptval(check=False)
def _show(source: cython.p_char, to: cython.p_char) -> cython.longlong:
    """Write the image of the staged record at `source`; return its size."""
    head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), to)
    memcpy(to, source, HEADER)
    dropped: cython.longlong = PAIR * head.n_dispatch
    memcpy(to + HEADER, source + HEADER + dropped, head.total - HEADER - dropped)
    head.total, head.body_off, head.n_dispatch = head.total - dropped, head.body_off - dropped, 0
    head.flags = head.flags & UPPER | (0 if head.flags & FORMAT_MASK else head.producer_seq >> 24 & 0xFF)
    head.epoch, head.crc = head.producer_seq & 0xFFFF, 0
    head.position, head.store_ms, head.tag_hash, head.producer_seq = 0, 0, 0, 0
    return head.total
