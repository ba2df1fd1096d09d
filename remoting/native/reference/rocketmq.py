"""The pure twin: records into RocketMQ's stored messages, and what RocketMQ's producers send into record images.

Invariant: messages come out in the order in which they went in; a malformed batch is refused with the error text of
`decode_batch`. Thread rule: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from remoting.protocol.records.properties import (
    PROPERTIES_SIZE_BYTES_MAX,
    RESPONSE_TOPIC,
    UNIQUE_KEY,
    decode_properties,
)
from remoting.protocol.records.record import BATCH, RecordView
from remoting.protocol.records.rocketmq_form import (
    HIDDEN_PREFIX,
    Origin,
    SentFields,
    decode_batch,
    sent_image,
    stored_message,
)
from remoting.protocol.records.stored_message import Host, offset_message_id

if TYPE_CHECKING:
    from remoting.native.contracts import SpecialMessage


def stored(
    records: Sequence[memoryview],
    offsets: Iterable[int],
    queue_index: int,
    store_host: Host,
    origin: Origin,
    tags: Collection[bytes] | None = None,
) -> tuple[bytes, int, bool] | None:
    """Return (stored messages back to back, their number, whether one is a request of an MQTT client)."""
    made: list[bytes] = []
    asks = False
    views = list(map(RecordView, records))
    if any(view.type == BATCH & 0xFF for view in views):
        return None
    for offset, view in zip(offsets, views, strict=False):
        if tags is None or view.tags in tags:
            made.append(stored_message(view, queue_index, offset, store_host, origin))
            asks = asks or any(key == RESPONSE_TOPIC for key, _value in view.properties())
    return b"".join(made), len(made), asks


def count_batch(body: bytes) -> int:
    """Return the number of messages of a batch body. Raises RemoteViolation."""
    return len(decode_batch(body))


def sent(
    body: bytes,
    text: bytes | None,
    flag: int,
    fields: SentFields,
    names: Collection[bytes],
    special: SpecialMessage,
    unique: Callable[[], bytes],
) -> tuple[bytes, bytes]:
    """Return (images, unique key of the first message)."""
    if text is None:
        parts = [(one.flag, one.properties, one.body) for one in decode_batch(body)]
    else:
        parts = [(flag, decode_properties(text), body)]
    made = [_image(*part, fields, names, special, unique) for part in parts]
    return b"".join([image for image, _key in made]), made[0][1]


def _image(
    flag: int,
    pairs: list[tuple[bytes, bytes]],
    body: bytes,
    fields: SentFields,
    names: Collection[bytes],
    special: SpecialMessage,
    unique: Callable[[], bytes],
) -> tuple[bytes, bytes]:
    """Return the image of one message, and its unique key."""
    properties = dict(pairs)
    size = sum(len(key) + len(value) + 2 for key, value in pairs)
    if size > PROPERTIES_SIZE_BYTES_MAX or any(key in names or key.startswith(HIDDEN_PREFIX) for key in properties):
        return special(flag, properties, body)
    if UNIQUE_KEY not in properties:
        properties[UNIQUE_KEY] = unique()
    return sent_image(fields, flag, properties, body), properties[UNIQUE_KEY]


def message_ids(store_host: Host, positions: Sequence[int]) -> str:
    """Return the message ids of these log positions, separated by commas."""
    return ",".join([offset_message_id(store_host, position) for position in positions])
