"""A message as a program hands it to a producer, and the place it got.

Invariant: what a message cannot have is said when it is handed over, not when its batch fails. Thread rule: plain
values.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from remoting.batches.row import BatchRow
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.image import encode_image

OVERHEAD_BYTES = 120
"""What a waiting message takes beside its texts: the objects around it."""
TEXT_BYTES_MAX = 0xFFFF
"""Longest key, tag, property or sum of properties: their length fields have 16 bits."""
BORN_MS_MAX = 2**53
"""Some 285,000 years: as microseconds it still is a signed 64-bit number."""


class Message(msgspec.Struct, kw_only=True):
    """One message. With a `key` it goes to the key's queue, with a `queue` to that one, else where there is room."""

    topic: str
    body: bytes
    key: str = ""
    tag: str = ""
    properties: Mapping[str, str] = {}
    queue: int | None = None
    born_ms: int | None = None
    """Milliseconds since 1970; None: when it is handed over."""


class Sent(msgspec.Struct, frozen=True):
    """Where a message is stored."""

    topic: str
    queue: int
    offset: int


def to_row(message: Message, now_ms: int) -> BatchRow:
    """The message as a row; LocalMisuse when one of its parts fits no record."""
    try:
        key, tag = message.key.encode(), message.tag.encode()
        properties = tuple((name.encode(), value.encode()) for name, value in message.properties.items())
    except UnicodeEncodeError as error:
        raise LocalMisuse(f"a text of the message is no Unicode text: {error}") from error
    if max(len(key), len(tag), sum(len(name) + len(value) for name, value in properties)) > TEXT_BYTES_MAX:
        raise LocalMisuse(f"key, tag and properties of a message have up to {TEXT_BYTES_MAX} bytes each")
    born_ms = now_ms if message.born_ms is None else message.born_ms
    if not 0 <= born_ms <= BORN_MS_MAX:
        raise LocalMisuse(f"born_ms is {born_ms}, 0 to {BORN_MS_MAX} are possible")
    return BatchRow(message.body, born_ms, key, tag, properties)


def size_of(row: BatchRow) -> int:
    """Bytes of memory a waiting message stands for."""
    size = OVERHEAD_BYTES + len(row.body) + len(row.key) + len(row.tag)
    for name, value in row.properties:
        size += len(name) + len(value)
    return size


def image_of(row: BatchRow, topic: bytes, queue: int) -> bytes:
    """The message as a record image of its own, for a topic that takes no batches."""
    return encode_image(
        flags=0,
        queue_index=queue,
        born_ms=row.born_ms,
        topic=topic,
        keys=row.key,
        tags=row.tag,
        properties=row.properties,
        body=row.body,
    )
