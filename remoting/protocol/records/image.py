"""A record image: a log record as written by a sender, without the broker's own fields. Little-endian.

An image is the record's fixed header and the record's tail, without dispatch entries: these are 16 bytes each, so that
the tail (lengths table, topic, keys, tags, properties, body and the zeros between) is the same bytes in image and log.
A request carries images back to back, without a count or an envelope. Header fields the broker fills in are zero, but

     8 packet id of a QoS 2 publish whose id the broker has to store, else 0  (in the record: crc32c)
    12 number of the requested queue, 0xFFFF for any                          (in the record: epoch)

Its flags and type say whether an image goes to MQTT's queues, to a queue of a RocketMQ topic or is a batch. An image
that is stored before it is published (rows of a sink before their commit, delayed messages) goes to one hidden queue,
with the STAGED flag and, in producer_seq, what is needed to place it later:

    bits 0-15 requested queue | 16-23 kind | 24-31 low flags, of a batch format and codec | 32-63 the feature's own

The flags above bit 7 keep their place, so that a staged batch is a batch and counts its messages.
Invariants: of an MQTT image the topic is the parent topic and the first property the full MQTT topic; one with a packet
id has the client id as its second; a batch has nothing but a topic; `show` returns the image that was hidden. Thread
rule: pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache

from remoting.native.checksum import crc32c
from remoting.protocol.errors import CorruptRecord, LocalMisuse, RemoteViolation
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.record import (
    BATCH,
    BATCH_COUNT_MAX,
    CHECKSUM_SEEDS,
    CLIENT_ID_KEY,
    CONTROL,
    CRC_START,
    DISPATCH,
    DISPATCH_SIZE,
    FLAG_CODEC_MASK,
    FLAG_CODEC_SHIFT,
    FLAG_FORMAT_MASK,
    FLAG_FORMAT_SHIFT,
    FLAG_MQTT,
    FLAG_QOS_MASK,
    FLAG_RETAIN,
    FLAG_STAGED,
    FLAG_SYS_SHIFT,
    FORMAT_ARROW,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MESSAGE,
    MQTT_TOPIC_KEY,
    Buffer,
    RecordHeader,
    RecordView,
    body_format,
    header_of,
    tag_hash,
)

QUEUE_INDEX_ANY = 0xFFFF
"""The broker chooses the queue."""
KIND_MQTT = 0
KIND_QUEUE = 1
KIND_BATCH = 2
"""Kinds of images by destination; staged records contain these numbers."""
MQTT_FLAGS = FLAG_MQTT | FLAG_QOS_MASK | FLAG_RETAIN
"""Flags that the sender of an MQTT image may set; grouping and staging belong to the broker."""
QUEUE_FLAGS = FLAG_QOS_MASK | 0xFFFF << FLAG_SYS_SHIFT
BATCH_FLAGS = FLAG_FORMAT_MASK | FLAG_CODEC_MASK
PACKET_ID_AT = 8

_PADS = tuple(bytes(n) for n in range(8))
_LENGTHS = tuple(struct.Struct(f"<{2 * n}H") for n in range(17))
_PREFIX = struct.Struct("<III")
_PACKET_ID = struct.Struct("<I")
_META_CACHE_ENTRIES_MAX = 8_192
"""(topic, client id) pairs whose meta is cached; devices repeat theirs. The oldest is dropped first."""
_pack = HEADER.pack


def encode_image(
    *,
    flags: int,
    born_ms: int,
    topic: bytes,
    body: Buffer,
    queue_index: int = QUEUE_INDEX_ANY,
    keys: bytes = b"",
    tags: bytes = b"",
    properties: Sequence[tuple[bytes, bytes]] = (),
) -> bytes:
    """Return the image of one message; LocalMisuse if a part does not fit its length field."""
    parts = [part for pair in properties for part in pair]
    n_props, body_len = len(properties), len(body)
    try:
        meta = b"".join((_lengths(n_props).pack(*map(len, parts)), topic, keys, tags, *parts))
        texts_len = 4 * n_props + len(topic) + len(keys) + len(tags)
        meta_end = HEADER_SIZE + len(meta)
        body_off = (meta_end + 7) & ~7
        total = (body_off + body_len + 7) & ~7
        head = _pack(
            total, MESSAGE, 0, queue_index, 0, born_ms, 0, body_len, body_off, flags, 1, 0,
            n_props, len(topic), len(keys), len(tags), len(meta) - texts_len, 0, 0,
        )  # fmt: skip
    except struct.error as error:
        raise LocalMisuse(f"a part of the message is longer than its field: {error}") from error
    return b"".join((head, meta, _PADS[body_off - meta_end], body, _PADS[total - body_off - body_len]))


def encode_batch_image(*, topic: bytes, queue_index: int, born_ms: int, body: bytes, count: int, codec: int) -> bytes:
    """Return the image of a batch whose body is made by `remoting.batches.body`; LocalMisuse for a wrong count."""
    if not 1 <= count <= BATCH_COUNT_MAX:
        raise LocalMisuse(f"a batch of {count} messages, 1 to {BATCH_COUNT_MAX} are possible")
    flags = FORMAT_ARROW << FLAG_FORMAT_SHIFT | codec << FLAG_CODEC_SHIFT
    head, between, behind = _head(
        BATCH, flags, count, queue_index, 0, born_ms, len(topic), len(body), (0, len(topic), 0, 0, 0)
    )
    return b"".join((head, topic, between, body, behind))


def encode_mqtt_image(
    topic: bytes,
    payload: Buffer,
    flags: int,
    born_ms: int,
    client_id: bytes,
    packet_id: int = 0,
    properties: Sequence[tuple[bytes, bytes]] = (),
) -> bytes:
    """Return the image of one MQTT publish; `flags` holds QoS (bits 0-1) and retain (bit 2).

    `packet_id`: of a QoS 2 publish whose id the broker has to store. `properties` follow topic and client id;
    LocalMisuse when they do not fit.
    """
    body_off, parent_len, props_len, meta = (
        _meta_with(topic, client_id, properties) if properties else mqtt_meta(topic, client_id)
    )
    size = len(payload)
    total = (body_off + size + 7) & ~7
    head = _pack(
        total, MESSAGE, packet_id, QUEUE_INDEX_ANY, 0, born_ms, 0, size, body_off, flags | FLAG_MQTT, 1,
        0, 2 + len(properties), parent_len, 0, 0, props_len, 0, 0,
    )  # fmt: skip
    return b"".join((head, meta, _PADS[body_off - HEADER_SIZE - len(meta)], payload, _PADS[total - body_off - size]))


@lru_cache(maxsize=_META_CACHE_ENTRIES_MAX)
def mqtt_meta(topic: bytes, client_id: bytes) -> tuple[int, int, int, bytes]:
    """Return (where the body begins, parent topic length, properties length, meta) of an MQTT publish."""
    return _meta_with(topic, client_id, ())


def _meta_with(
    topic: bytes, client_id: bytes, properties: Sequence[tuple[bytes, bytes]]
) -> tuple[int, int, int, bytes]:
    """As `mqtt_meta`, with more properties, and not cached: these differ from message to message."""
    parent = parent_topic(topic)
    parts = [part for pair in ((MQTT_TOPIC_KEY, topic), (CLIENT_ID_KEY, client_id), *properties) for part in pair]
    props = b"".join(parts)
    if len(props) > 0xFFFF:
        raise LocalMisuse(f"properties of {len(props)} bytes do not fit the record's")
    lengths = _lengths(len(parts) // 2).pack(*map(len, parts))
    meta = b"".join((lengths, parent, props))
    return (HEADER_SIZE + len(meta) + 7) & ~7, len(parent), len(props), meta


def _head(
    magic: int,
    flags: int,
    count: int,
    queue_index: int,
    packet_id: int,
    born_ms: int,
    meta_len: int,
    body_len: int,
    counts: tuple[int, int, int, int, int],
    producer_seq: int = 0,
) -> tuple[bytes, bytes, bytes]:
    """Return (fixed header, zeros between meta and body, zeros after the body)."""
    meta_end = HEADER_SIZE + meta_len
    body_off = (meta_end + 7) & ~7
    body_end = body_off + body_len
    total = (body_end + 7) & ~7
    head = _pack(
        total,
        magic,
        packet_id,
        queue_index,
        0,
        born_ms,
        0,
        body_len,
        body_off,
        flags,
        count,
        0,
        *counts,
        0,
        producer_seq,
    )
    return head, _PADS[body_off - meta_end], _PADS[total - body_end]


def _lengths(n_props: int) -> struct.Struct:
    return _LENGTHS[n_props] if n_props <= 16 else struct.Struct(f"<{2 * n_props}H")


def kind_of(image: RecordView) -> int:
    """Return the KIND_* of an image."""
    if image.type == BATCH & 0xFF:
        return KIND_BATCH
    return KIND_MQTT if image.flags & FLAG_MQTT else KIND_QUEUE


def wanted_queue(image: RecordView) -> int:
    """Return the number of the queue that an image requests, QUEUE_INDEX_ANY for any."""
    return header_of(image).epoch


def packet_id_of(image: RecordView) -> int:
    """Return the packet id of a QoS 2 publish whose id is to be stored, else 0."""
    (found,) = _PACKET_ID.unpack_from(image.raw, PACKET_ID_AT)
    return int(found)


def client_id_of(image: RecordView) -> bytes:
    """Return the MQTT client id of an image, its second property; empty for one that no MQTT client sent."""
    properties = image.properties()
    return properties[1][1] if len(properties) > 1 and properties[1][0] == CLIENT_ID_KEY else b""


def iter_images(images: Buffer) -> Iterator[RecordView]:
    """Yield a checked view of each image; RemoteViolation names the one that is malformed."""
    view = memoryview(images)
    at = number = 0
    while at < len(view):
        image = check_image(view, at, number)
        yield image
        at += image.total
        number += 1


def image_views(images: Buffer) -> list[RecordView]:
    """Return a checked view of each image; RemoteViolation names the one that is malformed."""
    return list(iter_images(images))


def check_image(images: Buffer, at: int, number: int) -> RecordView:
    """Return the image at `at`, the `number`-th of a request. Raises RemoteViolation."""
    try:
        image = RecordView(images, at)
    except CorruptRecord as error:
        raise RemoteViolation(f"image {number} is cut short or its sizes contradict each other") from error
    header = header_of(image)
    total, magic, _packet_id, queue_index, position, _born, store_ms, body_len, body_off, flags, _count = header[:11]
    n_dispatch, n_props, topic, keys, tags, props, tag, seq = header[11:]
    meta_end = HEADER_SIZE + 4 * n_props + topic + keys + tags + props
    if n_dispatch or body_off != (meta_end + 7) & ~7 or total != (body_off + body_len + 7) & ~7:
        raise RemoteViolation(f"image {number}: sizes contradict each other")
    if position or store_ms or tag or seq or queue_index > QUEUE_INDEX_ANY:
        raise RemoteViolation(f"image {number} says what only the broker can say")
    if magic not in (MESSAGE, BATCH):
        raise RemoteViolation(f"image {number}: type {magic:#010x} is neither a message nor a batch")
    allowed = BATCH_FLAGS if magic == BATCH else MQTT_FLAGS if flags & FLAG_MQTT else QUEUE_FLAGS
    if flags & ~allowed:
        raise RemoteViolation(f"image {number}: flags {flags:#x} are not its maker's to set")
    _check_count(header, number)
    _check_properties(image, header, number)
    return image


def _check_count(header: RecordHeader, number: int) -> None:
    """Refuse a count, format or property that contradicts the image's type: only a batch has several messages."""
    count, packed = header.messages, body_format(header.flags)
    if header.magic_type == MESSAGE:
        if count != 1:
            raise RemoteViolation(f"image {number}: {count} messages, but it is no batch")
        return
    if not 1 <= count <= BATCH_COUNT_MAX or not packed:
        raise RemoteViolation(f"image {number}: a batch of {count} messages, format {packed}")
    if header.n_props or header.keys_len or header.tags_len or header.props_len:
        raise RemoteViolation(f"image {number}: a batch has keys, tags and properties in its body alone")


def _check_properties(image: RecordView, header: RecordHeader, number: int) -> None:
    n_props, topic, keys, tags, props_len = header.counts
    flags, packet_id, meta = header.flags, header.crc32c, image.meta
    lengths = _lengths(n_props).unpack_from(meta)
    if sum(lengths) != props_len:
        raise RemoteViolation(f"image {number}: property lengths do not add up to {props_len}")
    if flags & FLAG_MQTT:
        first = 4 * n_props + topic + keys + tags
        key = bytes(meta[first : first + lengths[0]]) if lengths else b""
        if key != MQTT_TOPIC_KEY:
            raise RemoteViolation(f"image {number}: the first property of an MQTT message is originMqttTopic")
    # A packet id occurs only in images of QoS 2 that name the client.
    wanted = flags & FLAG_MQTT and flags & FLAG_QOS_MASK == 2 and n_props >= 2
    if packet_id and not (wanted and packet_id <= 0xFFFF):
        raise RemoteViolation(f"image {number}: a packet id, but no QoS 2 publish of a client")


def change_image(
    image: RecordView,
    *,
    flags: int,
    queue_index: int = 0,
    producer_seq: int = 0,
    properties: Sequence[tuple[bytes, bytes]] | None = None,
) -> bytes:
    """Return an image of the same message, made from an image or its record, with these header fields."""
    counts = header_of(image).counts
    meta = bytes(image.meta)
    if properties is not None:
        parts = [part for pair in properties for part in pair]
        raw = b"".join(parts)
        n_props, topic, keys, tags, _props = counts
        texts = meta[4 * n_props : 4 * n_props + topic + keys + tags]
        meta = b"".join((_lengths(len(properties)).pack(*map(len, parts)), texts, raw))
        counts = (len(properties), topic, keys, tags, len(raw))
    head, between, behind = _head(
        MAGIC | image.type, flags, image.count, queue_index, 0, image.born_ms, len(meta), len(image.body), counts,
        producer_seq,
    )  # fmt: skip
    return b"".join((head, meta, between, image.body, behind))


def encode_control_image(body: bytes, born_ms: int) -> bytes:
    """Return the image of a control record, which only the broker writes."""
    head, _between, behind = _head(CONTROL, 0, 1, 0, 0, born_ms, 0, len(body), (0, 0, 0, 0, 0))
    return b"".join((head, body, behind))


def stamp(
    image: RecordView,
    *,
    epoch: int,
    position: int,
    store_ms: int,
    dispatch: Sequence[tuple[int, int]],
    flags: int | None = None,
) -> bytes:
    """Return the record that an image becomes at `position`; `dispatch` is (queue id, queue offset) per queue.

    `flags`: those of the record, if they differ from the image's.
    """
    added = DISPATCH_SIZE * len(dispatch)
    fields = list(header_of(image))
    tags = image.tags
    fields[0] += added
    fields[3:5] = epoch, position
    fields[6], fields[8], fields[11] = store_ms, fields[8] + added, len(dispatch)
    fields[9] = fields[9] if flags is None else flags
    fields[17] = tag_hash(tags) if tags else 0
    queues = b"".join([DISPATCH.pack(queue_id, 0, offset) for queue_id, offset in dispatch])
    tail = b"".join((_pack(*fields)[CRC_START:], queues, image.raw[HEADER_SIZE:]))
    return _PREFIX.pack(fields[0], fields[1], crc32c(tail, CHECKSUM_SEEDS[fields[1]])) + tail


def hide(image: RecordView, own: int = 0) -> bytes:
    """Return the image as a staged one; `own` is kept in the upper half of its producer_seq."""
    flags = image.flags
    kept = flags >> FLAG_FORMAT_SHIFT if flags & FLAG_FORMAT_MASK else flags
    seq = wanted_queue(image) & 0xFFFF | kind_of(image) << 16 | (kept & 0xFF) << 24 | own << 32
    return change_image(image, flags=FLAG_STAGED | flags & ~0xFF, producer_seq=seq)


def show(record: RecordView) -> bytes:
    """Return the original image of a staged record."""
    seq, flags = header_of(record).producer_seq, record.flags
    low = 0 if flags & FLAG_FORMAT_MASK else seq >> 24 & 0xFF
    return change_image(record, flags=flags & ~0xFF | low, queue_index=seq & 0xFFFF)
