"""Bodies of the shared subscriptions' requests: SHARED_TAKE, SHARED_SETTLE and the push SHARED_GIVEN.

    SHARED_TAKE    msgpack: members that begin to take from their group; the reply names those that may
    SHARED_SETTLE  msgpack: what members have acknowledged or give back, and how many more they can take; one-way
    SHARED_GIVEN   u32 n, n x {u32 handle, u32 record size, i64 queue offset} | n raw records back to back; one-way,
                   little-endian

A proxy names each of its members by a handle of its own; a handle is never used again on one connection. Requests take
effect in the order sent. Invariant: an offset is settled only by the member it was given to. Thread rule: plain
values, pure functions; decoded records are views of the body.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from remoting.protocol.bodies.packed import decode, encode
from remoting.protocol.bodies.session_body import HISTORY_BIT
from remoting.protocol.errors import RemoteViolation

__all__ = [
    "SHARED_BIT",
    "SharedMember",
    "SharedSettle",
    "SharedSettled",
    "SharedTake",
    "SharedTaken",
    "decode",
    "decode_given",
    "encode",
    "encode_given",
    "is_shared_place",
]

Handle = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Offset = Annotated[int, Meta(ge=0)]
Buffer = bytes | bytearray | memoryview

SHARED_BIT = 0x4000_0000
"""Set in the queue id of a QoS 2 delivery that a session was given by a group: its own subscription to the same queue
has another place in it."""

_COUNT = struct.Struct("<I")
_GIVEN = struct.Struct("<IIq")


def is_shared_place(queue_id: int) -> bool:
    """Whether a delivery from this place was given by a group; places in the log have `HISTORY_BIT` set."""
    return queue_id & (HISTORY_BIT | SHARED_BIT) == SHARED_BIT


class SharedMember(msgspec.Struct, array_like=True):
    """One member: its session, its whole filter, how many messages it can take, and which it has from before."""

    handle: Handle
    client_id: str
    epoch: Offset
    filter: str
    credit: Handle
    held: list[Offset] = []


class SharedTake(msgspec.Struct, array_like=True):
    """SHARED_TAKE: members of shared subscriptions begin, or resume after the proxy or the broker was away."""

    members: list[SharedMember]


class SharedTaken(msgspec.Struct, array_like=True):
    """Reply to SHARED_TAKE: per member whether its session is subscribed and open under that epoch."""

    joined: list[bool]


class SharedSettled(msgspec.Struct, array_like=True):
    """Report of one member: `credit` more it can take (negative: fewer), offsets its client has, offsets given back.

    `sent`: of those it keeps, those that no other may get: sent with QoS 2 to a session that ends with its connection.
    """

    handle: Handle
    credit: int
    done: list[Offset] = []
    back: list[Offset] = []
    sent: list[Offset] = []
    refused: list[Offset] = []
    """Given back because its client may not see them: they go to other members only."""


class SharedSettle(msgspec.Struct, array_like=True):
    """SHARED_SETTLE: what members acknowledged, gave back, and can take."""

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
