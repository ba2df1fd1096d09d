"""Messages that groups consume in order: which of a queue each group has, by which attempt, and for how long.

A queue in order is one entry of the state table, as long as the group has not acknowledged all it was given:

    key    group (UTF-8) | 0x00 | queue id u32 BE
    value  length of the attempt id u8 | attempt id | entries, ascending by offset x
           { offset u64 | pop time (ms) u64 | invisible time (ms) u32 | deliveries before this one u16 } LE

The group gets nothing more of the queue before the last of these times is over, unless the same attempt asks again;
then it gets the entries again, before anything behind them. The attempt is that of the last delivery.

Invariant: a queue with entries is in the schedule no later than the end of their times. `OrderedQueues` is pure (time
comes in). Loop thread only.
"""

from __future__ import annotations

import heapq
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.pop.check_points import Owned, queue_key, queue_of_key
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange

if TYPE_CHECKING:
    from broker.pop.held import HeldChanges

ATTEMPT_BYTES_MAX = 255
TIMES_MAX = 2**16 - 1

_ENTRY = struct.Struct("<QQIH")
Entry = tuple[int, int, int, int]
"""Offset, pop time, invisible time, deliveries before this one."""
Lookup = Callable[[bytes], bytes | None]
"""Key -> value of a queue as it was last written, None for none."""


@dataclass(frozen=True, slots=True)
class BlockChange:
    """A queue as it is to be written: `value` None removes it."""

    key: bytes
    value: bytes | None
    growth: int
    """How many messages more, or fewer if negative."""
    plan_ms: int | None
    """When the queue must be looked at."""
    kind: int


@dataclass(frozen=True, slots=True)
class OrderedBatch:
    """What a group has of a queue in order."""

    attempt: bytes
    entries: tuple[Entry, ...]
    """At least one, ascending by offset."""

    @property
    def times(self) -> dict[int, int]:
        """Offset -> deliveries before this one, ascending."""
        return {entry[0]: entry[3] for entry in self.entries}

    @property
    def end_ms(self) -> int:
        """When the last ownership is over."""
        return max(pop + invisible for _offset, pop, invisible, _times in self.entries)

    def is_repeat(self, attempt: bytes) -> bool:
        """Whether this attempt got the messages already."""
        return bool(attempt) and attempt == self.attempt

    def is_free(self, attempt: bytes, now_ms: int) -> bool:
        """Whether this attempt may have the messages now."""
        return self.is_repeat(attempt) or self.end_ms <= now_ms


def decode_batch(value: bytes) -> OrderedBatch:
    """The batch in a value of the state table."""
    begin = 1 + value[0]
    return OrderedBatch(value[1:begin], tuple(_ENTRY.iter_unpack(value[begin:])))


def encode_batch(attempt: bytes, entries: Iterable[Entry]) -> bytes:
    """The value of the state table."""
    return b"".join([bytes([len(attempt)]), attempt, *(_ENTRY.pack(*entry) for entry in entries)])


def _count(value: bytes | None) -> int:
    return 0 if value is None else (len(value) - 1 - value[0]) // _ENTRY.size


class OrderedQueues:
    """The queues of one broker of which groups have messages in order."""

    def __init__(
        self, lookup: Lookup, items: Iterable[tuple[bytes, bytes]] = (), kind: int = state_kinds.ORDERED_BATCH
    ) -> None:
        """`items`: what is there; `lookup` finds it later, with what was written since; `kind`: its state table."""
        self._kind = kind
        self._lookup = lookup
        self._total = 0
        self._planned: dict[bytes, int] = {}
        self._schedule: list[tuple[int, bytes]] = []
        for key, value in items:
            self._total += _count(value)
            self._plan(key, decode_batch(value).end_ms)

    def __len__(self) -> int:
        return self._total

    def batch(self, group: str, queue_id: int) -> OrderedBatch | None:
        """What a group has of a queue in order."""
        value = self._lookup(queue_key(group, queue_id)) if self._total else None
        return None if value is None else decode_batch(value)

    def find(self, group: str, queue_id: int, offset: int) -> Owned | None:
        """The ownership of a message, None when it is not in flight in order."""
        batch = self.batch(group, queue_id)
        found = () if batch is None else batch.entries
        return next((entry[1:3] for entry in found if entry[0] == offset), None)

    def give(
        self, group: str, queue_id: int, attempt: bytes, offsets: Sequence[int], reached: int, owned: Owned
    ) -> list[BlockChange]:
        """What changes when an attempt gets these messages, some of them again.

        Those it has below `reached` that are not among them can no longer be read and are given up.
        """
        batch = self.batch(group, queue_id)
        before = {} if batch is None else batch.times
        more = 0 if batch is not None and batch.is_repeat(attempt) else 1
        entries = [
            (offset, *owned, min(before[offset] + more, TIMES_MAX) if offset in before else 0) for offset in offsets
        ]
        entries += [entry for entry in (() if batch is None else batch.entries) if entry[0] >= reached]
        if not offsets and len(entries) == len(before):
            return []
        return [self._change(group, queue_id, attempt, entries)]

    def add(self, group: str, queue_id: int, attempt: bytes, offset: int, owned: Owned) -> list[BlockChange]:
        """What changes when an attempt has got a message more, for the first time."""
        batch = self.batch(group, queue_id)
        others = () if batch is None else (entry for entry in batch.entries if entry[0] != offset)
        return [self._change(group, queue_id, attempt, sorted([*others, (offset, *owned, 0)]))]

    def release(self, group: str, queue_id: int, offsets: Sequence[int]) -> list[BlockChange]:
        """What changes when these messages, all in flight in order, are done."""
        batch = self.batch(group, queue_id)
        assert batch is not None, (group, queue_id)
        left = [entry for entry in batch.entries if entry[0] not in offsets]
        return [self._change(group, queue_id, batch.attempt, left)]

    def move(self, group: str, queue_id: int, offset: int, owned: Owned) -> list[BlockChange]:
        """What changes when the group has a message, in flight in order, for another time."""
        batch = self.batch(group, queue_id)
        assert batch is not None, (group, queue_id)
        entries = [(offset, *owned, entry[3]) if entry[0] == offset else entry for entry in batch.entries]
        return [self._change(group, queue_id, batch.attempt, entries)]

    def written(self, change: BlockChange) -> None:
        """A change is in the log."""
        self._total += change.growth
        if change.plan_ms is not None:
            self._plan(change.key, change.plan_ms)

    def keep(self, change: BlockChange, held: HeldChanges) -> None:
        """Take a change for written that is written later; if it is not, the queue may be looked at too early."""
        self.written(change)
        held.keep((StateChange(change.kind, change.key, change.value),), lambda: self._shrink(change.growth))

    def _shrink(self, number: int) -> None:
        self._total -= number

    def take_due(self, now_ms: int, count: int = sys.maxsize) -> list[tuple[str, int]]:
        """(group, queue id) of up to `count` queues whose messages may be given again; each needs `written` or
        `postpone`."""
        found: list[tuple[str, int]] = []
        while self._schedule and self._schedule[0][0] <= now_ms and len(found) < count:
            at_ms, key = heapq.heappop(self._schedule)
            if self._planned.get(key) != at_ms:
                continue
            del self._planned[key]
            value = self._lookup(key)
            if value is None:
                continue
            end_ms = decode_batch(value).end_ms
            if end_ms <= now_ms:
                found.append(queue_of_key(key))
            else:
                self._plan(key, end_ms)
        return found

    def postpone(self, group: str, queue_id: int, at_ms: int) -> None:
        """Return a queue again at this time."""
        self._plan(queue_key(group, queue_id), at_ms)

    def _change(self, group: str, queue_id: int, attempt: bytes, entries: list[Entry]) -> BlockChange:
        key = queue_key(group, queue_id)
        growth = len(entries) - _count(self._lookup(key))
        if not entries:
            return BlockChange(key, None, growth, None, self._kind)
        end_ms = max(pop + invisible for _offset, pop, invisible, _times in entries)
        return BlockChange(key, encode_batch(attempt, entries), growth, end_ms, self._kind)

    def _plan(self, key: bytes, at_ms: int) -> None:
        planned = self._planned.get(key)
        if planned is None or at_ms < planned:
            self._planned[key] = at_ms
            heapq.heappush(self._schedule, (at_ms, key))
