"""Body of SEND_BATCH_MESSAGE (320): messages of one topic and queue back to back. Big-endian.

    n x { i32 total | i32 magic 0 | i32 body crc 0 | i32 flag | i32 length, body | i16 length, properties }

Topic, queue and sys flag stand in the request's fields and apply to all. Thread rule: pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.records.properties import decode_properties, encode_properties

_HEAD = struct.Struct(">iiiii")
_LENGTH = struct.Struct(">h")


class BatchMessage(msgspec.Struct):
    """One message of a batch; `flag` is the client's own number, kept as it is."""

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
