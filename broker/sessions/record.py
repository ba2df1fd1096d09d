"""How a session lies in the log: one record per durable session, one small record per committed offset.

```
SESSION           key = client id (UTF-8)                      value = msgpack array of SessionRecord
SESSION_OFFSET    key = client id, 0x00, queue id u32 LE       value = next offset i64 LE [| exact_below i64 LE]
SESSION_INFLIGHT  key = client id, 0x00, packet id >> 4 u16 LE value = n x {packet id u16, queue id u32, offset i64,
                                                                            phase u8}, LE
SESSION_RECEIVED  key = client id, 0x00, packet id >> 6 u16 LE value = u64 LE, bit i: the packet id 64 * block + i
```
A client id cannot contain a zero byte (MQTT forbids U+0000), so the keys are unambiguous. The epoch is not stored: it
is made of the store's epoch, which every start raises, and a counter, so a restart can never repeat one. Members of
records that came later stand at the end and have defaults, so records of former versions are read.
Pure codec: no I/O, no clock.
"""

from __future__ import annotations

import struct

import msgspec

_QUEUE = struct.Struct("<I")
_BLOCK = struct.Struct("<H")
_OFFSET = struct.Struct("<q")
_OFFSETS = struct.Struct("<qq")
_INFLIGHT = struct.Struct("<HIqB")
_BITS = struct.Struct("<Q")

INFLIGHT_BLOCK_SHIFT = 4
"""Packet ids of one SESSION_INFLIGHT record differ in so many low bits: few records for a run of ids, small ones."""
RECEIVED_BLOCK_SHIFT = 6
"""The same for SESSION_RECEIVED."""


class SubscriptionRecord(msgspec.Struct, array_like=True):
    """A subscription in the log; the members are those of `Subscription`."""

    filter: str
    qos: int
    queue_id: int
    options: int = 0
    subscription_id: int = 0
    exact_from: int = 0


class SessionRecord(msgspec.Struct, array_like=True):
    """Durable part of a session. `closed_ms` is 0 while it is connected."""

    user: str | None
    expiry_s: int
    closed_ms: int
    subscriptions: list[SubscriptionRecord]
    inflight: list[tuple[int, int, int]]
    removed: dict[str, int] = {}


encode_record = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(SessionRecord).decode


def offset_key(client_id: str, queue_id: int) -> bytes:
    """Key of a SESSION_OFFSET record."""
    return client_id.encode() + b"\x00" + _QUEUE.pack(queue_id)


def split_offset_key(key: bytes) -> tuple[str, int]:
    """(client id, queue id) of a SESSION_OFFSET key."""
    assert key[-5] == 0, key
    return key[:-5].decode(), _QUEUE.unpack_from(key, len(key) - 4)[0]


def pack_offset(offset: int, exact_below: int = 0) -> bytes:
    """Value of an offset record."""
    return _OFFSETS.pack(offset, exact_below) if exact_below else _OFFSET.pack(offset)


def unpack_offset(value: bytes) -> tuple[int, int]:
    """(offset, exact_below) from an offset record."""
    if len(value) == _OFFSET.size:
        return _OFFSET.unpack(value)[0], 0
    offset, exact_below = _OFFSETS.unpack(value)
    return offset, exact_below


def block_key(client_id: str, block: int) -> bytes:
    """Key of a SESSION_INFLIGHT or SESSION_RECEIVED record."""
    return client_id.encode() + b"\x00" + _BLOCK.pack(block)


def split_block_key(key: bytes) -> tuple[str, int]:
    """(client id, block) of such a key."""
    assert key[-3] == 0, key
    return key[:-3].decode(), _BLOCK.unpack_from(key, len(key) - 2)[0]


def pack_inflight(exact: dict[int, tuple[int, int, int]], block: int) -> bytes:
    """Value of one block of deliveries, b"" when there is none in it."""
    first = block << INFLIGHT_BLOCK_SHIFT
    pack = _INFLIGHT.pack
    return b"".join(
        [
            pack(packet_id, *exact[packet_id])
            for packet_id in range(first, first + (1 << INFLIGHT_BLOCK_SHIFT))
            if packet_id in exact
        ]
    )


def unpack_inflight(value: bytes) -> dict[int, tuple[int, int, int]]:
    """Packet id -> (queue id, offset, phase) of one block."""
    return {packet_id: (queue, offset, phase) for packet_id, queue, offset, phase in _INFLIGHT.iter_unpack(value)}


def pack_received(bits: int) -> bytes:
    """Value of one block of received ids."""
    return _BITS.pack(bits)


def unpack_received(value: bytes) -> int:
    """Bits of one block of received ids."""
    bits: int = _BITS.unpack(value)[0]
    return bits
