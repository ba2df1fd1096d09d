"""Bodies of HISTORY, msgpack: what stood in the log before a wildcard filter's queue existed, read in bounded steps.

A subscription that begins before its queue has a second place: a log position, kept like a queue offset under the
queue's id with `HISTORY_BIT` set. Where no position is known yet, what was wished for stands in its place, as a
negative number (`pack_before`); `FINISHED` means that everything before the queue is with the client.

Invariant: places of one subscription only rise: wish < position < FINISHED. Thread rule: plain values, pure functions.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from remoting.protocol.bodies.packed import decode, encode
from remoting.protocol.bodies.session_body import U32, HistoryStart, Offset

__all__ = [
    "FINISHED",
    "HISTORY_BIT",
    "HistoryReply",
    "HistoryRequest",
    "decode",
    "encode",
    "pack_before",
    "unpack_before",
]

HISTORY_BIT = 0x8000_0000
"""Set in the queue id of a place before a queue; ids of queues never have it."""
FINISHED = 2**62
_LAST = 2**61


class HistoryRequest(msgspec.Struct, array_like=True):
    """The next step: messages that match `filter`, from `position` (or, at first, stored from `from_ms` on).

    With `last` > 0: find where the last so many begin, going down from `position` (0: from the queue's begin).
    """

    queue_id: U32
    filter: str
    position: Offset = 0
    from_ms: Offset = 0
    last: Offset = 0


class HistoryReply(msgspec.Struct, array_like=True):
    """Raw records of the step back to back, where the next step begins, and whether there is none.

    Of a search for `last`: `last` is how many are still to be found; when `done`, `position` is where they begin.
    """

    position: Offset
    done: bool
    records: bytes = b""
    last: Offset = 0


Place = Annotated[int, Meta(le=FINISHED)]


def pack_before(wish: HistoryStart) -> int:
    """Return the place of a wish whose position is not known yet."""
    return -_LAST - wish.last if wish.last is not None else -1 - (wish.from_ms or 0)


def unpack_before(place: int) -> tuple[int, int, int]:
    """Return (position, from_ms, last) of a place; of the three at most one is not 0."""
    if place >= 0:
        return place, 0, 0
    return (0, 0, -place - _LAST) if place <= -_LAST else (0, -place - 1, 0)
