"""The compiled twin: checks record images and finds their queues, without Python per image. Pure-Python-mode Cython.

One pass per image: its sizes are checked as by `image.check_image`, its properties for those that delay a message, name
light queues or have it remembered for deduplication. A message that waits for its time is made a staged one in a copy
of the images. Invariant: the queues, bytes and refusals are those of the pure twin; what is refused is not counted as
waiting. Thread rule: loop thread, holding the interpreter's lock.
"""

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcmp
from cython.cimports.remoting.native.compiled.delays import DueSpan, show
from cython.cimports.remoting.native.compiled.machine import crc32c_ready, record_checksum, record_fits, record_header

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from remoting.native.contracts import SPAN_MS
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.records import delay, image, record

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
FORMAT_SHIFT = cython.declare(cython.int, record.FLAG_FORMAT_SHIFT)
UPPER = cython.declare(cython.uint, 0xFFFFFF00)
"""Flags that a staged record keeps in place."""
TOPIC_KEY = cython.declare(bytes, record.MQTT_TOPIC_KEY)
TOPIC_KEY_LEN = cython.declare(cython.int, len(record.MQTT_TOPIC_KEY))
CHECK = cython.declare(object, image.check_image)
MALFORMED = cython.declare(cython.int, 0)
PLAIN = cython.declare(cython.int, 1)
ASKS_MORE = cython.declare(cython.int, 2)
NAMES_TIME = cython.declare(cython.int, 4)
NAMES_LIGHT = cython.declare(cython.int, 8)
"""What is known of an image, as bits."""
SPAN = cython.declare(cython.longlong, SPAN_MS)
SECOND = cython.declare(cython.longlong, 1_000)
DIGITS_MAX = cython.declare(cython.longlong, delay.DIGITS_MAX)
LEVELS = cython.declare(cython.longlong[18], delay.LEVELS_S)
LEVEL_MAX = cython.declare(cython.longlong, len(delay.LEVELS_S))
NO_TIME = cython.declare(cython.longlong, -1)
NO_NUMBER = cython.declare(cython.longlong, -2)

Text = cython.struct(at=cython.p_char, size=cython.longlong)


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
        if _is_named(at, key_len, b"delay-ms", 8):
            found |= NAMES_TIME
        elif head.flags & RETAIN and _is_named(at, key_len, b"mqttExpiry", 10):
            found |= ASKS_MORE
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
        if _is_named(at, key_len, b"DELAY", 5) or (key_len > 6 and memcmp(at, b"TIMER_", 6) == 0):
            found |= NAMES_TIME
        elif _is_named(at, key_len, b"INNER_MULTI_DISPATCH", 20):
            found |= NAMES_LIGHT
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


@cython.cfunc
@cython.exceptval(check=False)
def _value(image_at: cython.p_char, name: cython.p_char, name_len: cython.longlong) -> Text:
    """Return the value of the first property of this name; an empty one when there is none."""
    head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), image_at)
    lengths: cython.pointer(cython.ushort) = cython.cast(cython.pointer(cython.ushort), image_at + HEADER)
    found: Text
    row: cython.longlong
    found.at, found.size = image_at + HEADER + _texts_len(head), 0
    for row in range(head.n_props):
        if _is_named(found.at, lengths[2 * row], name, name_len):
            found.at += lengths[2 * row]
            found.size = lengths[2 * row + 1]
            return found
        found.at += lengths[2 * row] + lengths[2 * row + 1]
    return found


@cython.cfunc
@cython.exceptval(check=False)
def _number(text: Text) -> cython.longlong:
    row: cython.longlong
    value: cython.longlong = 0
    if text.size > DIGITS_MAX:
        return NO_NUMBER
    for row in range(text.size):
        if not b"0" <= text.at[row] <= b"9":
            return NO_NUMBER
        value = 10 * value + text.at[row] - 48
    return value


@cython.cfunc
@cython.exceptval(check=False)
def _later(text: Text, unit_ms: cython.longlong, now_ms: cython.longlong) -> cython.longlong:
    number: cython.longlong = _number(text)
    return number if number < 0 else now_ms + number * unit_ms


@cython.cfunc
@cython.exceptval(check=False)
def _due_ms(at: cython.p_char, now_ms: cython.longlong) -> cython.longlong:
    """Return `delay.due_ms` of an image; NO_TIME or NO_NUMBER where that returns none or raises."""
    number: cython.longlong
    text: Text
    if cython.cast(cython.pointer(record_header), at).flags & MQTT:
        text = _value(at, b"delay-ms", 8)
        return _later(text, 1, now_ms) if text.size else NO_TIME
    text = _value(at, b"TIMER_DELAY_SEC", 15)
    if text.size:
        return _later(text, 1_000, now_ms)
    text = _value(at, b"TIMER_DELAY_MS", 14)
    if text.size:
        return _later(text, 1, now_ms)
    text = _value(at, b"TIMER_DELIVER_MS", 16)
    if text.size:
        return _number(text)
    number = _number(_value(at, b"DELAY", 5))
    if number <= 0:
        return number or NO_TIME
    return now_ms + 1_000 * LEVELS[min(number, LEVEL_MAX) - 1]


@cython.final
@cython.cclass
class Waits:
    """One call's messages that wait: due times, counted in their spans, and the images with them as staged ones."""

    _times: object
    _spans: dict
    _made: bytes
    _dues: cython.pointer(cython.longlong)
    _count: cython.Py_ssize_t
    _room: cython.Py_ssize_t
    _asked: cython.bint
    _base_ms: cython.longlong
    _floor_ms: cython.longlong
    _delay_ms_max: cython.longlong
    _more: cython.longlong
    _per_second_max: cython.longlong

    def __cinit__(self, times):
        self._times, self._dues, self._count, self._room, self._asked = times, cython.NULL, 0, 0, False

    def __dealloc__(self):
        free(self._dues)

    @cython.cfunc
    def _wait(self, images: bytes, at: cython.longlong, queues) -> object:
        """Return the queues of an image that names a time: of its topic when it is due, of its span when it may wait.

        None when it may not.
        """
        if not self._asked:
            self._spans, self._asked = self._times.spans, True
            self._base_ms, self._floor_ms, self._delay_ms_max, self._more, self._per_second_max = self._times.limits()
        due: cython.longlong = _due_ms(PyBytes_AS_STRING(images) + at, self._base_ms)
        if due == NO_TIME or 0 <= due <= self._floor_ms:
            return queues
        if due == NO_NUMBER or due - self._floor_ms > self._delay_ms_max or self._count >= self._more:
            return None
        start: cython.longlong = due - due % SPAN
        second: cython.longlong = due % SPAN // SECOND
        known = self._spans.get(start)
        span: DueSpan = self._times.opened(start) if known is None else known
        if self._per_second_max and span._counts[second] >= self._per_second_max:
            return None
        self._note(due)
        span._counts[second] += 1
        if self._made is None:
            self._made = PyBytes_FromStringAndSize(PyBytes_AS_STRING(images), len(images))
        _hide(PyBytes_AS_STRING(self._made) + at, due - start)
        return span.queues

    @cython.cfunc
    @cython.exceptval(-1)
    def _note(self, due: cython.longlong) -> cython.int:
        if self._count == self._room:
            room: cython.Py_ssize_t = 2 * self._room + 16
            moved: cython.pointer(cython.longlong) = cython.cast(
                cython.pointer(cython.longlong), realloc(self._dues, room * cython.sizeof(cython.longlong))
            )
            if moved == cython.NULL:
                raise MemoryError
            self._dues, self._room = moved, room
        self._dues[self._count] = due
        self._count += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _undo(self) -> cython.int:
        """Count none of them: the call fails."""
        row: cython.Py_ssize_t
        due: cython.longlong
        for row in range(self._count):
            due = self._dues[row]
            span: DueSpan = self._spans[due - due % SPAN]
            span._counts[due % SPAN // SECOND] -= 1
        return 0


@cython.final
@cython.cclass
class Walk:
    """Constants of one call: where messages go, and the queues of RocketMQ topics with their round-robin counts."""

    _way: object
    _queues: dict
    _missed: object
    _writable: object
    _plain: dict
    _counts: dict
    _waits: Waits

    def __cinit__(self, way):
        self._way, self._queues, self._missed = way, way.queues, way.missed

    @cython.cfunc
    def _wait(self, images: bytes, at: cython.longlong, queues, times) -> object:
        """Return the queues of an image that names a time, None when it may not wait; see `Waits._wait`."""
        if self._waits is None:
            self._waits = Waits(times)
        return self._waits._wait(images, at, queues)

    @cython.cfunc
    def _lit(self, at: cython.p_char, queues: tuple) -> object:
        """Return the queues of an image that names light queues."""
        text: Text = _value(at, b"INNER_MULTI_DISPATCH", 20)
        if not text.size:
            return queues
        value: bytes = PyBytes_FromStringAndSize(text.at, text.size)
        light = self._way.light.get(value)
        return queues + cython.cast(tuple, self._way.lit(value) if light is None else light)

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
        if self._plain is None:
            self._plain, self._counts, self._writable = {}, {}, self._way.writable
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


def placed(images: bytes, way, times):
    """Return the queues of each image, what they cannot be told of, and what waits; see `contracts.Core.placed`."""
    walk: Walk = Walk(way)
    queues: list = []
    odd: list = []
    try:
        _place(images, way, times, walk, queues, odd)
    except BaseException:
        if walk._waits is not None:
            walk._waits._undo()
        raise
    if walk._counts is not None:
        for topic, count in walk._counts.items():
            way.turned(topic, count)
    waits: Waits = walk._waits
    if waits is None or not waits._count:
        return queues, odd, images, b""
    dues: bytes = PyBytes_FromStringAndSize(
        cython.cast(cython.p_char, waits._dues), waits._count * cython.sizeof(cython.longlong)
    )
    return queues, odd, waits._made, dues


@cython.cfunc
@cython.exceptval(-1)
def _place(images: bytes, way, times, walk: Walk, queues: list, odd: list) -> cython.int:
    """Add the queues of each image, and (number, start) of those whose queues are None."""
    body_max: cython.longlong = way.body_bytes_max
    properties_max: cython.longlong = way.properties_bytes_max
    begin: cython.p_char = PyBytes_AS_STRING(images)
    at: cython.longlong = 0
    number: cython.longlong = 0
    size: cython.longlong = len(images)
    kind: cython.int
    head: cython.pointer(record_header)
    while at < size:
        head = cython.cast(cython.pointer(record_header), begin + at)
        kind = _check(begin + at, size - at)
        if kind == MALFORMED:
            _refuse(images, at, number)
        if head.body_len > body_max or head.props_len > properties_max:
            raise way.too_large(head.body_len, head.props_len)
        found = None if kind & ASKS_MORE else walk._go(begin + at)
        if found is not None and kind & NAMES_LIGHT:
            found = walk._lit(begin + at, found)
        if found is not None and kind & NAMES_TIME and times is not None:
            found = walk._wait(images, at, found, times)
        if found is None:
            odd.append((number, at))
        queues.append(found)
        at += head.total
        number += 1
    return 0


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
    at: cython.longlong = 0
    while at < size:
        at += _hide(PyBytes_AS_STRING(made) + at, own)
    return made


@cython.cfunc
@cython.exceptval(check=False)
def _hide(at: cython.p_char, own: cython.ulonglong) -> cython.longlong:
    """Make a staged image of the one at `at`; return its size."""
    head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), at)
    kept: cython.ulonglong = head.flags >> FORMAT_SHIFT if head.magic == BATCH_TYPE else head.flags
    kept &= 0xFF
    head.producer_seq = head.epoch | cython.cast(cython.ulonglong, _kind(head)) << 16 | kept << 24 | own << 32
    head.flags = STAGED | head.flags & UPPER
    head.epoch = 0
    return head.total


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
        to += show(cython.cast(cython.p_char, cython.address(blob[starts[row]])), to)
    return made
