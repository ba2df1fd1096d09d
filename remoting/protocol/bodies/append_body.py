"""The body of APPEND_MANY. Little-endian.

    request  record images back to back, see `remoting.protocol.records.image`
    reply    u32 count, i64 end_position, count x {u32 queue id, i64 queue offset} (of the parent queue)
             | with the field `subscribers` in the request: a bit per image, the lowest first: 1 if it has no subscriber
             count is 0 for a request with the field `places` = "0"

The place of a batch is that of its first message. An image with a packet id that was stored before has the place
{0, -1}. Thread rule: pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from remoting.protocol.errors import RemoteViolation

_REPLY = struct.Struct("<Iq")
_PLACED = struct.Struct("<Iq")
SUBSCRIBERS_FIELD = "subscribers"
"""Field of APPEND_MANY: "1" requests the images without a subscriber."""
PLACES_FIELD = "places"
"""Field of APPEND_MANY: "0" requests an answer without the places, with the end position only."""


def encode_append_reply(
    end_position: int, placed: Sequence[tuple[int, int]], unwanted: Sequence[bool] | None = None
) -> bytes:
    """Return the reply body: log position behind the last record, and (queue id, queue offset) per image in order.

    `unwanted`: if requested, whether each image's topic is without a subscriber.
    """
    if not placed and unwanted is None:
        return _REPLY.pack(0, end_position)
    pack = _PLACED.pack
    places = [pack(queue_id, offset) for queue_id, offset in placed]
    bits = b"" if unwanted is None else _bits(unwanted)
    return b"".join((_REPLY.pack(len(placed), end_position), *places, bits))


def _bits(flags: Sequence[bool]) -> bytes:
    """Return the flags, eight per byte, lowest bit first."""
    made = bytearray(-(-len(flags) // 8))
    for index, is_set in enumerate(flags):
        if is_set:
            made[index >> 3] |= 1 << (index & 7)
    return bytes(made)


def decode_append_reply(body: bytes) -> tuple[int, list[tuple[int, int]]]:
    """Return (end position, [(queue id, queue offset) per image])."""
    end_position, end, _count = _reply_head(body)
    return end_position, list(_PLACED.iter_unpack(memoryview(body)[_REPLY.size : end]))


def decode_unwanted(body: bytes) -> frozenset[int]:
    """Return the numbers of the images without a subscriber; empty when the answer has no such bits."""
    _end_position, end, count = _reply_head(body)
    bits = body[end:]
    if not any(bits):
        return frozenset()
    return frozenset(index for index in range(count) if bits[index >> 3] >> (index & 7) & 1)


def _reply_head(body: bytes) -> tuple[int, int, int]:
    """Return (end position, end of the places, number of entries) of a reply. RemoteViolation for a wrong size."""
    if len(body) < _REPLY.size:
        raise RemoteViolation(f"append reply of {len(body)} bytes has no head")
    count, end_position = _REPLY.unpack_from(body)
    end = _REPLY.size + count * _PLACED.size
    if len(body) not in (end, end - (-count // 8)):
        raise RemoteViolation(f"append reply of {len(body)} bytes does not hold {count} places")
    return end_position, end, count
