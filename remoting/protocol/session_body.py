"""Bodies of the MQTT session requests, as msgpack arrays: SESSION_OPEN/CLOSE/FENCED, SUBSCRIBE, UNSUBSCRIBE.

The broker's log owns a session; a proxy opens it, gets an epoch and what to resume, and names that epoch in
everything it says about the session afterwards. Invariant: of two owners only the one with the higher epoch is heard.
Offsets are queue offsets; positions are byte offsets in the commit log. Use `encode(message)` and `decode(Kind,
body)`. Thread rule: plain values, pure functions.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from remoting.protocol.packed import decode, encode

__all__ = [
    "FAILURE",
    "U32",
    "InflightEntry",
    "Offset",
    "PacketId",
    "Qos",
    "SessionClose",
    "SessionFenced",
    "SessionOpen",
    "SessionOpened",
    "SessionSubscription",
    "Subscribe",
    "SubscribeResult",
    "Subscribed",
    "Unsubscribe",
    "Unsubscribed",
    "decode",
    "encode",
]

U32 = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Offset = Annotated[int, Meta(ge=0)]
PacketId = Annotated[int, Meta(ge=0, le=0xFFFF)]
Qos = Annotated[int, Meta(ge=0, le=2)]

FAILURE = 0x80
"""SubscribeResult.code of a filter that was not granted; else the granted QoS."""


class SessionOpen(msgspec.Struct, array_like=True):
    """Take a client's session over; `clean` forgets what was stored, `expiry_s` 0 ends it with the connection."""

    client_id: str
    clean: bool
    user: str | None
    expiry_s: U32


class SessionSubscription(msgspec.Struct, array_like=True):
    """A stored subscription: its queue and the first queue offset not yet acknowledged."""

    filter: str
    qos: Qos
    queue_id: U32
    offset: Offset


class InflightEntry(msgspec.Struct, array_like=True):
    """A delivery sent but not acknowledged: its packet id and where its message is. The broker keeps it unread.

    Packet id 0 is a proxy's own note: everything of the queue below `offset` that is not listed is acknowledged.
    Queue id 0xFFFFFFFF means that `offset` is a log position (a retained message).
    """

    packet_id: PacketId
    queue_id: U32
    offset: Offset


class SessionOpened(msgspec.Struct, array_like=True):
    """Reply to SESSION_OPEN; `present` goes into CONNACK, `epoch` into every later request.

    `previous_epoch` is the one the session had before, 0 for a new session: who remembers something of that epoch knows
    that nobody else has held the session since.
    """

    present: bool
    epoch: Offset
    subscriptions: list[SessionSubscription]
    inflight: list[InflightEntry]
    previous_epoch: Offset = 0


class SessionClose(msgspec.Struct, array_like=True):
    """Give a session back; `durable` keeps it: (queue id, next offset) per queue, unacknowledged deliveries."""

    client_id: str
    epoch: Offset
    durable: bool
    offsets: list[tuple[U32, Offset]]
    inflight: list[InflightEntry]


class Subscribe(msgspec.Struct, array_like=True):
    """Subscribe to (filter, QoS) pairs; queues, subscription and start offset are stored before the reply."""

    client_id: str
    epoch: Offset
    durable: bool
    filters: list[tuple[str, Qos]]


class SubscribeResult(msgspec.Struct, array_like=True):
    """What became of one filter: granted QoS or FAILURE, its queue and the offset deliveries start at."""

    code: int
    queue_id: U32
    offset: Offset


class Subscribed(msgspec.Struct, array_like=True):
    """Reply to SUBSCRIBE; `retained` is (index of the filter, positions of its retained messages)."""

    results: list[SubscribeResult]
    retained: list[tuple[int, list[Offset]]]


class Unsubscribe(msgspec.Struct, array_like=True):
    """Drop subscriptions by filter."""

    client_id: str
    epoch: Offset
    durable: bool
    filters: list[str]


class Unsubscribed(msgspec.Struct, array_like=True):
    """Reply to UNSUBSCRIBE: per filter whether it was there."""

    found: list[bool]


class SessionFenced(msgspec.Struct, array_like=True):
    """Told to the previous owner: another connection of this client id took over with a higher epoch."""

    client_id: str
    epoch: Offset
