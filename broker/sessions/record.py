"""How a session lies in the log: one record per durable session, one small record per committed offset.

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

`load_sessions` reads them all back at a start.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from broker.store.state import state_kinds

if TYPE_CHECKING:
    from broker.store.state.state_tables import StateTables

import msgspec

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
    """The epoch that the connection holding it named when it took it again; 0 for one that came anew."""
    wake_ms: int = 0
    """When the expiry looks at this session next; 0: not scheduled."""

    def record(self) -> bytes:
        """The value of the SESSION record."""
        return _encode(
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


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SessionRecord).decode


def load_session(client_id: str, value: bytes, *, epoch: int, now_ms: int) -> ClientSession:
    """A session from its record; one that was connected when the broker stopped counts as closed now."""
    record = _decode(value)
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


def load_sessions(state: StateTables, next_epoch: Callable[[], int], now_ms: int) -> dict[str, ClientSession]:
    """Client id -> session; parts of sessions that are not there are passed over."""
    sessions: dict[str, ClientSession] = {}
    for key, (value, position) in state.items(state_kinds.SESSION):
        client_id = bytes(key).decode()
        session = sessions[client_id] = load_session(client_id, value, epoch=next_epoch(), now_ms=now_ms)
        session.position = position
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
    if position > session.position:  # acknowledged after the list was written
        session.inflight = [e for e in session.inflight if e[1] != queue_id or e[2] >= offset]
