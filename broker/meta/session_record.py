"""How a session lies in the log: one record per durable session, one small record per committed offset.

```
SESSION         key = client id (UTF-8)                        value = msgpack array of SessionRecord
SESSION_OFFSET  key = client id, 0x00, queue id u32 LE         value = next offset i64 LE
```
A client id cannot contain a zero byte (MQTT forbids U+0000), so the keys are unambiguous. The epoch is not stored: it
is made of the store's epoch, which every start raises, and a counter, so a restart can never repeat one.
Pure codec: no I/O, no clock.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import msgspec

_QUEUE = struct.Struct("<I")
_OFFSET = struct.Struct("<q")


class SessionRecord(msgspec.Struct, array_like=True):
    """Durable part of a session. `closed_ms` is 0 while it is connected."""

    user: str | None
    expiry_s: int
    closed_ms: int
    subscriptions: list[tuple[str, int, int]]
    inflight: list[tuple[int, int, int]]


@dataclass(slots=True)
class Subscription:
    """One filter of one session: maximal QoS and the light queue that carries it."""

    qos: int
    queue_id: int


@dataclass(slots=True)
class Session:
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
    inflight: list[tuple[int, int, int]] = field(default_factory=list)

    def record(self) -> bytes:
        """The value of the SESSION record."""
        return _encode(
            SessionRecord(
                user=self.user,
                expiry_s=self.expiry_s,
                closed_ms=self.closed_ms,
                subscriptions=[(name, item.qos, item.queue_id) for name, item in self.subscriptions.items()],
                inflight=self.inflight,
            )
        )


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SessionRecord).decode


def load_session(client_id: str, value: bytes, *, epoch: int, now_ms: int) -> Session:
    """A session from its record; one that was connected when the broker stopped counts as closed now."""
    record = _decode(value)
    return Session(
        client_id=client_id,
        user=record.user,
        durable=True,
        expiry_s=record.expiry_s,
        epoch=epoch,
        closed_ms=record.closed_ms or now_ms,
        subscriptions={name: Subscription(qos, queue_id) for name, qos, queue_id in record.subscriptions},
        inflight=list(record.inflight),
    )


def offset_key(client_id: str, queue_id: int) -> bytes:
    """Key of a SESSION_OFFSET record."""
    return client_id.encode() + b"\x00" + _QUEUE.pack(queue_id)


def split_offset_key(key: bytes) -> tuple[str, int]:
    """(client id, queue id) of a SESSION_OFFSET key."""
    assert key[-5] == 0, key
    return key[:-5].decode(), _QUEUE.unpack_from(key, len(key) - 4)[0]


def pack_offset(offset: int) -> bytes:
    """Value of an offset record."""
    return _OFFSET.pack(offset)


def unpack_offset(value: bytes) -> int:
    """Offset from its record."""
    offset: int = _OFFSET.unpack(value)[0]
    return offset
