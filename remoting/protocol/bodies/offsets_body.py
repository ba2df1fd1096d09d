"""Body of APPEND_OFFSETS: how far sessions have read their queues. Little-endian.

    u32 n, n x {u16 key_len, u16 0, u32 queue id, i64 next offset, key bytes}          key = MQTT client id

Invariant: the offset is the lowest queue offset not yet acknowledged, so a restart repeats and never skips.
Thread rule: pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from remoting.protocol.errors import LocalMisuse, RemoteViolation

_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<HHIq")


def encode_offsets(offsets: Sequence[tuple[bytes, int, int]]) -> bytes:
    """Return an APPEND_OFFSETS body of (key, queue id, next offset)."""
    parts = [_COUNT.pack(len(offsets))]
    try:
        for key, queue_id, offset in offsets:
            parts += (_ENTRY.pack(len(key), 0, queue_id, offset), key)
    except struct.error as error:
        raise LocalMisuse(f"an offset does not fit its field: {error}") from error
    return b"".join(parts)


def decode_offsets(body: bytes) -> list[tuple[bytes, int, int]]:
    """Return (key, queue id, next offset) per entry."""
    offsets: list[tuple[bytes, int, int]] = []
    try:
        (count,) = _COUNT.unpack_from(body)
        at = _COUNT.size
        for _ in range(count):
            key_len, _, queue_id, offset = _ENTRY.unpack_from(body, at)
            at += _ENTRY.size + key_len
            if at > len(body):
                raise RemoteViolation(f"offsets: key {len(offsets)} passes the body's end")
            offsets.append((bytes(body[at - key_len : at]), queue_id, offset))
    except struct.error as error:
        raise RemoteViolation(f"offsets: entry {len(offsets)} is cut short") from error
    if at != len(body):
        raise RemoteViolation(f"offsets: {len(body) - at} bytes follow the last entry")
    return offsets
