"""Bodies of the MQTT session requests, as msgpack arrays: SESSION_OPEN/CLOSE/FENCED/FLOW, SUBSCRIBE, UNSUBSCRIBE.

The broker's log owns a session; a proxy opens it, gets an epoch and what to resume, and names that epoch in
everything it says about the session afterwards. Invariant: of two owners only the one with the higher epoch is heard.
Members with a default were added later: who does not send them means the default. Offsets are queue offsets; positions
are byte offsets in the commit log. Use `encode(message)` and `decode(Kind, body)`. Thread rule: plain values, pure
functions.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from remoting.protocol.bodies.packed import decode, encode
from remoting.protocol.bodies.will_body import WillSpec

__all__ = [
    "EXPIRY_NEVER",
    "FAILURE",
    "PHASE_PUBLISH",
    "PHASE_PUBREL",
    "U32",
    "WILL_DISCARD",
    "WILL_DUE",
    "FilterRequest",
    "FlowBatch",
    "HistoryStart",
    "InflightEntry",
    "Offset",
    "PacketId",
    "Qos",
    "SessionClose",
    "SessionFenced",
    "SessionFlow",
    "SessionOpen",
    "SessionOpened",
    "SessionSubscription",
    "SubscribeRequest",
    "SubscribeResult",
    "Subscribed",
    "UnsubscribeRequest",
    "Unsubscribed",
    "WillSpec",
    "decode",
    "encode",
]

U32 = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Offset = Annotated[int, Meta(ge=0)]
PacketId = Annotated[int, Meta(ge=0, le=0xFFFF)]
Qos = Annotated[int, Meta(ge=0, le=2)]
OptionBits = Annotated[int, Meta(ge=0, le=0x0F)]

FAILURE = 0x80
"""SubscribeResult codes from here on are refusals: reason codes of MQTT 5. Below it is the granted QoS."""
EXPIRY_NEVER = 0xFFFFFFFF
"""SessionOpen.expiry_s: keep the session as long as the broker keeps any."""
PHASE_PUBLISH = 0
"""The message was sent, and must be sent again."""
PHASE_PUBREL = 1
"""QoS 2: the client has the message (PUBREC), and must be sent PUBREL again."""
WILL_DISCARD = 0
WILL_DUE = 1
"""SessionClose.will: the client took its leave, or it did not."""


class SessionOpen(msgspec.Struct, array_like=True):
    """Take a client's session over; `clean` forgets what was stored.

    `expiry_s`: 0 ends it with the connection, EXPIRY_NEVER is the broker's maximum. `continues`: the epoch under which
    the same connection held the session before its proxy or the broker was lost, 0 for a new connection.
    """

    client_id: str
    clean: bool
    user: str | None
    expiry_s: U32
    will: WillSpec | None = None
    continues: Offset = 0


class SessionSubscription(msgspec.Struct, array_like=True):
    """A stored subscription: its queue and the first queue offset not yet acknowledged.

    What was sent with QoS 2 from `exact_from` to below `exact_below` is either among the deliveries in flight or with
    the client: it is not sent again.
    """

    filter: str
    qos: Qos
    queue_id: U32
    offset: Offset
    options: OptionBits = 0
    subscription_id: U32 = 0
    exact_from: Offset = 0
    exact_below: Offset = 0
    before: int | None = None
    """Place before the queue, see `history_body`; None when there is nothing before it to send."""


class InflightEntry(msgspec.Struct, array_like=True):
    """A delivery sent but not acknowledged: its packet id and where its message is. The broker keeps it unread.

    Packet id 0 is a proxy's own note: everything of the queue below `offset` that is not listed is acknowledged.
    Queue id 0xFFFFFFFF means that `offset` is a log position (a retained message), `history_body.HISTORY_BIT` in it one
    of history, `shared_body.SHARED_BIT` that a group gave the message: the session's own place is another. Entries of
    QoS 2 are not part of what a SESSION_CLOSE leaves: the broker knows them by SESSION_FLOW.
    """

    packet_id: PacketId
    queue_id: U32
    offset: Offset
    phase: Annotated[int, Meta(ge=0, le=1)] = PHASE_PUBLISH
    qos: Qos = 1


class SessionOpened(msgspec.Struct, array_like=True):
    """Reply to SESSION_OPEN; `present` goes into CONNACK, `epoch` into every later request.

    `previous_epoch` is the one the session had before, 0 for a new session: who remembers something of that epoch knows
    that nobody else has held the session since. `received`: packet ids of QoS 2 publishes that are stored and wait for
    their PUBREL. `expiry_s` is what was granted.
    """

    present: bool
    epoch: Offset
    subscriptions: list[SessionSubscription]
    inflight: list[InflightEntry]
    previous_epoch: Offset = 0
    received: list[PacketId] = []
    expiry_s: U32 = 0


class SessionClose(msgspec.Struct, array_like=True):
    """Give a session back; `durable` keeps it: (queue id, next offset) per queue, unacknowledged deliveries.

    `expiry_s` replaces what SESSION_OPEN said, None leaves it. `removed`: (reason, messages) the session did not get
    because retention or their expiry had removed them.
    """

    client_id: str
    epoch: Offset
    durable: bool
    offsets: list[tuple[U32, Offset]]
    inflight: list[InflightEntry]
    expiry_s: U32 | None = None
    will: Annotated[int, Meta(ge=WILL_DISCARD, le=WILL_DUE)] = WILL_DISCARD
    removed: list[tuple[str, Offset]] = []


class SessionFlow(msgspec.Struct, array_like=True):
    """What happened to the QoS 2 packet ids of one session; the members take effect in this order.

    `released`: inbound, PUBREL came. Outbound: `completed`, PUBCOMP (or a refusal) came; `received`, PUBREC came;
    `reserved`: (packet id, queue id, offset) of messages about to be sent for the first time.
    """

    client_id: str
    epoch: Offset
    released: list[PacketId] = []
    completed: list[PacketId] = []
    received: list[PacketId] = []
    reserved: list[tuple[PacketId, U32, Offset]] = []


class FlowBatch(msgspec.Struct, array_like=True):
    """SESSION_FLOW: the steps of many sessions; the empty reply comes when all are durable."""

    flows: list[SessionFlow]


class HistoryStart(msgspec.Struct, array_like=True):
    """Which messages from before a subscription it begins with; exactly one member is set.

    `from_ms`: stored at that time or later; `from_offset`: from that offset of the filter's queue on, 0 = everything
    that is kept; `last`: so many.
    """

    from_ms: Offset | None = None
    from_offset: Offset | None = None
    last: Offset | None = None


class FilterRequest(msgspec.Struct, array_like=True):
    """One filter of a SUBSCRIBE. Options: bit 0 no local, 1 retain as published, 2-3 retain handling."""

    filter: str
    qos: Qos
    options: OptionBits = 0
    subscription_id: U32 = 0
    history: HistoryStart | None = None


class SubscribeRequest(msgspec.Struct, array_like=True):
    """Subscribe to filters; queues, subscription and start offset are stored before the reply."""

    client_id: str
    epoch: Offset
    durable: bool
    filters: list[FilterRequest]


class SubscribeResult(msgspec.Struct, array_like=True):
    """What became of one filter: granted QoS or a code from FAILURE on, its queue, where deliveries start.

    `existed`: the session had this filter before. `live`: where the queue ended when the subscription began; what lies
    below it is history. `before`: as in SessionSubscription.
    """

    code: int
    queue_id: U32
    offset: Offset
    existed: bool = False
    live: Offset = 0
    before: int | None = None


class Subscribed(msgspec.Struct, array_like=True):
    """Reply to SUBSCRIBE; `retained` is (index of the filter, positions of its retained messages)."""

    results: list[SubscribeResult]
    retained: list[tuple[int, list[Offset]]]


class UnsubscribeRequest(msgspec.Struct, array_like=True):
    """Drop subscriptions by filter."""

    client_id: str
    epoch: Offset
    durable: bool
    filters: list[str]


class Unsubscribed(msgspec.Struct, array_like=True):
    """Reply to UNSUBSCRIBE: per filter whether it was there."""

    found: list[bool]


class SessionFenced(msgspec.Struct, array_like=True):
    """Told to the previous owner: another connection of this client id took over with a higher epoch.

    `hand_over`: it is about to; give the session of this epoch back with SESSION_CLOSE first.
    """

    client_id: str
    epoch: Offset
    hand_over: bool = False
