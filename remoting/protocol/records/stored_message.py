"""RocketMQ's stored-message layout, read by its clients from a pull and by tools from a file; message ids. Big-endian.

     0 i32 total | 4 i32 magic (v1: u8 topic length, v2: u16) | 8 i32 body CRC32 & 0x7fffffff | 12 i32 queue id
    16 i32 flag | 20 i64 queue offset | 28 i64 position | 36 i32 sys flag | 40 i64 born ms
    48 born host (4 or 16) + i32 port | i64 store ms | store host (4 or 16) + i32 port
    i32 reconsume times | i64 prepared position
    i32 body length, body | topic length, topic | i16 properties length, properties

    offset id   hex(ip 4 or 16 | i32 port | i64 position): where the message is stored; 32 or 56 digits

Invariant: decode(encode(m)) == m and unpack(pack(x)) == x; the bits of sys_flag for the sizes of the hosts follow from
the hosts. Thread rule: pure functions.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from ipaddress import ip_address

import msgspec

from remoting.protocol.errors import CorruptRecord, LocalMisuse, RemoteViolation
from remoting.protocol.records.properties import (
    KEYS,
    PROPERTIES_SIZE_BYTES_MAX,
    TAGS,
    decode_properties,
    encode_properties,
)
from remoting.protocol.records.record import FLAG_SYS_SHIFT, RecordView

Host = tuple[str, int]
"""IP address text and port."""

HOSTS_KEPT_MAX = 1_024
"""Hosts whose packed forms are cached: the same few occur in most messages."""

_PORT = struct.Struct(">i")


@lru_cache(HOSTS_KEPT_MAX)
def pack_host(host: Host) -> bytes:
    """Return ip and port as stored: 8 bytes for IPv4, 20 for IPv6; LocalMisuse if it is neither."""
    address, port = host
    try:
        return ip_address(address).packed + _PORT.pack(port)
    except (ValueError, struct.error) as error:
        raise LocalMisuse(f"{address}:{port} is not an IP address with a port") from error


@lru_cache(HOSTS_KEPT_MAX)
def unpack_host(packed: bytes) -> Host:
    """Return the host of 8 or 20 stored bytes."""
    if len(packed) not in (8, 20):
        raise RemoteViolation(f"a host of {len(packed)} bytes, neither 8 (IPv4) nor 20 (IPv6)")
    return str(ip_address(packed[:-4])), _PORT.unpack(packed[-4:])[0]


def offset_message_id(store_host: Host, position: int) -> str:
    """Return the message id that contains where the message is stored."""
    return (pack_host(store_host) + position.to_bytes(8, "big")).hex().upper()


MAGIC_V1 = -626_843_481
MAGIC_V2 = -626_843_477
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
_HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6
_TOPIC_V1_BYTES_MAX = 127
"""Longest topic of a v1 message: Java reads its length as a signed byte."""
_CRC_MASK = 0x7FFFFFFF

_HEAD = struct.Struct(">iiiiiqqiq")
_STORE_MS = struct.Struct(">q")
_TAIL = struct.Struct(">iqi")
_TOTAL = struct.Struct(">i")


class StoredMessage(msgspec.Struct):
    """One message as RocketMQ stores it; times in ms since 1970, `position` its byte offset in the log."""

    topic: bytes
    body: bytes
    queue_id: int
    queue_offset: int
    position: int
    born_ms: int
    store_ms: int
    born_host: Host
    store_host: Host
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_position: int = 0
    properties: list[tuple[bytes, bytes]] = []

    @property
    def tags(self) -> bytes | None:
        """The message's tag, None without one."""
        return dict(self.properties).get(TAGS)

    @property
    def keys(self) -> list[bytes]:
        """The message's keys, split at spaces."""
        return dict(self.properties).get(KEYS, b"").split()


def encode_stored(message: StoredMessage) -> bytes:
    """Return the stored form; LocalMisuse if a part does not fit."""
    topic, body = message.topic, message.body
    text = encode_properties(message.properties)
    born_host, store_host = pack_host(message.born_host), pack_host(message.store_host)
    sys_flag = message.sys_flag & ~_HOST_BITS
    sys_flag |= BORN_HOST_V6 * (len(born_host) > 8) | STORE_HOST_V6 * (len(store_host) > 8)
    short = len(topic) <= _TOPIC_V1_BYTES_MAX
    try:
        behind = b"".join(
            (
                born_host,
                _STORE_MS.pack(message.store_ms),
                store_host,
                _TAIL.pack(message.reconsume_times, message.prepared_position, len(body)),
                body,
                len(topic).to_bytes(1 if short else 2, "big"),
                topic,
                len(text).to_bytes(2, "big"),
                text,
            )
        )
        head = _HEAD.pack(
            _HEAD.size + len(behind), MAGIC_V1 if short else MAGIC_V2, zlib.crc32(body) & _CRC_MASK, message.queue_id,
            message.flag, message.queue_offset, message.position, sys_flag, message.born_ms,
        )  # fmt: skip
    except (struct.error, OverflowError) as error:
        raise LocalMisuse(f"a message of topic {topic[:64]!r} does not fit RocketMQ's layout: {error}") from error
    return head + behind


def decode_stored(buffer: bytes | memoryview, offset: int = 0) -> tuple[StoredMessage, int]:
    """Return the message at `offset` and its total bytes.

    Raises:
        CorruptRecord: the body does not have its checksum.
        RemoteViolation: anything else is malformed.
    """
    data = memoryview(buffer)[offset:]
    if len(data) < _HEAD.size:
        raise RemoteViolation(f"{len(data)} bytes are too few for a stored message")
    total, magic, crc, queue_id, flag, queue_offset, position, sys_flag, born_ms = _HEAD.unpack_from(data)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RemoteViolation(f"magic {magic} is no stored message")
    if not _HEAD.size <= total <= len(data):
        raise RemoteViolation(f"stored message of {total} bytes in {len(data)}")
    data = data[:total]
    born_host, at = _host(data, _HEAD.size, wide=bool(sys_flag & BORN_HOST_V6))
    try:
        (store_ms,) = _STORE_MS.unpack_from(data, at)
        store_host, at = _host(data, at + _STORE_MS.size, wide=bool(sys_flag & STORE_HOST_V6))
        reconsume_times, prepared_position, body_len = _TAIL.unpack_from(data, at)
    except struct.error as error:
        raise RemoteViolation(f"stored message of {total} bytes is cut short") from error
    body, at = _bytes(data, at + _TAIL.size, body_len)
    topic, at = _counted(data, at, 1 if magic == MAGIC_V1 else 2)
    text, at = _counted(data, at, 2)
    if at != total or len(text) > PROPERTIES_SIZE_BYTES_MAX:
        raise RemoteViolation(f"stored message of {total} bytes has parts of {at}")
    if zlib.crc32(body) & _CRC_MASK != crc & _CRC_MASK:
        raise CorruptRecord(f"body of the stored message at position {position} does not have its checksum")
    return StoredMessage(
        topic, body, queue_id, queue_offset, position, born_ms, store_ms, born_host, store_host,
        flag, sys_flag, reconsume_times, prepared_position, decode_properties(text),
    ), total  # fmt: skip


def iter_stored(blob: bytes | memoryview) -> Iterator[StoredMessage]:
    """Yield the messages of a pull's body, back to back."""
    at, view = 0, memoryview(blob)
    while at < len(view):
        message, total = decode_stored(view, at)
        yield message
        at += total


def from_record(
    view: RecordView, *, queue_id: int, queue_offset: int, born_host: Host, store_host: Host
) -> StoredMessage:
    """Return a record as RocketMQ's message in one of its queues; tags and keys become properties."""
    properties = view.properties()
    properties += [(name, text) for name, text in ((TAGS, view.tags), (KEYS, view.keys)) if text]
    return StoredMessage(
        view.topic, bytes(view.body), queue_id, queue_offset, view.position, view.born_ms, view.store_ms,
        born_host, store_host,
        sys_flag=view.flags >> FLAG_SYS_SHIFT, properties=properties,
    )  # fmt: skip


def _bytes(data: memoryview, at: int, length: int) -> tuple[bytes, int]:
    end = at + length
    if length < 0 or end > len(data):
        raise RemoteViolation(f"a part of {length} bytes at {at} passes a stored message of {len(data)}")
    return bytes(data[at:end]), end


def _counted(data: memoryview, at: int, length_size: int) -> tuple[bytes, int]:
    length, at = _bytes(data, at, length_size)
    return _bytes(data, at, int.from_bytes(length, "big"))


def _host(data: memoryview, at: int, *, wide: bool) -> tuple[Host, int]:
    packed, end = _bytes(data, at, 20 if wide else 8)
    return unpack_host(packed), end
