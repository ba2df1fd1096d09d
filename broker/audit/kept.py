"""Administrative acts that outlive the log around them: the table AUDITED.

The queue of acts expires with the log. Before a segment goes, `keep_from` copies the acts in it to the table, from
which the store carries them forward as it does all state; so a log that keeps messages for three days has acts of three
months. The table has only what the queue no longer shows, or will soon no longer show.

    key u64 big-endian: offset of the act in the queue | value: the record's body, as it was in the queue

Invariant: the table's offsets are below those that the queue shows once a segment has gone, so that an act is listed
once; it has `KEPT_MAX` acts at most, and none that is older than the retention for longer than until the next segment
goes. Thread rule: loop thread.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from broker.store.errors import UnreadableOffsets
from broker.store.placed import Placed
from broker.store.state.state_kinds import AUDITED, StateChange
from remoting.protocol.records.record import RecordView, header_of
from remoting.server.acts import ActRecord

if TYPE_CHECKING:
    from broker.store.log_store import LogStore
    from runtime.clock import Clock

KEPT_MAX = 10_000
"""Most acts of an expired log; the oldest go first."""
PIECE = 256
"""Acts written again, or forgotten, in one step."""
PIECE_BYTES_MAX = 1024 * 1024
_KEY = struct.Struct(">Q")
decode = msgspec.json.Decoder(ActRecord).decode
Append = Callable[[Placed, Sequence[StateChange]], int]


class KeptActs:
    """The acts of a part of the log that is gone, by their offset."""

    def __init__(self, store: LogStore, clock: Clock, log: Any, retention_ms: int) -> None:
        self._store = store
        self._clock = clock
        self._log = log
        self._retention_ms = retention_ms

    @property
    def oldest_ms(self) -> int:
        """Acts before this time are not shown any more."""
        return self._clock.now_ms() - self._retention_ms if self._retention_ms else 0

    def bodies(self, low: int, end: int) -> list[tuple[int, bytes]]:
        """Return (offset, body) of the kept acts with offsets in [low, end), in order."""
        found = ((_KEY.unpack(key)[0], value) for key, (value, _position) in self._store.state.items(AUDITED))
        return sorted(each for each in found if low <= each[0] < end)

    def between(self, from_ms: int, until_ms: int | None, end: int) -> list[tuple[int, bytes]]:
        """Return those with offsets below `end` and times from the one to the other, both included."""
        kept = self.bodies(0, end)
        first = bisect_left(kept, from_ms, key=_time_ms)
        last = len(kept) if until_ms is None else bisect_right(kept, until_ms, key=_time_ms)
        return kept[first:last]

    def keep_from(self, queue: int | None, target: int, append: Append) -> bool:
        """Copy some of the acts below the log position `target` to the table; True when there are none left."""
        changes = self._doomed(queue, target) if queue is not None else []
        if not changes:
            changes = self._outlived()
        if changes:
            append(Placed(), changes)
        return not changes

    def _doomed(self, queue: int, target: int) -> list[StateChange]:
        reading = self._store.reading
        first, high = reading.bounds(queue)
        kept = self.bodies(first, high)
        first = kept[-1][0] + 1 if kept else first
        while first < high:
            try:
                found = reading.read(queue, first, PIECE, PIECE_BYTES_MAX, high)
            except UnreadableOffsets as error:
                self._log.error("audit_damaged", first_offset=first, next_offset=error.next_offset, reason=error.reason)
                first = error.next_offset
                continue
            changes = []
            for offset, record in enumerate(found.records, found.first_offset):
                view = RecordView(record)
                if header_of(view).position >= target:
                    break
                changes.append(StateChange(AUDITED, _KEY.pack(offset), bytes(view.body)))
            return changes
        return []

    def _outlived(self) -> list[StateChange]:
        kept = self.bodies(0, 2**63)
        old = max(bisect_left(kept, self.oldest_ms, key=_time_ms), len(kept) - KEPT_MAX)
        return [StateChange(AUDITED, _KEY.pack(offset), None) for offset, _body in kept[: min(old, PIECE)]]


def _time_ms(kept: tuple[int, bytes]) -> int:
    return decode(kept[1]).time_ms
