"""The compiled twin: stored messages out of records, record images out of sends, without Python per message.

One pass per message each way: its sizes are checked, its properties are read once and copied. What is rare (a request
of an MQTT client, light queues, properties that do not fit, sends that need more than to be stored) is made by the
functions the pure twin uses. Pure-Python-mode Cython. Invariants: byte for byte what the pure twin makes; no pointer is
followed before the sizes in front of it have been checked. Thread rule: loop thread, holding the interpreter's lock.
"""

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.cpython.memoryview import PyMemoryView_GET_BUFFER
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memchr, memcmp, memset
from cython.cimports.remoting.native.compiled.machine import record_fits, record_header
from cython.cimports.remoting.native.compiled.rocketmq import (
    crc32_of,
    crc32_ready,
    get_2,
    get_4,
    has_separator,
    hex_digit,
    put_2,
    put_4,
    put_8,
    put_text,
)

if not cython.compiled:
    raise ImportError("this module does nothing until it is compiled")

from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.records import properties, record, rocketmq_form, stored_message

crc32_ready()
HEADER = cython.declare(cython.longlong, record.HEADER_SIZE)
PAIR = cython.declare(cython.longlong, record.DISPATCH_SIZE)
MESSAGE_TYPE = cython.declare(cython.uint, record.MESSAGE)
BATCH_TYPE = cython.declare(cython.uint, record.BATCH & 0xFF)
TYPE_MASK = cython.declare(cython.uint, 0xFF)
MQTT = cython.declare(cython.uint, record.FLAG_MQTT)
QOS_MASK = cython.declare(cython.uint, record.FLAG_QOS_MASK)
SYS_SHIFT = cython.declare(cython.int, record.FLAG_SYS_SHIFT)
HOST_BITS = cython.declare(cython.int, stored_message.BORN_HOST_V6 | stored_message.STORE_HOST_V6)
MAGIC_V1 = cython.declare(cython.int, stored_message.MAGIC_V1)
MAGIC_V2 = cython.declare(cython.int, stored_message.MAGIC_V2)
CRC_MASK = cython.declare(cython.uint, 0x7FFFFFFF)
TOPIC_V1_MAX = cython.declare(cython.int, 127)
TEXT_MAX = cython.declare(cython.longlong, properties.PROPERTIES_SIZE_BYTES_MAX)
FIXED = cython.declare(cython.longlong, 48 + 8 + 8 + 8 + 16)
"""Bytes of a stored message with hosts of IPv4 before its body."""
QOS_TEXT = cython.declare(bytes, rocketmq_form.QOS_KEY + b"\x010\x02")
NO_HOST = cython.declare(bytes, stored_message.pack_host(rocketmq_form.NO_HOST))
UNIQUE = cython.declare(bytes, properties.UNIQUE_KEY)
BORN_KEY = cython.declare(bytes, rocketmq_form.BORN_HOST_KEY)
FLAG_KEY = cython.declare(bytes, rocketmq_form.FLAG_KEY)
RECONSUME_KEY = cython.declare(bytes, rocketmq_form.RECONSUME_KEY)
PAIRS_MAX = cython.declare(cython.int, 64)
"""Properties of a sent message that are read here; one with more takes the general way."""
BATCH_HEAD = cython.declare(cython.longlong, 20)

Text = cython.struct(at=cython.p_char, size=cython.longlong)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is(at: cython.p_char, size: cython.longlong, name: cython.p_char, name_size: cython.longlong) -> cython.bint:
    return size == name_size and memcmp(at, name, name_size) == 0


@cython.final
@cython.cclass
class Output:
    """Bytes that grow while they are written."""

    _start: cython.p_char
    _used: cython.longlong
    _room: cython.longlong

    def __cinit__(self):
        self._start, self._used, self._room = cython.NULL, 0, 0

    def __dealloc__(self):
        free(self._start)

    @cython.cfunc
    @cython.exceptval(check=True)
    def _need(self, size: cython.longlong) -> cython.p_char:
        """Return the end of what is written, where there is room for `size` bytes."""
        if self._used + size > self._room:
            room: cython.longlong = self._used + size + self._used // 2 + 1024
            moved: cython.p_char = cython.cast(cython.p_char, realloc(self._start, room))
            if moved == cython.NULL:
                raise MemoryError
            self._start, self._room = moved, room
        return self._start + self._used

    @cython.cfunc
    @cython.exceptval(-1)
    def _add(self, data: bytes) -> cython.int:
        put_text(self._need(len(data)), PyBytes_AS_STRING(data), len(data))
        self._used += len(data)
        return 0

    @cython.cfunc
    def _bytes(self) -> bytes:
        return PyBytes_FromStringAndSize(self._start, self._used)


@cython.cfunc
@cython.exceptval(check=False)
def _small_number(text: Text, found: cython.pointer(cython.int)) -> cython.bint:
    """Whether the text is a plain decimal number of up to nine digits, which is then put into `found`."""
    value: cython.int = 0
    row: cython.longlong = 1 if text.size and text.at[0] == b"-" else 0
    first: cython.longlong = row
    if not first < text.size <= first + 9:
        return False
    while row < text.size:
        if not b"0" <= text.at[row] <= b"9":
            return False
        value = 10 * value + text.at[row] - 48
        row += 1
    found[0] = -value if first else value
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _host(text: Text, found: cython.p_char) -> cython.bint:
    """Whether the text is a packed IPv4 host in hexadecimal, which is then put into `found`."""
    row: cython.int
    high: cython.int
    low: cython.int
    if text.size != 16:
        return False
    for row in range(8):
        high, low = hex_digit(text.at[2 * row]), hex_digit(text.at[2 * row + 1])
        if high < 0 or low < 0:
            return False
        found[row] = cython.cast(cython.char, high << 4 | low)
    return True


@cython.final
@cython.cclass
class Shown:
    """One call of `stored`: what all its messages have in common, and the message at hand."""

    _output: Output
    _store_host: bytes
    _origin: bytes
    _queue_index: cython.int
    _usual: cython.bint
    _asks: cython.bint
    # Of the message at hand: its hidden properties.
    _flag: cython.int
    _reconsumed: cython.int
    _born_host: cython.char[8]

    @cython.cfunc
    @cython.exceptval(check=False)
    def _hidden(self, key: Text, value: Text) -> cython.bint:
        """Whether a property with the hidden prefix was read; False for one in an unusual form."""
        if _is(key.at, key.size, PyBytes_AS_STRING(BORN_KEY), len(BORN_KEY)):
            return _host(value, self._born_host)
        if _is(key.at, key.size, PyBytes_AS_STRING(FLAG_KEY), len(FLAG_KEY)):
            return _small_number(value, cython.address(self._flag))
        if _is(key.at, key.size, PyBytes_AS_STRING(RECONSUME_KEY), len(RECONSUME_KEY)):
            return _small_number(value, cython.address(self._reconsumed))
        return False

    @cython.cfunc
    @cython.exceptval(check=False)
    def _properties(self, to: cython.p_char, at: cython.p_char, head: cython.pointer(record_header)) -> cython.p_char:
        """Write the properties of a record as text; return its end, NULL for a record of an unusual form.

        `at` is the record's lengths table.
        """
        lengths: cython.pointer(cython.ushort) = cython.cast(cython.pointer(cython.ushort), at)
        row: cython.int
        key: Text
        value: Text
        usual: cython.bint = True
        keys: cython.p_char = at + 4 * head.n_props + head.topic_len
        end: cython.p_char = keys + head.keys_len + head.tags_len + head.props_len
        key.at = end - head.props_len
        for row in range(head.n_props):
            key.size, value.size = lengths[2 * row], lengths[2 * row + 1]
            value.at = key.at + key.size
            if key.size + value.size > end - key.at:
                return cython.NULL
            if key.size >= 6 and memcmp(key.at, b"__rmq.", 6) == 0:
                usual = self._hidden(key, value) and usual
            elif not (len(self._origin) and _is_origin(key)):
                to = _pair(to, key, value)
            if _is(key.at, key.size, b"INNER_MULTI_DISPATCH", 20):
                usual = False
            elif _is(key.at, key.size, b"mqttResponseTopic", 17):
                usual, self._asks = False, True
            key.at = value.at + value.size
        if not usual or has_separator(keys, end - keys):
            return cython.NULL
        return self._fields(to, keys, head)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _fields(self, to: cython.p_char, keys: cython.p_char, head: cython.pointer(record_header)) -> cython.p_char:
        """Write as properties what a record has in other fields, and what is added to every message."""
        if head.tags_len:
            to = put_text(put_text(put_text(to, b"TAGS\x01", 5), keys + head.keys_len, head.tags_len), b"\x02", 1)
        if head.keys_len:
            to = put_text(put_text(put_text(to, b"KEYS\x01", 5), keys, head.keys_len), b"\x02", 1)
        if head.flags & MQTT:
            to = put_text(to, PyBytes_AS_STRING(QOS_TEXT), len(QOS_TEXT))
            to[-2] = cython.cast(cython.char, 48 + (head.flags & QOS_MASK))
        return put_text(to, PyBytes_AS_STRING(self._origin), len(self._origin))

    @cython.cfunc
    @cython.exceptval(-1)
    def _put(self, record_at: cython.p_char, offset: cython.longlong) -> cython.bint:
        """Write one record as a stored message; False, with nothing written, for one of an unusual form."""
        head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), record_at)
        meta: cython.p_char = record_at + HEADER + PAIR * head.n_dispatch
        text_max: cython.longlong = (
            cython.cast(cython.longlong, head.keys_len) + head.tags_len + head.props_len + 2 * head.n_props
            + 12 + len(QOS_TEXT) + len(self._origin)
        )  # fmt: skip
        to: cython.p_char = self._output._need(FIXED + head.body_len + 2 + head.topic_len + 2 + text_max)
        short: cython.bint = head.topic_len <= TOPIC_V1_MAX
        topic_at: cython.p_char = to + FIXED + head.body_len
        text_at: cython.p_char = topic_at + (1 if short else 2) + head.topic_len + 2
        self._flag = self._reconsumed = 0
        put_text(self._born_host, PyBytes_AS_STRING(NO_HOST), 8)
        end: cython.p_char = self._properties(text_at, meta, head)
        if end == cython.NULL or end - text_at > TEXT_MAX or not self._usual:
            return False
        put_2(text_at - 2, end - text_at)
        put_text(text_at - 2 - head.topic_len, meta + 4 * head.n_props, head.topic_len)
        if short:
            topic_at[0] = cython.cast(cython.char, head.topic_len)
        else:
            put_2(topic_at, head.topic_len)
        self._head(to, end - to, head, offset, MAGIC_V1 if short else MAGIC_V2)
        put_text(to + FIXED, record_at + head.body_off, head.body_len)
        put_4(to + 8, crc32_of(record_at + head.body_off, head.body_len) & CRC_MASK)
        self._output._used += end - to
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def _head(
        self,
        to: cython.p_char,
        total: cython.longlong,
        head: cython.pointer(record_header),
        offset: cython.longlong,
        magic: cython.int,
    ) -> cython.void:
        """Write everything in front of the body except its checksum."""
        put_4(put_4(to, total), magic)
        to = put_4(put_4(to + 12, self._queue_index), self._flag)
        to = put_4(put_8(put_8(to, offset), head.position), head.flags >> SYS_SHIFT & ~HOST_BITS)
        to = put_text(put_8(to, head.born_ms), self._born_host, 8)
        to = put_text(put_8(to, head.store_ms), PyBytes_AS_STRING(self._store_host), 8)
        put_4(put_8(put_4(to, self._reconsumed), 0), head.body_len)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_origin(key: Text) -> cython.bint:
    """Whether a property is one that is added to every message."""
    return (
        _is(key.at, key.size, b"MSG_REGION", 10)
        or _is(key.at, key.size, b"TRACE_ON", 8)
        or _is(key.at, key.size, b"CLUSTER", 7)
    )


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _pair(to: cython.p_char, key: Text, value: Text) -> cython.p_char:
    to = put_text(put_text(to, key.at, key.size), b"\x01", 1)
    return put_text(put_text(to, value.at, value.size), b"\x02", 1)


@cython.cfunc
@cython.exceptval(-1)
def _has_tag(at: cython.p_char, tags) -> cython.bint:
    """Whether the record's tag is one of these."""
    head: cython.pointer(record_header) = cython.cast(cython.pointer(record_header), at)
    meta: cython.p_char = at + HEADER + PAIR * head.n_dispatch
    return PyBytes_FromStringAndSize(meta + 4 * head.n_props + head.topic_len + head.keys_len, head.tags_len) in tags


@cython.cfunc
@cython.exceptval(check=True)
def _start(one) -> cython.p_char:
    """Return the start of a record, whose sizes fit its memory view. Raises CorruptRecord."""
    view: memoryview = one
    at: cython.p_char = cython.cast(cython.p_char, PyMemoryView_GET_BUFFER(view).buf)
    if not record_fits(at, PyMemoryView_GET_BUFFER(view).len):
        record.RecordView(view)
        raise LocalMisuse("a record whose sizes contradict each other")
    return at


def stored(records: list, offsets, queue_index: cython.int, store_host, origin: tuple, tags=None):
    """Return (stored messages back to back, their number, whether one is a request of an MQTT client).

    None when there is a batch among the records.
    """
    shown: Shown = Shown.__new__(Shown)
    output: Output = Output()
    shown._output, shown._queue_index, shown._asks = output, queue_index, False
    shown._store_host = stored_message.pack_host(store_host)
    shown._origin = b"".join([key + b"\x01" + value + b"\x02" for key, value in origin])
    separators = shown._origin.count(b"\x01"), shown._origin.count(b"\x02")
    shown._usual = len(shown._store_host) == 8 and separators == (len(origin), len(origin))
    count: cython.longlong = 0
    at: cython.p_char
    for one in records:
        if cython.cast(cython.pointer(record_header), _start(one)).magic & TYPE_MASK == BATCH_TYPE:
            return None
    for one, offset in zip(records, offsets):  # noqa: B905 - there may be more offsets
        at = _start(one)
        if tags is not None and not _has_tag(at, tags):
            continue
        if not shown._put(at, offset):
            output._add(rocketmq_form.stored_message(record.RecordView(one), queue_index, offset, store_host, origin))
        count += 1
    return output._bytes(), count, bool(shown._asks)


@cython.cfunc
@cython.exceptval(-1)
def _batch_message(body: cython.p_char, at: cython.longlong, size: cython.longlong) -> cython.longlong:
    """Return where the message of a batch body at `at` ends, 0 for a malformed one."""
    body_len: cython.longlong
    text_at: cython.longlong
    text_len: cython.longlong
    if size - at < BATCH_HEAD:
        return 0
    body_len = get_4(body + at + 16)
    text_at = at + BATCH_HEAD + body_len
    if body_len < 0 or text_at + 2 > size:
        return 0
    text_len = get_2(body + text_at)
    if text_len < 0 or text_at + 2 + text_len > size or text_at + 2 + text_len != at + get_4(body + at):
        return 0
    return text_at + 2 + text_len


def count_batch(body: bytes):
    """Return the number of messages of a batch body. Raises RemoteViolation."""
    at: cython.longlong = 0
    count: cython.longlong = 0
    while at < len(body):
        at = _batch_message(PyBytes_AS_STRING(body), at, len(body))
        if not at:
            rocketmq_form.decode_batch(body)
            raise RemoteViolation(f"batch message {count} is malformed")
        count += 1
    return count


@cython.final
@cython.cclass
class Sent:
    """One call of `sent`: what all its messages have in common, and the properties of the message at hand."""

    _output: Output
    _topic: bytes
    _head: record_header
    _born_host: bytes
    _reconsumed: bytes
    _names: object
    _name_sizes: cython.ulonglong
    _special: object
    _unique: object
    # Of the message at hand: its properties, how many they are, and which of them are tags, keys and unique key.
    _keys: Text[68]
    _values: Text[68]
    _count: cython.int
    _tags_at: cython.int
    _keys_at: cython.int
    _unique_at: cython.int

    @cython.cfunc
    @cython.exceptval(-1)
    def _begin(self, fields, names, special, unique) -> cython.int:
        """Take what all messages have in common."""
        head: cython.pointer(record_header) = cython.address(self._head)
        self._output = Output()
        self._topic, self._born_host = fields.topic, fields.born_host
        self._reconsumed = b"%d" % fields.reconsume_times if fields.reconsume_times else b""
        self._names, self._special, self._unique, self._name_sizes = names, special, unique, 0
        for name in names:
            self._name_sizes |= _size_bit(len(name))
        memset(head, 0, HEADER)
        try:
            head.born_ms = fields.born_ms
        except OverflowError as error:
            raise LocalMisuse(f"a part of the message is longer than its field: {error}") from error
        if len(self._topic) > 0xFFFF:
            raise LocalMisuse(f"a part of the message is longer than its field: {len(self._topic)} bytes of topic")
        head.topic_len = len(self._topic)
        head.magic, head.epoch, head.count = MESSAGE_TYPE, fields.queue_index, 1
        head.flags = cython.cast(cython.uint, fields.system_flag & 0xFFFF) << SYS_SHIFT
        return 0

    @cython.cfunc
    def _message(
        self, text: cython.p_char, text_len: cython.longlong, body: cython.p_char, body_len: cython.longlong, flag
    ) -> bytes:
        """Write the image of a message; return its unique key."""
        if not self._read(text, text_len):
            pairs = properties.decode_properties(PyBytes_FromStringAndSize(text, text_len))
            image, key = self._special(flag, dict(pairs), PyBytes_FromStringAndSize(body, body_len))
            self._output._add(image)
            return key
        at: cython.int = self._unique_at
        unique: bytes = self._unique() if at < 0 else None
        flag_text: bytes = b"%d" % flag if flag else None
        if at < 0:
            at = self._count
            self._own(UNIQUE, unique)
        self._own(BORN_KEY, self._born_host)
        if flag_text is not None:
            self._own(FLAG_KEY, flag_text)
        if len(self._reconsumed):
            self._own(RECONSUME_KEY, self._reconsumed)
        self._put(body, body_len)
        return PyBytes_FromStringAndSize(self._values[at].at, self._values[at].size)

    @cython.cfunc
    @cython.exceptval(-1)
    def _read(self, at: cython.p_char, size: cython.longlong) -> cython.bint:
        """Note where the properties of a text are; False when the message is a special one."""
        end: cython.p_char = at + size
        stop: cython.p_char
        middle: cython.p_char
        self._count, self._unique_at, self._tags_at, self._keys_at = 0, -1, -1, -1
        if size >= TEXT_MAX:
            return False
        while at < end:
            stop = cython.cast(cython.p_char, memchr(at, 2, end - at))
            if stop == cython.NULL:
                stop = end
            middle = cython.cast(cython.p_char, memchr(at, 1, stop - at))
            if middle != cython.NULL:
                if self._count == PAIRS_MAX or not self._note(at, middle - at):
                    return False
                self._add(at, middle - at, middle + 1, stop - middle - 1)
            at = stop + 1
        return True

    @cython.cfunc
    @cython.exceptval(-1)
    def _note(self, at: cython.p_char, size: cython.longlong) -> cython.bint:
        """Note which property comes next; False when it makes the message a special one."""
        row: cython.int
        for row in range(self._count):
            if _is(at, size, self._keys[row].at, self._keys[row].size):
                return False
        if _is(at, size, b"KEYS", 4):
            self._keys_at = self._count
        elif _is(at, size, b"TAGS", 4):
            self._tags_at = self._count
        elif _is(at, size, b"UNIQ_KEY", 8):
            self._unique_at = self._count
        elif size >= 6 and memcmp(at, b"__rmq.", 6) == 0:
            return False
        elif self._name_sizes & _size_bit(size):
            return PyBytes_FromStringAndSize(at, size) not in self._names
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def _add(
        self, key: cython.p_char, key_len: cython.longlong, value: cython.p_char, value_len: cython.longlong
    ) -> cython.void:
        self._keys[self._count].at, self._keys[self._count].size = key, key_len
        self._values[self._count].at, self._values[self._count].size = value, value_len
        self._count += 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _own(self, key: bytes, value: bytes) -> cython.void:
        """Add a property of ours; both texts must live until the image is written."""
        self._add(PyBytes_AS_STRING(key), len(key), PyBytes_AS_STRING(value), len(value))

    @cython.cfunc
    @cython.exceptval(-1)
    def _put(self, body: cython.p_char, body_len: cython.longlong) -> cython.int:
        """Write the image of a message whose properties are noted."""
        head: cython.pointer(record_header) = cython.address(self._head)
        row: cython.int
        meta_end: cython.longlong
        head.n_props = head.props_len = head.tags_len = head.keys_len = 0
        for row in range(self._count):
            if row == self._tags_at:
                head.tags_len = self._values[row].size
            elif row == self._keys_at:
                head.keys_len = self._values[row].size
            else:
                head.n_props += 1
                head.props_len += self._keys[row].size + self._values[row].size
        meta_end = HEADER + 4 * head.n_props + head.topic_len + head.keys_len + head.tags_len + head.props_len
        head.body_len, head.body_off = body_len, (meta_end + 7) & ~7
        head.total = (head.body_off + body_len + 7) & ~7
        start: cython.p_char = self._output._need(head.total)
        put_text(start, cython.cast(cython.p_char, head), HEADER)
        memset(start + meta_end, 0, head.body_off - meta_end)
        self._meta(start + HEADER)
        put_text(start + head.body_off, body, body_len)
        memset(start + head.body_off + body_len, 0, head.total - head.body_off - body_len)
        self._output._used += head.total
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def _meta(self, at: cython.p_char) -> cython.void:
        """Write the lengths table, topic, keys, tags and properties."""
        lengths: cython.pointer(cython.ushort) = cython.cast(cython.pointer(cython.ushort), at)
        row: cython.int
        to: cython.p_char = at + 4 * self._head.n_props
        to = put_text(to, PyBytes_AS_STRING(self._topic), self._head.topic_len)
        if self._keys_at >= 0:
            to = put_text(to, self._values[self._keys_at].at, self._head.keys_len)
        if self._tags_at >= 0:
            to = put_text(to, self._values[self._tags_at].at, self._head.tags_len)
        for row in range(self._count):
            if row != self._tags_at and row != self._keys_at:
                lengths[0], lengths[1] = self._keys[row].size, self._values[row].size
                lengths += 2
                to = put_text(to, self._keys[row].at, self._keys[row].size)
                to = put_text(to, self._values[row].at, self._values[row].size)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _size_bit(size: cython.longlong) -> cython.ulonglong:
    """One bit per length of a name; the longest share one."""
    return cython.cast(cython.ulonglong, 1) << (min(63, size))


def sent(body: bytes, text: bytes | None, flag, fields, names, special, unique):
    """Return (images, unique key of the first message)."""
    made: Sent = Sent.__new__(Sent)
    start: cython.p_char = PyBytes_AS_STRING(body)
    made._begin(fields, names, special, unique)
    if text is not None:
        key = made._message(PyBytes_AS_STRING(text), len(text), start, len(body), flag)
        return made._output._bytes(), key
    first = None
    at: cython.longlong = 0
    end: cython.longlong
    body_len: cython.longlong
    while at < len(body):
        end = _batch_message(start, at, len(body))
        if not end:
            raise RemoteViolation("a batch body that was not checked")
        body_len = get_4(start + at + 16)
        key = made._message(
            start + at + BATCH_HEAD + body_len + 2, end - at - BATCH_HEAD - body_len - 2,
            start + at + BATCH_HEAD, body_len, get_4(start + at + 12),
        )  # fmt: skip
        first = key if first is None else first
        at = end
    return made._output._bytes(), first


def message_ids(store_host, positions):
    """Return the message ids of these log positions, separated by commas."""
    host: bytes = stored_message.pack_host(store_host)
    head: bytes = host.hex().upper().encode()
    size: cython.Py_ssize_t = len(head)
    count: cython.Py_ssize_t = len(positions)
    if not count:
        return ""
    made: bytes = PyBytes_FromStringAndSize(cython.NULL, count * (size + 17) - 1)
    to: cython.p_char = PyBytes_AS_STRING(made)
    digit: cython.int
    number: cython.ulonglong
    for one in positions:
        number = one
        if to > PyBytes_AS_STRING(made):
            to = put_text(to, b",", 1)
        to = put_text(to, PyBytes_AS_STRING(head), size)
        for digit in range(16):
            to[digit] = b"0123456789ABCDEF"[number >> (60 - 4 * digit) & 15]
        to += 16
    return made.decode("ascii")
