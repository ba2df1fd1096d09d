"""Bodies of the requests about MQTT sessions, their wills, offsets and history, and about shared subscriptions.

All are msgpack arrays except APPEND_OFFSETS, which is little-endian:

    u32 n, n x {u16 key_len, u16 0, u32 queue id, i64 next offset, key bytes}          key = MQTT client id

The broker's log owns a session; a proxy opens it, gets an epoch and what to resume, and names that epoch in every later
request about the session. Of two owners only the one with the higher epoch is accepted. Members with a default were
added later: where one is missing, the default applies. Offsets are queue offsets, the lowest not yet acknowledged, so
that a restart repeats and never skips; positions are byte offsets in the commit log.

The broker keeps wills, and sends WILL_DUE to one proxy at the due time; the proxy checks whether the client may still
publish the will and answers WILL_VERDICT. A will is identified by client id and the epoch of its connection, so a late
verdict has no effect.

HISTORY reads, in bounded steps, messages stored before a wildcard filter's queue existed. A subscription that begins
before its queue has a second offset: a log position, stored under the queue's id with `HISTORY_BIT` set. Until the
position is known, the requested start is stored there as a negative number (`pack_before`); `FINISHED` means that the
client has everything before the queue.

    SHARED_TAKE    members that join their group; the reply names those that may
    SHARED_SETTLE  messages members acknowledged or return, and how many more they can take; one-way
    SHARED_GIVEN   u32 n, n x {u32 handle, u32 record size, i64 queue offset} | n raw records back to back; one-way,
                   little-endian

A proxy assigns each of its members a handle, which is never reused on one connection. Requests take effect in the
order sent.
Invariants: the second offset only rises: requested start < position < FINISHED; an offset is settled only by the member
it was given to. Thread rule: plain values, pure functions; use `encode(message)` and `decode(Kind, body)`;
records given are views of the body.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from remoting.protocol.bodies.packed import decode, encode
from remoting.protocol.errors import LocalMisuse, RemoteViolation

__all__ = [
    "EXPIRY_NEVER",
    "FAILURE",
    "FINISHED",
    "HISTORY_BIT",
    "PHASE_PUBLISH",
    "PHASE_PUBREL",
    "SHARED_BIT",
    "U32",
    "WILL_DISCARD",
    "WILL_DUE",
    "FilterRequest",
    "FlowBatch",
    "HistoryReply",
    "HistoryRequest",
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
    "SharedMember",
    "SharedSettle",
    "SharedSettled",
    "SharedTake",
    "SharedTaken",
    "SubscribeRequest",
    "SubscribeResult",
    "Subscribed",
    "UnsubscribeRequest",
    "Unsubscribed",
    "WillDue",
    "WillSpec",
    "WillVerdict",
    "decode",
    "decode_given",
    "encode",
    "encode_given",
    "is_shared_place",
    "pack_before",
    "unpack_before",
]

U32 = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Offset = Annotated[int, Meta(ge=0)]
PacketId = Annotated[int, Meta(ge=0, le=0xFFFF)]
OptionBits = Annotated[int, Meta(ge=0, le=0x0F)]
Epoch = Annotated[int, Meta(ge=0)]
Qos = Annotated[int, Meta(ge=0, le=2)]


class WillSpec(msgspec.Struct, array_like=True):
    """A will as set by its client; `properties` are the record's pairs after topic and client id."""

    topic: bytes
    payload: bytes
    qos: Qos
    retain: bool
    delay_s: U32 = 0
    properties: list[tuple[bytes, bytes]] = []
    """Record properties of the message, in order."""
    author: bytes = b""
    """The client's identity in the proxies' own encoding; the broker returns it in WILL_DUE."""


class WillDue(msgspec.Struct, array_like=True):
    """Broker to proxy: check whether `author` may still publish there."""

    client_id: str
    epoch: Epoch
    topic: bytes
    qos: Qos
    retain: bool
    author: bytes


class WillVerdict(msgspec.Struct, array_like=True):
    """Proxy to broker: publish the will, or drop it for this reason. The reply follows when that is durable."""

    client_id: str
    epoch: Epoch
    allowed: bool
    reason: str = ""


_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<HHIq")


def encode_offsets(offsets: Sequence[tuple[bytes, int, int]]) -> bytes:
    """Return an APPEND_OFFSETS body of (key, queue id, next offset)."""
    parts = [_COUNT.pack(len(offsets))]
    try:
        for key, queue_id, offset in offsets:
            parts += (_ENTRY.pack(len(key), 0, queue_id, offset), key)
    except struct.error as error:
        raise LocalMisuse(f"an offset does not fit its field: {error}") from error
    return b"".join(parts)


def decode_offsets(body: bytes) -> list[tuple[bytes, int, int]]:
    """Return (key, queue id, next offset) per entry."""
    offsets: list[tuple[bytes, int, int]] = []
    try:
        (count,) = _COUNT.unpack_from(body)
        at = _COUNT.size
        for _ in range(count):
            key_len, _, queue_id, offset = _ENTRY.unpack_from(body, at)
            at += _ENTRY.size + key_len
            if at > len(body):
                raise RemoteViolation(f"offsets: key {len(offsets)} passes the body's end")
            offsets.append((bytes(body[at - key_len : at]), queue_id, offset))
    except struct.error as error:
        raise RemoteViolation(f"offsets: entry {len(offsets)} is cut short") from error
    if at != len(body):
        raise RemoteViolation(f"offsets: {len(body) - at} bytes follow the last entry")
    return offsets


HISTORY_BIT = 0x8000_0000
"""Set in the queue id of a place before a queue; never set in ids of queues."""
FINISHED = 2**62
_LAST = 2**61


class HistoryRequest(msgspec.Struct, array_like=True):
    """The next step: messages that match `filter`, from `position` (or, at first, stored from `from_ms` on).

    With `last` > 0: search backwards from `position` (0: from the queue's start) for the start of that many messages.
    """

    queue_id: U32
    filter: str
    position: Offset = 0
    from_ms: Offset = 0
    last: Offset = 0


class HistoryReply(msgspec.Struct, array_like=True):
    """Raw records of the step back to back, where the next step begins, and whether this was the last one.

    Of a search for `last`: `last` is the number still to be found; when `done`, `position` is where they begin.
    """

    position: Offset
    done: bool
    records: bytes = b""
    last: Offset = 0


Place = Annotated[int, Meta(le=FINISHED)]


def pack_before(start: HistoryStart) -> int:
    """Return the place of a requested start whose position is not known yet."""
    return -_LAST - start.last if start.last is not None else -1 - (start.from_ms or 0)


def unpack_before(place: int) -> tuple[int, int, int]:
    """Return (position, from_ms, last) of a place; at most one of the three is not 0."""
    if place >= 0:
        return place, 0, 0
    return (0, 0, -place - _LAST) if place <= -_LAST else (0, -place - 1, 0)


FAILURE = 0x80
"""SubscribeResult codes from here on are refusals: reason codes of MQTT 5. Below it is the granted QoS."""
EXPIRY_NEVER = 0xFFFFFFFF
"""SessionOpen.expiry_s: keep the session for the broker's maximum."""
PHASE_PUBLISH = 0
"""The message was sent and must be resent."""
PHASE_PUBREL = 1
"""QoS 2: the client has the message (PUBREC); PUBREL must be resent."""
WILL_DISCARD = 0
WILL_DUE = 1
"""SessionClose.will: dropped after a normal DISCONNECT, or due."""


class SessionOpen(msgspec.Struct, array_like=True):
    """Take over a client's session; `clean` discards its stored state.

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

    What was sent with QoS 2 from `exact_from` up to `exact_below` (exclusive) is in flight or received, and not resent.
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
    """Place before the queue, see `session_body`; None when there is nothing before it to send."""


class InflightEntry(msgspec.Struct, array_like=True):
    """A delivery sent but not acknowledged: its packet id and the place of its message. Opaque to the broker.

    Packet id 0 is a proxy's own marker: everything of the queue below `offset` that is not listed is acknowledged.
    Queue id 0xFFFFFFFF means that `offset` is the log position of a retained message, `HISTORY_BIT` that it is one
    of history, `SHARED_BIT` that a group gave the message, apart from the session's own place in that queue. A
    SESSION_CLOSE does not list entries of QoS 2: the broker has them from SESSION_FLOW.
    """

    packet_id: PacketId
    queue_id: U32
    offset: Offset
    phase: Annotated[int, Meta(ge=0, le=1)] = PHASE_PUBLISH
    qos: Qos = 1


class SessionOpened(msgspec.Struct, array_like=True):
    """Reply to SESSION_OPEN; `present` goes into CONNACK, `epoch` into every later request.

    `previous_epoch` is the session's epoch before, 0 for a new session: a proxy that still has state of that epoch
    knows that no other has owned the session since. `received`: packet ids of QoS 2 publishes that are stored and wait
    for their PUBREL. `expiry_s` is the granted value.
    """

    present: bool
    epoch: Offset
    subscriptions: list[SessionSubscription]
    inflight: list[InflightEntry]
    previous_epoch: Offset = 0
    received: list[PacketId] = []
    expiry_s: U32 = 0


class SessionClose(msgspec.Struct, array_like=True):
    """Release a session; `durable` keeps it, with (queue id, next offset) per queue and unacknowledged deliveries.

    `expiry_s` replaces that of SESSION_OPEN, None leaves it. `removed`: (reason, number of messages) that the session
    did not get because retention or their expiry had removed them.
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
    """Steps of the QoS 2 packet ids of one session; the members take effect in this order.

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
    """SESSION_FLOW: the steps of many sessions; the reply follows when they are durable, empty if all are noted."""

    flows: list[SessionFlow]


class FlowNoted(msgspec.Struct, array_like=True):
    """Reply to SESSION_FLOW where flows were left out: their numbers.

    The asking proxy does not own these sessions in the epochs that it named.
    """

    fenced: list[U32] = []


class HistoryStart(msgspec.Struct, array_like=True):
    """Where in the past a subscription starts; exactly one member is set.

    `from_ms`: stored at that time or later; `from_offset`: from that offset of the filter's queue on, 0 = everything
    that is kept; `last`: that many messages.
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
    """The result for one filter: granted QoS or a code from FAILURE on, its queue, where deliveries start.

    `existed`: the session had this filter before. `live`: the queue's end when the subscription began; everything
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
    """Reply to UNSUBSCRIBE: per filter whether it existed."""

    found: list[bool]


class SessionFenced(msgspec.Struct, array_like=True):
    """Push to the previous owner: another connection of this client id took over with a higher epoch.

    `hand_over`: it is about to take over; first release the session of this epoch with SESSION_CLOSE.
    """

    client_id: str
    epoch: Offset
    hand_over: bool = False


Handle = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Buffer = bytes | bytearray | memoryview

SHARED_BIT = 0x4000_0000
"""Set in the queue id of a QoS 2 delivery that a group gave a session, to tell it from the session's own subscription
to the same queue."""

_GIVEN = struct.Struct("<IIq")


def is_shared_place(queue_id: int) -> bool:
    """Whether a group gave the delivery from this place; places in the log have `HISTORY_BIT` set."""
    return queue_id & (HISTORY_BIT | SHARED_BIT) == SHARED_BIT


class SharedMember(msgspec.Struct, array_like=True):
    """One member: its session, its whole filter, how many messages it can take, and those it already has."""

    handle: Handle
    client_id: str
    epoch: Offset
    filter: str
    credit: Handle
    held: list[Offset] = []


class SharedTake(msgspec.Struct, array_like=True):
    """SHARED_TAKE: members of shared subscriptions begin, or resume after a failure of the proxy or the broker."""

    members: list[SharedMember]


class SharedTaken(msgspec.Struct, array_like=True):
    """Reply to SHARED_TAKE: per member whether its session is subscribed and open under that epoch."""

    joined: list[bool]


class SharedSettled(msgspec.Struct, array_like=True):
    """Report of one member: how many more it can take (`credit`; negative: fewer), offsets acknowledged and returned.

    `sent`: unsettled offsets that no other member may get, sent with QoS 2 to a session that ends with its connection.
    """

    handle: Handle
    credit: int
    done: list[Offset] = []
    back: list[Offset] = []
    sent: list[Offset] = []
    refused: list[Offset] = []
    """Returned because the client may not read them: they go to other members only."""


class SharedSettle(msgspec.Struct, array_like=True):
    """SHARED_SETTLE: what members acknowledged, returned, and can take."""

    members: list[SharedSettled]


def encode_given(given: Sequence[tuple[int, int, Buffer]]) -> bytes:
    """Return a SHARED_GIVEN body of (handle, queue offset, record)."""
    heads = [_GIVEN.pack(handle, len(record), offset) for handle, offset, record in given]
    return b"".join((_COUNT.pack(len(given)), *heads, *[record for _, _, record in given]))


def decode_given(body: Buffer) -> list[tuple[int, int, memoryview]]:
    """Return (handle, queue offset, record) of each message given."""
    view = memoryview(body)
    if len(view) < _COUNT.size:
        raise RemoteViolation(f"given of {len(view)} bytes has no count")
    (count,) = _COUNT.unpack_from(view)
    at = _COUNT.size + count * _GIVEN.size
    if at > len(view):
        raise RemoteViolation(f"given of {len(view)} bytes does not hold {count} messages")
    given = []
    for handle, size, offset in _GIVEN.iter_unpack(view[_COUNT.size : at]):
        if at + size > len(view):
            raise RemoteViolation(f"given: the record of offset {offset} passes the body's end")
        given.append((handle, offset, view[at : at + size]))
        at += size
    if at != len(view):
        raise RemoteViolation(f"given: {len(view) - at} bytes follow the last record")
    return given
