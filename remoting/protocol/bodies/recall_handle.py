"""The handle by which a producer recalls a waiting message: RocketMQ's form with one more item.

    base64url("v1 topic broker due_ms unique_key[ offset]")

RocketMQ's clients read the version and the broker and return the handle unchanged. `offset` is the message's place in
the hidden queue of its time span: a hint, because retention may have copied the message since.
Invariant: decode_handle(encode_handle(x)) == x. Pure.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from remoting.protocol.errors import RemoteViolation

VERSION = "v1"
NO_KEY = "-"
"""Unique key in the handle of a message without one, such as an MQTT message."""
ITEMS = 5
DIGITS_MAX = 18
HANDLE_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """The identity of one waiting message."""

    topic: str
    broker: str
    due_ms: int
    unique_key: str = NO_KEY
    offset: int | None = None


def encode_handle(handle: RecallHandle) -> str:
    """Return the handle in the form sent to clients."""
    items = [VERSION, handle.topic, handle.broker, str(handle.due_ms), handle.unique_key]
    if handle.offset is not None:
        items.append(str(handle.offset))
    return base64.urlsafe_b64encode(" ".join(items).encode("utf-8", "replace")).decode()


def decode_handle(text: str) -> RecallHandle:
    """Return the parts of a handle. Raises RemoteViolation when it is malformed."""
    if len(text) > HANDLE_BYTES_MAX:
        raise RemoteViolation("recall handle is invalid")
    try:
        padded = text + "=" * (-len(text) % 4)
        items = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(" ", ITEMS - 1)
    except ValueError as error:
        raise RemoteViolation("recall handle is invalid") from error
    if len(items) != ITEMS or items[0] != VERSION or not _is_number(items[3]):
        raise RemoteViolation("recall handle is invalid")
    unique_key, _space, offset = items[4].rpartition(" ")
    if unique_key and _is_number(offset):
        return RecallHandle(items[1], items[2], int(items[3]), unique_key, int(offset))
    return RecallHandle(items[1], items[2], int(items[3]), items[4])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
