"""Bodies of QUEUE_BOUNDS, as JSON objects: which queues a topic or MQTT filter covers and how far they reach.

    request {"topics":["machines"],"filter":null,"at_ms":null,"known":{"machines":{"0":12}},"wait_ms":100}
    reply   {"broker":"broker-a","epoch":1,"confirm":123,
             "queues":[{"topic":"machines","queue":0,"id":17,"min":0,"max":99,"at":5}],"light":{"id":3,"min":0,"max":7}|null,
             "readers":"127.0.0.1:10912"|null}

The broker holds the request up to wait_ms until some max is above the known one. Invariant: max is the confirmed end
(exclusive). Thread rule: plain values, pure functions.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from remoting.protocol.bodies.packed import decode_json, encode_json

WAIT_MS_MAX = 60_000
"""Longest time a request may ask to be held; more is refused as malformed."""


class QueueBoundsRequest(msgspec.Struct):
    """Ask for bounds by parent topics or MQTT filter; `at_ms` also asks for the first offset stored at or after it."""

    topics: list[str] = []
    filter: str | None = None
    at_ms: int | None = None
    known: dict[str, dict[str, int]] | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0


class QueueBounds(msgspec.Struct):
    """One parent queue: number in its topic, queue id, first and end offset, and the offset at `at_ms` if asked."""

    topic: str
    queue: int
    id: int
    min: int
    max: int
    at: int | None = None


class LightBounds(msgspec.Struct):
    """The light queue of an exact MQTT topic."""

    id: int
    min: int
    max: int
    at: int | None = None


class QueueBoundsReply(msgspec.Struct):
    """All bounds of one broker, taken at one moment; `confirm` is its confirm position."""

    broker: str
    epoch: int
    confirm: int
    queues: list[QueueBounds]
    light: LightBounds | None = None
    readers: str | None = None
    """`host:port` that answers RANGE_PULL beside the broker; whoever cannot use it asks the broker."""


def encode_bounds_request(request: QueueBoundsRequest) -> bytes:
    """Return the JSON body of a request."""
    return encode_json(request)


def decode_bounds_request(body: bytes) -> QueueBoundsRequest:
    """Return the request of a JSON body."""
    return decode_json(QueueBoundsRequest, body)


def encode_bounds_reply(reply: QueueBoundsReply) -> bytes:
    """Return the JSON body of a reply."""
    return encode_json(reply)


def decode_bounds_reply(body: bytes) -> QueueBoundsReply:
    """Return the reply of a JSON body."""
    return decode_json(QueueBoundsReply, body)
