"""Bodies of FOLLOW and NOTIFY: the queues whose growth a proxy follows, and notices of it. Little-endian.

    FOLLOW   u32 n_add, u32 n_remove, n_add x u32 queue id, n_remove x u32 queue id
      reply  n_add x i64 confirmed end of the queue, in the order of the request
    NOTIFY   u32 n, n x {u32 queue id, i64 confirmed end} | records; one-way, coalesced per proxy and turn of the
             broker's loop. records: raw, back to back, in log order; only after a FOLLOW with the field
             `records` = "1", or "all": then records of other queues may be among them. Best effort: any of them
             may be missing and is then pulled

Invariant: an end (exclusive queue offset) never falls. Thread rule: pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from remoting.protocol.errors import RemoteViolation

Buffer = bytes | bytearray | memoryview

_HEAD = struct.Struct("<II")
_COUNT = struct.Struct("<I")
_GROWN = struct.Struct("<Iq")


def encode_follow(add: Sequence[int], remove: Sequence[int] = ()) -> bytes:
    """Return a FOLLOW body."""
    return struct.pack(f"<II{len(add) + len(remove)}I", len(add), len(remove), *add, *remove)


def decode_follow(body: Buffer) -> tuple[list[int], list[int]]:
    """Return (queue ids to follow, queue ids to stop following)."""
    if len(body) < _HEAD.size:
        raise RemoteViolation(f"follow of {len(body)} bytes has no head")
    n_add, n_remove = _HEAD.unpack_from(body)
    if len(body) != _HEAD.size + 4 * (n_add + n_remove):
        raise RemoteViolation(f"follow of {len(body)} bytes does not hold {n_add} + {n_remove} queues")
    queues = list(struct.unpack_from(f"<{n_add + n_remove}I", body, _HEAD.size))
    return queues[:n_add], queues[n_add:]


def encode_follow_reply(ends: Sequence[int]) -> bytes:
    """Return a FOLLOW reply: the confirmed end per added queue."""
    return struct.pack(f"<{len(ends)}q", *ends)


def decode_follow_reply(body: Buffer) -> list[int]:
    """Return the confirmed ends, in the order of the added queues."""
    if len(body) % 8:
        raise RemoteViolation(f"follow reply of {len(body)} bytes is not a row of 8-byte offsets")
    return list(struct.unpack(f"<{len(body) // 8}q", body))


def encode_notify(ends: Sequence[tuple[int, int]], records: Sequence[bytes] = ()) -> bytes:
    """Return a NOTIFY body of (queue id, confirmed end), followed by raw records."""
    parts = [_COUNT.pack(len(ends))]
    for queue_id, end in ends:
        parts.append(_GROWN.pack(queue_id, end))
    parts += records
    return b"".join(parts)


def decode_notify(body: Buffer) -> tuple[list[tuple[int, int]], memoryview]:
    """Return (queue id, confirmed end) per queue that grew, and the records sent with it."""
    if len(body) < 4:
        raise RemoteViolation(f"notify of {len(body)} bytes has no count")
    (count,) = _COUNT.unpack_from(body)
    end = 4 + count * _GROWN.size
    if len(body) < end:
        raise RemoteViolation(f"notify of {len(body)} bytes does not hold {count} queues")
    grown = []
    for at in range(4, end, _GROWN.size):
        grown.append(_GROWN.unpack_from(body, at))  # noqa: PERF401 - compiled, a comprehension is a call
    return grown, memoryview(body)[end:]
