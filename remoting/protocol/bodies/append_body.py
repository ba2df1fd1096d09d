"""Bodies of APPEND_MANY and of RocketMQ's SEND_BATCH_MESSAGE (320).

APPEND_MANY, little-endian:

    request  record images back to back, see `remoting.protocol.records.image`
    reply    u32 count, i64 end_position, count x {u32 queue id, i64 queue offset} (of the parent queue)
             | with the field `subscribers` in the request: a bit per image, the lowest first: 1 if it has no subscriber
             count is 0 for a request with the field `places` = "0"

The place of a batch is that of its first message. An image with a packet id that was stored before has the place
{0, -1}. SEND_BATCH_MESSAGE, big-endian, messages of one topic and queue back to back:

    n x { i32 total | i32 magic 0 | i32 body crc 0 | i32 flag | i32 length, body | i16 length, properties }

Topic, queue and sys flag stand in the request's fields and apply to all. Thread rule: pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.records.properties import decode_properties, encode_properties

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


_HEAD = struct.Struct(">iiiii")
_LENGTH = struct.Struct(">h")


class BatchMessage(msgspec.Struct):
    """One message of a batch; `flag` is the client's own number, kept unchanged."""

    body: bytes
    properties: list[tuple[bytes, bytes]] = []
    flag: int = 0


def encode_batch(messages: Sequence[BatchMessage]) -> bytes:
    """Return the batch body; LocalMisuse if a part does not fit."""
    parts: list[bytes] = []
    for message in messages:
        text = encode_properties(message.properties)
        total = _HEAD.size + len(message.body) + _LENGTH.size + len(text)
        try:
            head = _HEAD.pack(total, 0, 0, message.flag, len(message.body))
        except struct.error as error:
            raise LocalMisuse(f"a message of the batch does not fit: {error}") from error
        parts += (head, message.body, _LENGTH.pack(len(text)), text)
    return b"".join(parts)


def decode_batch(body: bytes) -> list[BatchMessage]:
    """Return the messages of a batch body; RemoteViolation names the first malformed one."""
    messages: list[BatchMessage] = []
    at = 0
    try:
        while at < len(body):
            total, _, _, flag, body_len = _HEAD.unpack_from(body, at)
            text_at = at + _HEAD.size + body_len
            if body_len < 0 or text_at < at:
                raise RemoteViolation(f"batch message {len(messages)}: a body of {body_len} bytes")
            (text_len,) = _LENGTH.unpack_from(body, text_at)
            end = text_at + _LENGTH.size + text_len
            if text_len < 0 or end != at + total or end > len(body):
                raise RemoteViolation(f"batch message {len(messages)}: sizes contradict each other")
            text = body[text_at + _LENGTH.size : end]
            messages.append(BatchMessage(body[at + _HEAD.size : text_at], decode_properties(text), flag))
            at = end
    except struct.error as error:
        raise RemoteViolation(f"batch message {len(messages)} is cut short") from error
    return messages
