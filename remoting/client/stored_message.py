"""RocketMQ's own message layout as a pull (code 11) answers it, read by our consumer. Big-endian.

    0 i32 total | 4 i32 magic (v1: u8 topic length, v2: u16) | 8 i32 body crc | 12 i32 queue id | 16 i32 flag
    20 i64 queue offset | 28 i64 physical offset | 36 i32 sys flag | 40 i64 born ms | 48 born host (4 or 16) + i32 port
    i64 store ms | store host (4 or 16) + i32 port | i32 reconsume times | i64 prepared offset
    i32 body length, body | topic length, topic | i16 properties length, properties (k \\x01 v \\x02 ...)

Invariant: whatever is malformed raises RemoteViolation, nothing else. Pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from remoting.protocol.errors import RemoteViolation

MAGIC_V1 = -626_843_481
MAGIC_V2 = -626_843_477
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20

_HEAD = struct.Struct(">iiiiiqqiq")
_TAIL = struct.Struct(">iq")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


@dataclass(slots=True)
class StoredMessage:
    """One message of a queue as its broker stored it; times in milliseconds since 1970."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    born_ms: int
    store_ms: int
    reconsume_times: int
    body: bytes
    properties: dict[str, str]

    @property
    def tags(self) -> str | None:
        """The message's tag."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> list[str]:
        """The message's keys."""
        return self.properties.get("KEYS", "").split()


def decode_messages(body: bytes) -> list[StoredMessage]:
    """All messages of a pull's body, back to back."""
    messages: list[StoredMessage] = []
    at = 0
    while at < len(body):
        try:
            total = int(_I32.unpack_from(body, at)[0])
            if total < _HEAD.size or at + total > len(body):
                raise RemoteViolation(f"message of {total} bytes at {at} of {len(body)}")
            messages.append(_decode(body[at : at + total]))
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise RemoteViolation(f"message at {at} of {len(body)} cannot be read: {error}") from error
        at += total
    return messages


def _decode(data: bytes) -> StoredMessage:
    _, magic, _, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = _HEAD.unpack_from(data)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RemoteViolation(f"magic {magic} is none of a message")
    at = _HEAD.size + (20 if sys_flag & BORN_HOST_V6 else 8)
    store_ms = int(_I64.unpack_from(data, at)[0])
    at += 8 + (20 if sys_flag & STORE_HOST_V6 else 8)
    reconsume_times, _ = _TAIL.unpack_from(data, at)
    at += _TAIL.size
    body, at = _slice(data, at, 4)
    topic, at = _slice(data, at, 1 if magic == MAGIC_V1 else 2)
    properties, at = _slice(data, at, 2)
    return StoredMessage(
        topic.decode(),
        queue_id,
        queue_offset,
        physical_offset,
        flag,
        sys_flag,
        born_ms,
        store_ms,
        reconsume_times,
        body,
        decode_properties(properties.decode()),
    )


def _slice(data: bytes, at: int, length_size: int) -> tuple[bytes, int]:
    start = at + length_size
    end = start + int.from_bytes(data[at:start], "big")
    if end > len(data):
        raise RemoteViolation(f"a part of {end - start} bytes does not fit a message of {len(data)}")
    return data[start:end], end


def decode_properties(text: str) -> dict[str, str]:
    """Properties of a message from RocketMQ's text form."""
    properties: dict[str, str] = {}
    for pair in text.split("\x02"):
        key, separator, value = pair.partition("\x01")
        if separator:
            properties[key] = value
    return properties
