"""The message record: one layout for the commit log, the replicas and the wire. Little-endian, 8-aligned.

     0 total u32 | 4 magic_type u32 | 8 crc32c u32 over [4, 8) and [12, total) | 12 epoch u32 | 16 position u64
    24 born_ms i64 | 32 store_ms i64 | 40 body_len u32 | 44 body_off u32 | 48 flags u32 | 52 count u32
    56 n_dispatch, n_props, topic_len, keys_len, tags_len, props_len u16 | 68 tag_hash u32 | 72 producer_seq u64
    80 n_dispatch x {queue id u32, reserved u32, queue offset u64} | u16 lengths[2 * n_props] | topic, keys, tags, props
       | pad to 8 | body | pad to 8

props = key0 value0 key1 value1 ...; lengths = klen0 vlen0 klen1 vlen1 ... `meta` means everything from the lengths
table to the last property byte. A BATCH is one record of `count` messages: its flags name the format of the body, each
of its queues advances by `count`, and its dispatch entries hold the offset of its first message. Invariant: all sizes
follow from the fixed header, zero bytes are never a record, and a record whose position is not the place it was found
at is not a record. Thread rule: pure functions over buffers the caller keeps alive.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from remoting.native.checksum import crc32c
from remoting.protocol.errors import CorruptRecord, LocalMisuse

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct("<IIIIQqqIIIIHHHHHHIQ")
HEADER_SIZE = HEADER.size
_STORE_MS, _STORE_MS_AT = struct.Struct("<q"), 32
DISPATCH = struct.Struct("<IIQ")
DISPATCH_SIZE = DISPATCH.size
CRC_START = 12
"""The checksum covers the type and everything from this byte on; `total` is verified as the sum of the sizes."""

MAGIC = 0x4C4D5100
MAGIC_MASK = 0xFFFFFF00
MESSAGE = MAGIC | 1
BATCH = MAGIC | 2
CONTROL = MAGIC | 3
FILLER = MAGIC | 4
CHECKSUM_SEEDS = {magic: crc32c(magic.to_bytes(4, "little")) for magic in (MESSAGE, BATCH, CONTROL, FILLER)}
"""Checksum of each type's four bytes, from which the checksum of a record of that type continues."""

FLAG_QOS_MASK = 0x03
FLAG_RETAIN = 0x04
FLAG_MQTT = 0x08
FLAG_GROUP_OPEN = 0x10
"""On every record of an atomic group but its last."""
FLAG_STAGED = 0x20
FLAG_PROPERTIES = 0x80  # never stored: `publish_fields` sets it for properties beyond topic and client id
FLAG_FORMAT_SHIFT = 8
FLAG_FORMAT_MASK = 0x0F00
"""Format of the body; 0 is a raw body: a record is a BATCH exactly when it is not."""
FLAG_CODEC_SHIFT = 12
FLAG_CODEC_MASK = 0xF000
"""How the whole body is compressed."""
FLAG_SYS_SHIFT = 16
"""The low 16 bits of RocketMQ's sysFlag start at this bit."""

FORMAT_ARROW = 1
"""The body is one Arrow IPC stream of `count` rows, schema first."""
CODEC_NONE = 0
CODEC_LZ4 = 1
"""An lz4 frame."""
CODEC_ZSTD = 2
BATCH_COUNT_MAX = 65_536
"""Messages in one record; more are refused."""

MQTT_TOPIC_KEY = b"originMqttTopic"
"""Property key of the full MQTT topic; always the first property of an MQTT record."""
CLIENT_ID_KEY = b"clientId"

_PREFIX = struct.Struct("<III")
_TAIL = struct.Struct("<IQqqIIIIHHHHHHIQ")
_ONE_QUEUE = struct.Struct("<I4xQ")
_TWO_QUEUES = struct.Struct("<I4xQI4xQ")
_THREE_QUEUES = struct.Struct("<I4xQI4xQI4xQ")
_PADS = tuple(bytes(n) for n in range(8))
_U32 = struct.Struct("<I")
_U16 = struct.Struct("<H")
_SIZES = struct.Struct("<IIIIQ16xIIIIHHHHHH")
_PUBLISH = struct.Struct("<I20xq8xIII4xHHHHH")
_PAIR, _LENGTHS_3 = struct.Struct("<HH"), struct.Struct("<HHH")
_LENGTHS = tuple(struct.Struct(f"<{2 * n}H") for n in range(17))


def body_format(flags: int) -> int:
    """How the body is encoded: one of FORMAT_*, 0 for a raw body."""
    return (flags & FLAG_FORMAT_MASK) >> FLAG_FORMAT_SHIFT


def body_codec(flags: int) -> int:
    """Compression of the whole body: one of CODEC_*."""
    return (flags & FLAG_CODEC_MASK) >> FLAG_CODEC_SHIFT


def is_count(magic: int, flags: int, count: int) -> bool:
    """Whether a record of this type and body format may hold `count` messages."""
    if flags & FLAG_FORMAT_MASK:
        return magic == BATCH and 1 <= count <= BATCH_COUNT_MAX
    return count == 0 if magic == FILLER else count == 1 and magic != BATCH


def encode_record(
    *,
    magic_type: int,
    epoch: int,
    position: int,
    born_ms: int,
    store_ms: int,
    flags: int,
    count: int,
    dispatch: Sequence[tuple[int, int]],
    counts: tuple[int, int, int, int, int],
    tag_hash: int,
    producer_seq: int,
    meta: bytes,
    body: Buffer,
) -> bytes:
    """Return one record, checksum included.

    `dispatch` is (queue id, queue offset) per queue; `counts` is n_props, topic, keys, tags, props lengths in bytes;
    `meta` the lengths table, topic, keys, tags and properties back to back. LocalMisuse when the parts contradict
    each other.
    """
    n_dispatch = len(dispatch)
    n_props, topic_len, keys_len, tags_len, props_len = counts
    meta_end = HEADER_SIZE + DISPATCH_SIZE * n_dispatch + len(meta)
    body_off = (meta_end + 7) & ~7
    body_len = len(body)
    total = (body_off + body_len + 7) & ~7
    if 4 * n_props + topic_len + keys_len + tags_len + props_len != len(meta):
        raise LocalMisuse(f"meta of {len(meta)} bytes does not have the lengths {counts}")
    try:
        head = _TAIL.pack(
            epoch, position, born_ms, store_ms, body_len, body_off, flags, count,
            n_dispatch, n_props, topic_len, keys_len, tags_len, props_len, tag_hash, producer_seq,
        )  # fmt: skip
        # Nearly every record is in its parent, its topic's and perhaps one wildcard queue: one pack instead of a loop.
        if n_dispatch == 3:
            (queue_0, offset_0), (queue_1, offset_1), (queue_2, offset_2) = dispatch
            queues = _THREE_QUEUES.pack(queue_0, offset_0, queue_1, offset_1, queue_2, offset_2)
        elif n_dispatch == 2:
            (queue_0, offset_0), (queue_1, offset_1) = dispatch
            queues = _TWO_QUEUES.pack(queue_0, offset_0, queue_1, offset_1)
        else:
            queues = b"".join([_ONE_QUEUE.pack(queue_id, offset) for queue_id, offset in dispatch])
        tail = b"".join((head, queues, meta, _PADS[body_off - meta_end], body, _PADS[total - body_off - body_len]))
        return _PREFIX.pack(total, magic_type, crc32c(tail, CHECKSUM_SEEDS[magic_type])) + tail
    except KeyError:
        raise LocalMisuse(f"{magic_type:#010x} is no record type") from None
    except struct.error as error:
        raise LocalMisuse(f"a record field is out of range: {error}") from error


def check_record(buffer: Buffer, offset: int, position: int | None) -> int:
    """Return the total bytes of the record at `offset`. Raises CorruptRecord with the first check that failed.

    `position` is the position the record must contain; None skips that check (records outside the log).
    """
    available = len(buffer) - offset
    if available < HEADER_SIZE:
        raise CorruptRecord(f"{available} bytes are too few for a record header")
    total, magic, crc, _, stored, body_len, body_off, flags, count, n_dispatch, n_props, topic, keys, tags, props = (
        _SIZES.unpack_from(buffer, offset)
    )
    seed = CHECKSUM_SEEDS.get(magic)
    if seed is None:
        raise CorruptRecord(f"magic {magic:#010x} is no record")
    if (count != 1 or magic != MESSAGE or flags & FLAG_FORMAT_MASK) and not is_count(magic, flags, count):
        raise CorruptRecord(f"{count} messages with flags {flags:#x} contradict type {magic & 0xFF}")
    meta_end = HEADER_SIZE + 16 * n_dispatch + 4 * n_props + topic + keys + tags + props
    if body_off != (meta_end + 7) & ~7 or total != (body_off + body_len + 7) & ~7:
        raise CorruptRecord(
            f"sizes contradict each other: total {total}, body of {body_len} at {body_off}, meta to {meta_end}"
        )
    if total > available:
        raise CorruptRecord(f"record of {total} bytes passes the {available} bytes there are")
    if position is not None and stored != position:
        raise CorruptRecord(f"record says position {stored}, it stands at {position}")
    view = buffer if buffer.__class__ is memoryview else memoryview(buffer)
    if crc32c(view[offset + CRC_START : offset + total], seed) != crc:
        raise CorruptRecord(f"checksum does not match the {total} bytes at {offset}")
    return int(total)


def _lengths(n_props: int) -> struct.Struct:
    return _LENGTHS[n_props] if n_props <= 16 else struct.Struct(f"<{2 * n_props}H")


def tag_hash(tags: bytes) -> int:
    """Return Java's String.hashCode of the tag text as an unsigned 32-bit number (what RocketMQ filters by)."""
    value = 0
    if tags.isascii():
        for unit in tags:
            value = (31 * value + unit) & 0xFFFFFFFF
        return value
    text = tags.decode("utf-8", "replace").encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", text):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


def iter_records(blob: Buffer) -> Iterator[RecordView]:
    """Yield a view per record of `blob`. Raises CorruptRecord for invalid sizes; checksums are not verified."""
    view = memoryview(blob)
    at, end = 0, len(view)
    while at < end:
        record = RecordView(view, at)
        yield record
        at += record.total


def dispatch_fields(buffer: Buffer, offset: int) -> list[tuple[int, int]]:
    """Return (queue id, queue offset) per queue of the record at `offset`, whose sizes must have been checked."""
    (count,) = _U16.unpack_from(buffer, offset + 56)
    start = offset + HEADER_SIZE
    return list(_ONE_QUEUE.iter_unpack(buffer[start : start + DISPATCH_SIZE * count]))


def stored_ms(buffer: Buffer) -> int:
    """Return when the record at the beginning of `buffer` was stored, or 0 where there is none."""
    return int(_STORE_MS.unpack_from(buffer, _STORE_MS_AT)[0]) if len(buffer) >= HEADER_SIZE else 0


def publish_fields(buffer: Buffer, offset: int) -> tuple[bytes, Buffer, int, int, int]:
    """Return (MQTT topic or the record's, body, flags with FLAG_PROPERTIES, born_ms, total) of the record at `offset`.

    The body is a slice of `buffer`. Sizes are not checked again; CorruptRecord only where there is no header at all.
    """
    try:
        total, born_ms, body_len, body_off, flags, n_dispatch, n_props, topic_len, keys_len, tags_len = (
            _PUBLISH.unpack_from(buffer, offset)
        )
        body_off += offset
        at = offset + HEADER_SIZE + DISPATCH_SIZE * n_dispatch
        if flags & FLAG_MQTT and n_props:
            key_len, topic_size, second_len = _LENGTHS_3.unpack_from(buffer, at)
            at += 4 * n_props + topic_len + keys_len + tags_len + key_len
            second = buffer[at + topic_size : at + topic_size + second_len]
            flags |= FLAG_PROPERTIES if n_props > 2 or (n_props == 2 and second != CLIENT_ID_KEY) else 0
        else:
            flags |= FLAG_PROPERTIES if n_props else 0
            at, topic_size = at + 4 * n_props, topic_len
        return bytes(buffer[at : at + topic_size]), buffer[body_off : body_off + body_len], flags, born_ms, total
    except struct.error as error:
        raise CorruptRecord(f"no record header at {offset}") from error


class RecordHeader(NamedTuple):
    """The fixed header, every field by its name in the layout; lengths in bytes, times in ms."""

    total: int
    magic_type: int
    crc32c: int
    """Of an image the packet id that is to be noted."""
    epoch: int
    """Epoch of the master that wrote the record; of an image the number of the wanted queue."""
    position: int
    born_ms: int
    store_ms: int
    body_len: int
    body_off: int
    flags: int
    messages: int
    n_dispatch: int
    n_props: int
    topic_len: int
    keys_len: int
    tags_len: int
    props_len: int
    tag_hash: int
    """Java hash of the tags, unsigned."""
    producer_seq: int
    """What the broker keeps with a record to place it later; 0 for none."""

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """n_props and the byte lengths of topic, keys, tags and properties."""
        return self.n_props, self.topic_len, self.keys_len, self.tags_len, self.props_len


def header_of(record: RecordView) -> RecordHeader:
    """The fixed header of a record: the fields that few readers need, and all of them at once."""
    return RecordHeader._make(record.fields)


class RecordView:
    """View of one record in a buffer: the fixed header is read once, everything else on access.

    It offers what readers of messages need; `header_of` returns the rest of the header. CorruptRecord from the
    constructor when the sizes contradict each other or pass the buffer (no checksum).
    """

    __slots__ = ("_buffer", "_meta_at", "_offset", "fields")

    fields: tuple[int, ...]
    """The fixed header in the order of its layout; `RecordHeader` names its fields."""

    def __init__(self, buffer: Buffer, offset: int = 0) -> None:
        try:
            header = HEADER.unpack_from(buffer, offset)
        except struct.error as error:
            raise CorruptRecord(f"no record header at {offset}") from error
        total, body_len, body_off = header[0], header[7], header[8]
        meta_at = HEADER_SIZE + DISPATCH_SIZE * header[11]
        meta_end = meta_at + 4 * header[12] + header[13] + header[14] + header[15] + header[16]
        if meta_end > body_off or body_off + body_len > total or offset + total > len(buffer):
            raise CorruptRecord(f"sizes of the record at {offset} contradict each other")
        self._buffer = buffer if buffer.__class__ is memoryview else memoryview(buffer)
        self._offset = offset
        self.fields = header
        self._meta_at = offset + meta_at

    @property
    def total(self) -> int:
        """Bytes of the whole record."""
        return self.fields[0]

    @property
    def type(self) -> int:
        """Record type: 1 message, 2 batch, 3 control, 4 filler."""
        return self.fields[1] & 0xFF

    @property
    def position(self) -> int:
        """Byte offset in the commit log."""
        return self.fields[4]

    @property
    def born_ms(self) -> int:
        """Wall-clock time at the producer, in ms."""
        return self.fields[5]

    @property
    def store_ms(self) -> int:
        """Wall-clock time at the broker, in ms."""
        return self.fields[6]

    @property
    def flags(self) -> int:
        """Flag bits, see FLAG_*."""
        return self.fields[9]

    @property
    def count(self) -> int:
        """Messages in the record (1 unless it is a batch)."""
        return self.fields[10]

    def dispatch(self) -> list[tuple[int, int]]:
        """Return (queue id, queue offset) of every queue the record is in."""
        start = self._offset + HEADER_SIZE
        return [(queue_id, offset) for queue_id, _, offset in DISPATCH.iter_unpack(self._buffer[start : self._meta_at])]

    def _text(self, index: int) -> bytes:
        """Return topic (0), keys (1) or tags (2)."""
        header = self.fields
        start = self._meta_at + 4 * header[12] + sum(header[13 : 13 + index])
        return bytes(self._buffer[start : start + header[13 + index]])

    @property
    def topic(self) -> bytes:
        """Topic name; for MQTT messages the parent topic."""
        return self._text(0)

    @property
    def keys(self) -> bytes:
        """RocketMQ KEYS, space separated."""
        return self._text(1)

    @property
    def tags(self) -> bytes:
        """The TAGS text as bytes; empty when there is none."""
        return self._text(2)

    @property
    def meta(self) -> memoryview:
        """Lengths table, topic, keys, tags and properties as stored."""
        header = self.fields
        return self._buffer[self._meta_at : self._meta_at + 4 * header[12] + sum(header[13:17])]

    def properties(self) -> list[tuple[bytes, bytes]]:
        """Return the properties in order, repeated keys included."""
        n_props = self.fields[12]
        if not n_props:
            return []
        lengths = _lengths(n_props).unpack_from(self._buffer, self._meta_at)
        at = self._meta_at + 4 * n_props + sum(self.fields[13:16])
        raw = bytes(self._buffer[at : at + self.fields[16]])
        pairs, at = [], 0
        for index in range(0, 2 * n_props, 2):
            middle = at + lengths[index]
            end = middle + lengths[index + 1]
            pairs.append((raw[at:middle], raw[middle:end]))
            at = end
        return pairs

    @property
    def mqtt_topic(self) -> bytes | None:
        """Full MQTT topic, None for a record that did not come from MQTT."""
        header = self.fields
        if not header[9] & FLAG_MQTT or not header[12]:
            return None
        key_len, value_len = _PAIR.unpack_from(self._buffer, self._meta_at)
        start = self._meta_at + 4 * header[12] + sum(header[13:16]) + key_len
        return bytes(self._buffer[start : start + value_len])

    @property
    def body(self) -> memoryview:
        """Body bytes, not copied."""
        start = self._offset + self.fields[8]
        return self._buffer[start : start + self.fields[7]]

    @property
    def raw(self) -> memoryview:
        """The whole record, not copied."""
        return self._buffer[self._offset : self._offset + self.fields[0]]
