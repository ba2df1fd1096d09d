"""Bodies of APPEND_MANY and STAGE: many messages of any topics in one request, and where they went. Little-endian.

    entries  u32 count, entries back to back
    entry    u32 entry_size | u8 kind (0 MQTT, 1 queue, 2 batch) | u8 flags (bits 0-7 of the record's, of a batch 8-15)
             u16 queue index (0xFFFF: broker picks) | i64 born_ms
             u16 n_props, topic_len, keys_len, tags_len, props_len, messages - 1 | u32 body_len | meta | body
    reply    u32 count, i64 end_position, count x {u32 queue id, i64 queue offset} (of the parent queue)
             | for who asked with the field `subscribers`: a bit per entry, the lowest first: nobody has subscribed

`meta` is the record's: lengths table, topic, keys, tags, properties; the broker copies it into the log as it stands,
so it is checked here once. A batch is one entry of several messages, whose keys, tags and properties are in its body;
the reply says the offset of the first. In an MQTT entry `messages - 1` is the packet id of a QoS 2 publish of a durable
session, noted with the message, else 0; its place in the reply is {0, -1} when it was stored before. Invariant: of an
MQTT entry the topic is the parent topic and the first property the full MQTT topic; a batch has nothing but a topic.
Thread rule: pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.record import (
    BATCH_COUNT_MAX,
    CLIENT_ID_KEY,
    FLAG_MQTT,
    FLAG_QOS_MASK,
    FORMAT_ARROW,
    MQTT_TOPIC_KEY,
)

KIND_MQTT = 0
KIND_QUEUE = 1
KIND_BATCH = 2
QUEUE_INDEX_ANY = 0xFFFF
"""The broker picks the queue."""

ENTRY = struct.Struct("<IBBHqHHHHHHI")
ENTRY_SIZE = ENTRY.size
_COUNT = struct.Struct("<I")
_REPLY = struct.Struct("<Iq")
_PLACED = struct.Struct("<Iq")
_LENGTHS = tuple(struct.Struct(f"<{2 * n}H") for n in range(17))
_CLIENT_ID_LENGTHS = struct.Struct("<HHH")
_MQTT_TOPIC_KEY_SIZE = len(MQTT_TOPIC_KEY)
_CLIENT_ID_KEY_SIZE = len(CLIENT_ID_KEY)
SUBSCRIBERS_FIELD = "subscribers"
"""Field of APPEND_MANY: "1" asks which entries nobody has subscribed to."""
_META_CACHE_ENTRIES_MAX = 8_192
"""(topic, client id) pairs whose meta is kept ready; a device repeats its own. Beyond it the oldest is built again."""


class AppendEntry(msgspec.Struct, gc=False):
    """One message of an append request; `meta` and `body` are ready to be copied into a record."""

    kind: int
    flags: int
    queue_index: int
    born_ms: int
    n_props: int
    topic_len: int
    keys_len: int
    tags_len: int
    props_len: int
    meta: bytes
    body: bytes
    count: int = 1
    packet_id: int = 0

    @property
    def client_id(self) -> bytes:
        """MQTT client id: the second property of an MQTT entry that has a packet id."""
        meta = self.meta
        value_len, key_len, length = _CLIENT_ID_LENGTHS.unpack_from(meta, 2)
        at = 4 * self.n_props + self.topic_len + self.keys_len + self.tags_len + _MQTT_TOPIC_KEY_SIZE + value_len
        return meta[at + key_len : at + key_len + length]

    @property
    def topic(self) -> bytes:
        """RocketMQ topic; of an MQTT entry the parent topic."""
        start = 4 * self.n_props
        return self.meta[start : start + self.topic_len]

    @property
    def tags(self) -> bytes:
        """RocketMQ TAGS."""
        start = 4 * self.n_props + self.topic_len + self.keys_len
        return self.meta[start : start + self.tags_len]

    @property
    def mqtt_topic(self) -> bytes | None:
        """Full MQTT topic, None for an entry of kind queue."""
        if self.kind != KIND_MQTT:
            return None
        meta = self.meta
        start = 4 * self.n_props + self.topic_len + self.keys_len + self.tags_len + _MQTT_TOPIC_KEY_SIZE
        return meta[start : start + (meta[2] | meta[3] << 8)]


def encode_entry(
    *,
    kind: int,
    flags: int,
    queue_index: int,
    born_ms: int,
    topic: bytes,
    keys: bytes = b"",
    tags: bytes = b"",
    properties: Sequence[tuple[bytes, bytes]] = (),
    body: bytes,
) -> bytes:
    """Return one append entry; LocalMisuse if a part does not fit its length field."""
    raw = b"".join([part for pair in properties for part in pair])
    try:
        lengths = _lengths(len(properties)).pack(*[len(part) for pair in properties for part in pair])
        meta = b"".join((lengths, topic, keys, tags, raw))
        size = ENTRY_SIZE + len(meta) + len(body)
        head = ENTRY.pack(
            size,
            kind,
            flags,
            queue_index,
            born_ms,
            len(properties),
            len(topic),
            len(keys),
            len(tags),
            len(raw),
            0,
            len(body),
        )
    except struct.error as error:
        raise LocalMisuse(f"a part of the message is longer than its field: {error}") from error
    return b"".join((head, meta, body))


def encode_batch_entry(*, topic: bytes, queue_index: int, born_ms: int, body: bytes, count: int, codec: int) -> bytes:
    """Return the append entry of a batch whose body `remoting.batches.body` made; LocalMisuse for a wrong count."""
    if not 1 <= count <= BATCH_COUNT_MAX:
        raise LocalMisuse(f"a batch of {count} messages, 1 to {BATCH_COUNT_MAX} are possible")
    size = ENTRY_SIZE + len(topic) + len(body)
    flags = FORMAT_ARROW | codec << 4
    head = ENTRY.pack(size, KIND_BATCH, flags, queue_index, born_ms, 0, len(topic), 0, 0, 0, count - 1, len(body))
    return b"".join((head, topic, body))


@lru_cache(maxsize=_META_CACHE_ENTRIES_MAX)
def mqtt_meta(topic: bytes, client_id: bytes) -> tuple[int, int, int, bytes]:
    """Return (entry size without body, parent topic length, properties length, meta) of an MQTT publish."""
    parent = parent_topic(topic)
    props = b"".join((MQTT_TOPIC_KEY, topic, CLIENT_ID_KEY, client_id))
    if len(props) > 0xFFFF:
        raise LocalMisuse(
            f"topic and client id of {len(topic)} and {len(client_id)} bytes do not fit the record's properties"
        )
    lengths = _LENGTHS[2].pack(_MQTT_TOPIC_KEY_SIZE, len(topic), _CLIENT_ID_KEY_SIZE, len(client_id))
    meta = b"".join((lengths, parent, props))
    return ENTRY_SIZE + len(meta), len(parent), len(props), meta


def _meta_with(
    topic: bytes, client_id: bytes, properties: Sequence[tuple[bytes, bytes]]
) -> tuple[int, int, int, bytes]:
    """As `mqtt_meta`, with more properties: those of a message are its own, so nothing of it is kept."""
    parent = parent_topic(topic)
    parts = [part for pair in ((MQTT_TOPIC_KEY, topic), (CLIENT_ID_KEY, client_id), *properties) for part in pair]
    props = b"".join(parts)
    if len(props) > 0xFFFF:
        raise LocalMisuse(f"properties of {len(props)} bytes do not fit the record's")
    lengths = _lengths(len(parts) // 2).pack(*map(len, parts))
    meta = b"".join((lengths, parent, props))
    return ENTRY_SIZE + len(meta), len(parent), len(props), meta


def encode_mqtt_entry(
    topic: bytes,
    payload: bytes | bytearray | memoryview,
    flags: int,
    born_ms: int,
    client_id: bytes,
    packet_id: int = 0,
    properties: Sequence[tuple[bytes, bytes]] = (),
) -> bytes:
    """Return the append entry of one MQTT publish; `flags` holds QoS (bits 0-1) and retain (bit 2).

    `packet_id`: of a QoS 2 publish whose id the broker has to note. `properties` stand behind topic and client id;
    LocalMisuse when they do not fit.
    """
    n_props = 2 + len(properties)
    size, parent_len, props_len, meta = (
        _meta_with(topic, client_id, properties) if properties else mqtt_meta(topic, client_id)
    )
    body_len = len(payload)
    head = ENTRY.pack(
        size + body_len,
        KIND_MQTT,
        flags | FLAG_MQTT,
        QUEUE_INDEX_ANY,
        born_ms,
        n_props,
        parent_len,
        0,
        0,
        props_len,
        packet_id,
        body_len,
    )
    return b"".join((head, meta, payload))


def encode_entries(entries: Sequence[bytes]) -> bytes:
    """Return the request body of already encoded entries."""
    return b"".join((_COUNT.pack(len(entries)), *entries))


def decode_entries(body: bytes) -> list[AppendEntry]:
    """Return the entries of a request body; RemoteViolation names the entry that is malformed."""
    end = len(body)
    if end < 4:
        raise RemoteViolation(f"append body of {end} bytes has no count")
    (count,) = _COUNT.unpack_from(body)
    if count > (end - 4) // ENTRY_SIZE:
        raise RemoteViolation(f"append body of {end} bytes cannot hold {count} entries")
    unpack_from, two_pairs, make, startswith = ENTRY.unpack_from, _LENGTHS[2].unpack_from, AppendEntry, body.startswith
    key_size = _MQTT_TOPIC_KEY_SIZE
    entries: list[AppendEntry] = []
    add = entries.append
    at = 4
    try:
        for _ in range(count):
            (
                size, kind, flags, queue_index, born_ms, n_props, topic_len, keys_len, tags_len, props_len, more,
                body_len,
            ) = unpack_from(body, at)  # fmt: skip
            meta_at = at + ENTRY_SIZE
            texts = 4 * n_props + topic_len + keys_len + tags_len
            body_at = meta_at + texts + props_len
            at += size
            if body_at + body_len != at or at > end:
                raise RemoteViolation(f"append entry {len(entries)}: sizes contradict each other")
            packet_id = 0
            # What every publish of a proxy looks like is checked in line, everything else by the careful function.
            if n_props == 2 and kind == KIND_MQTT and not more:
                key, value, key_1, value_1 = two_pairs(body, meta_at)
                plain = key == key_size and key + value + key_1 + value_1 == props_len
                plain = plain and startswith(MQTT_TOPIC_KEY, meta_at + texts)
            else:
                plain = False
            if not plain:
                _check_properties(kind, n_props, props_len, body, meta_at, meta_at + texts, len(entries))
                _check_count(kind, more, texts + props_len - topic_len, len(entries))
                if more and kind == KIND_MQTT:
                    _check_exact(flags, n_props, len(entries))
                    packet_id, more = more, 0
            add(
                make(
                    kind, flags, queue_index, born_ms, n_props, topic_len, keys_len, tags_len, props_len,
                    body[meta_at:body_at], body[body_at:at], more + 1, packet_id,
                )
            )  # fmt: skip
    except struct.error as error:
        raise RemoteViolation(f"append entry {len(entries)} is cut short") from error
    if at != end:
        raise RemoteViolation(f"{end - at} bytes follow the last append entry")
    return entries


def _check_properties(
    kind: int, n_props: int, props_len: int, body: bytes, lengths_at: int, props_at: int, index: int
) -> None:
    lengths = _lengths(n_props).unpack_from(body, lengths_at)
    if sum(lengths) != props_len:
        raise RemoteViolation(f"append entry {index}: property lengths do not add up to {props_len}")
    if kind in (KIND_QUEUE, KIND_BATCH):
        return
    if kind != KIND_MQTT:
        raise RemoteViolation(f"append entry {index}: kind {kind} is neither 0 (MQTT) nor 1 (queue) nor 2 (batch)")
    if not lengths or lengths[0] != _MQTT_TOPIC_KEY_SIZE or not body.startswith(MQTT_TOPIC_KEY, props_at):
        raise RemoteViolation(f"append entry {index}: the first property of an MQTT message is originMqttTopic")


def _check_count(kind: int, more: int, other_meta: int, index: int) -> None:
    """Only a batch holds more than one message, and its record says nothing of any of them but the topic."""
    if more and kind == KIND_QUEUE:
        raise RemoteViolation(f"append entry {index}: {more + 1} messages, but it is no batch")
    if other_meta and kind == KIND_BATCH:
        raise RemoteViolation(f"append entry {index}: a batch has keys, tags and properties in its body alone")


def _check_exact(flags: int, n_props: int, index: int) -> None:
    """A packet id stands in entries of QoS 2 that say whose it is."""
    if flags & FLAG_QOS_MASK != 2 or n_props < 2:
        raise RemoteViolation(f"append entry {index}: a packet id, but no QoS 2 publish of a client")


def _lengths(n_props: int) -> struct.Struct:
    return _LENGTHS[n_props] if n_props <= 16 else struct.Struct(f"<{2 * n_props}H")


def encode_append_reply(
    end_position: int, placed: Sequence[tuple[int, int]], unwanted: Sequence[bool] | None = None
) -> bytes:
    """Return the reply body: log position behind the last record, and (queue id, queue offset) per entry in order.

    `unwanted`: for who asked, whether nobody has subscribed to an entry's topic.
    """
    pack = _PLACED.pack
    places = [pack(queue_id, offset) for queue_id, offset in placed]
    bits = b"" if unwanted is None else _bits(unwanted)
    return b"".join((_REPLY.pack(len(placed), end_position), *places, bits))


def _bits(flags: Sequence[bool]) -> bytes:
    """The flags, eight in a byte, the lowest bit first."""
    made = bytearray(-(-len(flags) // 8))
    for index, is_set in enumerate(flags):
        if is_set:
            made[index >> 3] |= 1 << (index & 7)
    return bytes(made)


def decode_append_reply(body: bytes) -> tuple[int, list[tuple[int, int]]]:
    """Return (end position, [(queue id, queue offset) per entry])."""
    end_position, end, _count = _reply_head(body)
    return end_position, list(_PLACED.iter_unpack(memoryview(body)[_REPLY.size : end]))


def decode_unwanted(body: bytes) -> frozenset[int]:
    """Return the entries, by number, that nobody has subscribed to; none when the answer does not say."""
    _end_position, end, count = _reply_head(body)
    bits = body[end:]
    if not any(bits):
        return frozenset()
    return frozenset(index for index in range(count) if bits[index >> 3] >> (index & 7) & 1)


def _reply_head(body: bytes) -> tuple[int, int, int]:
    """(end position, where the places end, number of entries) of a reply whose size is right."""
    if len(body) < _REPLY.size:
        raise RemoteViolation(f"append reply of {len(body)} bytes has no head")
    count, end_position = _REPLY.unpack_from(body)
    end = _REPLY.size + count * _PLACED.size
    if len(body) not in (end, end - (-count // 8)):
        raise RemoteViolation(f"append reply of {len(body)} bytes does not hold {count} places")
    return end_position, end, count
