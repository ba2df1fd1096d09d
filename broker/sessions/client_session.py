"""A session as the broker keeps it: subscriptions, offsets and QoS 2 packet ids, and how it is read back at a start.

QoS 2, outbound: a packet id names its message before the PUBLISH leaves, PUBREC is noted before the PUBREL, PUBCOMP
frees the id. So a new owner of the session repeats exactly the step that may be missing. Inbound: an id is noted in
the same group as its message and forgotten before its PUBCOMP; a repeated PUBLISH in between is known. Messages that
were completed leave nothing but a number per queue, the end of what was ever sent with QoS 2.

A delivery of a shared subscription that a session has noted is its own [MQTT-4.8.2-4], [MQTT-4.8.2-5]: the group counts
it as done, and the session finishes it or takes it along when it ends. Its place has `SHARED_BIT` set. The note is in
the log before the group's record says the same, so after a crash the notes are read first.

Invariant: the blocks in memory that are not empty are the records in the log. Every step may be repeated: the same flow
twice gives the same records. A noted place was given to no other session since. Pure; loop thread only.

How a session lies in the log: one record per durable session, one small record per committed offset.

```
SESSION           key = client id (UTF-8)                      value = msgpack array of SessionRecord
SESSION_OFFSET    key = client id, 0x00, queue id u32 LE       value = next offset i64 LE [| exact_below i64 LE]
SESSION_INFLIGHT  key = client id, 0x00, packet id >> 4 u16 LE value = n x {packet id u16, queue id u32, offset i64,
                                                                            phase u8}, LE
SESSION_RECEIVED  key = client id, 0x00, packet id >> 6 u16 LE value = u64 LE, bit i: the packet id 64 * block + i
```
A client id cannot contain a zero byte (MQTT forbids U+0000), so the keys are unambiguous. The epoch is not stored: it
is made of the store's epoch, which every start raises, and a counter, so a restart can never repeat one. Members of
records that came later stand at the end and have defaults, so records of former versions are read.
Pure codec: no I/O, no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import msgspec

from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.bodies.session_body import PHASE_PUBLISH, PHASE_PUBREL, SHARED_BIT, SessionFlow, is_shared_place

if TYPE_CHECKING:
    from broker.store.state.state_tables import StateTables


_QUEUE = struct.Struct("<I")
_BLOCK = struct.Struct("<H")
_OFFSET = struct.Struct("<q")
_OFFSETS = struct.Struct("<qq")
_INFLIGHT = struct.Struct("<HIqB")
_BITS = struct.Struct("<Q")

INFLIGHT_BLOCK_SHIFT = 4
"""Packet ids of one SESSION_INFLIGHT record differ in so many low bits: few records for a run of ids, small ones."""
RECEIVED_BLOCK_SHIFT = 6
"""The same for SESSION_RECEIVED."""


class SubscriptionRecord(msgspec.Struct, array_like=True):
    """A subscription in the log; the members are those of `Subscription`."""

    filter: str
    qos: int
    queue_id: int
    options: int = 0
    subscription_id: int = 0
    exact_from: int = 0


class SessionRecord(msgspec.Struct, array_like=True):
    """Durable part of a session. `closed_ms` is 0 while it is connected."""

    user: str | None
    expiry_s: int
    closed_ms: int
    subscriptions: list[SubscriptionRecord]
    inflight: list[tuple[int, int, int]]
    removed: dict[str, int] = {}


encode_record = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(SessionRecord).decode


def offset_key(client_id: str, queue_id: int) -> bytes:
    """Key of a SESSION_OFFSET record."""
    return client_id.encode() + b"\x00" + _QUEUE.pack(queue_id)


def split_offset_key(key: bytes) -> tuple[str, int]:
    """(client id, queue id) of a SESSION_OFFSET key."""
    assert key[-5] == 0, key
    return key[:-5].decode(), _QUEUE.unpack_from(key, len(key) - 4)[0]


def pack_offset(offset: int, exact_below: int = 0) -> bytes:
    """Value of an offset record."""
    return _OFFSETS.pack(offset, exact_below) if exact_below else _OFFSET.pack(offset)


def unpack_offset(value: bytes) -> tuple[int, int]:
    """(offset, exact_below) from an offset record."""
    if len(value) == _OFFSET.size:
        return _OFFSET.unpack(value)[0], 0
    offset, exact_below = _OFFSETS.unpack(value)
    return offset, exact_below


def block_key(client_id: str, block: int) -> bytes:
    """Key of a SESSION_INFLIGHT or SESSION_RECEIVED record."""
    return client_id.encode() + b"\x00" + _BLOCK.pack(block)


def split_block_key(key: bytes) -> tuple[str, int]:
    """(client id, block) of such a key."""
    assert key[-3] == 0, key
    return key[:-3].decode(), _BLOCK.unpack_from(key, len(key) - 2)[0]


def pack_inflight(exact: dict[int, tuple[int, int, int]], block: int) -> bytes:
    """Value of one block of deliveries, b"" when there is none in it."""
    first = block << INFLIGHT_BLOCK_SHIFT
    pack = _INFLIGHT.pack
    return b"".join(
        [
            pack(packet_id, *exact[packet_id])
            for packet_id in range(first, first + (1 << INFLIGHT_BLOCK_SHIFT))
            if packet_id in exact
        ]
    )


def unpack_inflight(value: bytes) -> dict[int, tuple[int, int, int]]:
    """Packet id -> (queue id, offset, phase) of one block."""
    return {packet_id: (queue, offset, phase) for packet_id, queue, offset, phase in _INFLIGHT.iter_unpack(value)}


def pack_received(bits: int) -> bytes:
    """Value of one block of received ids."""
    return _BITS.pack(bits)


def unpack_received(value: bytes) -> int:
    """Bits of one block of received ids."""
    bits: int = _BITS.unpack(value)[0]
    return bits


LOG_POSITION_QUEUE = 0xFFFF_FFFF
"""Queue id of a place that is a log position: a retained message."""
_MASK = (1 << RECEIVED_BLOCK_SHIFT) - 1


@dataclass(slots=True)
class Subscription:
    """One filter of one session: maximal QoS, the light queue that carries it, options as in SUBSCRIBE.

    `exact_from`: the queue's end when the QoS was last changed; below it messages were granted another QoS.
    """

    qos: int
    queue_id: int
    options: int = 0
    subscription_id: int = 0
    exact_from: int = 0


NO_OFFSETS = cast("dict[int, int]", MappingProxyType({}))


@dataclass(slots=True)
class ClientSession:
    """A session as the broker keeps it in memory; `owner` is the connected proxy or None."""

    client_id: str
    user: str | None
    durable: bool
    expiry_s: int
    epoch: int
    owner: object | None = None
    closed_ms: int = 0
    position: int = 0
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    wildcards: int = 0
    """How many of them hold a wildcard filter."""
    filters_bytes: int = 0
    """Bytes of all filters."""
    offsets: dict[int, int] = field(default_factory=dict)
    """Queue id -> next offset; `NO_OFFSETS` for one that ends with its connection, whose place its proxy knows."""
    inflight: Sequence[tuple[int, int, int]] = ()
    """The note of the last close: QoS 1 deliveries and a proxy's own entries."""
    exact: dict[int, tuple[int, int, int]] | None = None
    """Outbound QoS 2: packet id -> (queue id, offset, phase); None for most sessions."""
    exact_below: dict[int, int] | None = None
    """Queue id -> end of what was ever sent with QoS 2."""
    received: dict[int, int] | None = None
    """Inbound QoS 2: block -> bits of the packet ids taken and not released."""
    removed: dict[str, int] | None = None
    """Reason -> messages the session did not get."""
    continued: int = 0
    """The epoch that the connection holding it named when it took it again; 0 for a new connection."""

    def record(self) -> bytes:
        """The value of the SESSION record."""
        return encode_record(
            SessionRecord(
                user=self.user,
                expiry_s=self.expiry_s,
                closed_ms=self.closed_ms,
                subscriptions=[
                    SubscriptionRecord(
                        name, item.qos, item.queue_id, item.options, item.subscription_id, item.exact_from
                    )
                    for name, item in self.subscriptions.items()
                ],
                inflight=list(self.inflight),
                removed=self.removed or {},
            )
        )

    # ---- QoS 2, both directions

    def advance(self, flow: SessionFlow) -> list[StateChange]:
        """Take the steps of a flow; the records to write."""
        changes = self.release(flow.released) if flow.released else []
        if not (flow.completed or flow.received or flow.reserved):
            return changes
        exact = self.exact
        if exact is None:
            exact = self.exact = {}
        for packet_id in flow.completed:
            exact.pop(packet_id, None)
        for packet_id in flow.received:
            queue_id, offset, _phase = exact.get(packet_id, (LOG_POSITION_QUEUE, 0, PHASE_PUBREL))
            exact[packet_id] = (queue_id, offset, PHASE_PUBREL)
        for packet_id, queue_id, offset in flow.reserved:
            exact.pop(packet_id, None)  # the order of the table is the order of sending
            exact[packet_id] = (queue_id, offset, PHASE_PUBLISH)
        ids = [*flow.completed, *flow.received, *[packet_id for packet_id, _queue, _offset in flow.reserved]]
        for block in dict.fromkeys([packet_id >> INFLIGHT_BLOCK_SHIFT for packet_id in ids]):
            changes.append(self._inflight_change(block))
        changes += self._raise_ends(flow.reserved)
        if not exact:
            self.exact = None
        return changes

    def receive(self, packet_ids: Iterable[int]) -> list[StateChange]:
        """Note publishes taken; the records to write in the group of their messages."""
        received = self.received
        if received is None:
            received = self.received = {}
        blocks: dict[int, None] = {}
        for packet_id in packet_ids:
            block = packet_id >> RECEIVED_BLOCK_SHIFT
            received[block] = received.get(block, 0) | 1 << (packet_id & _MASK)
            blocks[block] = None
        return [self._received_change(block) for block in blocks]

    def release(self, packet_ids: Iterable[int]) -> list[StateChange]:
        """Forget publishes taken: their PUBREL came, or they were not stored after all."""
        received = self.received or {}
        blocks: dict[int, None] = {}
        for packet_id in packet_ids:
            block = packet_id >> RECEIVED_BLOCK_SHIFT
            bits = received.get(block, 0) & ~(1 << (packet_id & _MASK))
            if bits:
                received[block] = bits
            else:
                received.pop(block, None)
            blocks[block] = None
        self.received = received or None
        return [self._received_change(block) for block in blocks]

    def is_received(self, packet_id: int) -> bool:
        """Whether a publish of this id was taken and not released."""
        if self.received is None:
            return False
        return bool(self.received.get(packet_id >> RECEIVED_BLOCK_SHIFT, 0) >> (packet_id & _MASK) & 1)

    def received_ids(self) -> list[int]:
        """The packet ids taken and not released, in rising order."""
        return [
            block << RECEIVED_BLOCK_SHIFT | bit
            for block, bits in sorted((self.received or {}).items())
            for bit in range(1 << RECEIVED_BLOCK_SHIFT)
            if bits >> bit & 1
        ]

    def forget_packet_ids(self) -> list[StateChange]:
        """The session ends: delete all its blocks."""
        blocks = dict.fromkeys([packet_id >> INFLIGHT_BLOCK_SHIFT for packet_id in self.exact or ()])
        changes = [
            StateChange(state_kinds.SESSION_INFLIGHT, block_key(self.client_id, block), None) for block in blocks
        ]
        changes += [
            StateChange(state_kinds.SESSION_RECEIVED, block_key(self.client_id, block), None)
            for block in self.received or ()
        ]
        self.exact = self.received = None
        return changes

    # ---- QoS 2 of shared subscriptions

    def begun(self, flow: SessionFlow) -> list[int]:
        """Packet ids of a flow that name a message of a group for the first time."""
        known = self.exact or {}
        return [
            packet_id
            for packet_id, queue_id, offset in flow.reserved
            if is_shared_place(queue_id) and known.get(packet_id, ())[:2] != (queue_id, offset)
        ]

    def take_back(self, packet_ids: list[int]) -> None:
        """Their note could not be written, so nothing of them was sent: the group still has them."""
        for packet_id in packet_ids:
            if self.exact is not None:
                self.exact.pop(packet_id, None)
        self.exact = self.exact or None

    def unfinished(self) -> int:
        """Messages of groups that the session's client may not have: lost when the session ends."""
        return sum(
            is_shared_place(queue_id) and phase == PHASE_PUBLISH
            for queue_id, _offset, phase in (self.exact or {}).values()
        )

    def shared_places(self) -> list[tuple[int, int]]:
        """(queue id, offset) of each message of a group that was noted here: it is not given to another member."""
        return [
            (place & ~SHARED_BIT, offset)
            for place, offset, _phase in (self.exact or {}).values()
            if is_shared_place(place)
        ]

    # ---- inner parts

    def _inflight_change(self, block: int) -> StateChange:
        value = pack_inflight(self.exact or {}, block)
        return StateChange(state_kinds.SESSION_INFLIGHT, block_key(self.client_id, block), value or None)

    def _received_change(self, block: int) -> StateChange:
        bits = (self.received or {}).get(block)
        value = None if bits is None else pack_received(bits)
        return StateChange(state_kinds.SESSION_RECEIVED, block_key(self.client_id, block), value)

    def _raise_ends(self, reserved: list[tuple[int, int, int]]) -> list[StateChange]:
        ends = self.exact_below or {}
        moved = {}
        for _packet_id, queue_id, offset in reserved:
            if queue_id in self.offsets and offset >= ends.get(queue_id, 0):
                ends[queue_id] = moved[queue_id] = offset + 1
        self.exact_below = ends or None
        return [
            StateChange(
                state_kinds.SESSION_OFFSET,
                offset_key(self.client_id, queue_id),
                pack_offset(self.offsets[queue_id], end),
            )
            for queue_id, end in moved.items()
        ]


def load_session(client_id: str, value: bytes, *, epoch: int, now_ms: int) -> ClientSession:
    """A session from its record; one that was connected when the broker stopped counts as closed now."""
    record = decode_record(value)
    return ClientSession(
        client_id=client_id,
        user=record.user,
        durable=True,
        expiry_s=record.expiry_s,
        epoch=epoch,
        closed_ms=record.closed_ms or now_ms,
        subscriptions={
            each.filter: Subscription(each.qos, each.queue_id, each.options, each.subscription_id, each.exact_from)
            for each in record.subscriptions
        },
        inflight=list(record.inflight),
        removed=dict(record.removed) or None,
    )


def load_sessions(state: StateTables, next_epoch: Callable[[], int], now_ms: int) -> dict[str, ClientSession]:
    """Client id -> session; parts of sessions that are not there are passed over."""
    sessions: dict[str, ClientSession] = {}
    for key, (value, position) in state.items(state_kinds.SESSION):
        client_id = bytes(key).decode()
        session = sessions[client_id] = load_session(client_id, value, epoch=next_epoch(), now_ms=now_ms)
        session.position = position + 1  # behind its begin: an answer waits for the whole record
    for key, (value, position) in state.items(state_kinds.SESSION_OFFSET):
        client_id, queue_id = split_offset_key(bytes(key))
        if client_id in sessions:
            _load_offset(sessions[client_id], queue_id, value, position)
    for key, (value, _position) in state.items(state_kinds.SESSION_INFLIGHT):
        client_id, _block = split_block_key(bytes(key))
        if client_id in sessions:
            session = sessions[client_id]
            session.exact = (session.exact or {}) | unpack_inflight(value)
    for key, (value, _position) in state.items(state_kinds.SESSION_RECEIVED):
        client_id, block = split_block_key(bytes(key))
        if client_id in sessions:
            session = sessions[client_id]
            session.received = (session.received or {}) | {block: unpack_received(value)}
    return sessions


def _load_offset(session: ClientSession, queue_id: int, value: bytes, position: int) -> None:
    offset, exact_below = unpack_offset(value)
    session.offsets[queue_id] = offset
    if exact_below:
        session.exact_below = (session.exact_below or {}) | {queue_id: exact_below}
    if position >= session.position:  # acknowledged after the list was written
        session.inflight = [e for e in session.inflight if e[1] != queue_id or e[2] >= offset]
