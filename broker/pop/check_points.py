"""Check-points of POP: which messages of a queue each consumer group has in flight, since when and for how long.

A check-point says that a group was given one message and owns it until `pop time + invisible time`. Check-points of
neighbouring offsets are one entry of the state table, so that a million of them cost few bytes each:

    key    group (UTF-8) | 0x00 | queue id u32 BE | block u64 BE        a block is BLOCK consecutive offsets
    value  entries x { offset within the block u8 | pop time (ms) u64 LE | invisible time (ms) u32 LE }

What lies below the group's offset in a queue (GROUP_OFFSET) and has no check-point is done; what lies at or above it
was not given yet. Changes are computed first (`give`, `release`), written in one group with what belongs to them, then
taken over (`written`).

Invariant: a block that is not empty has an entry in the schedule no later than its earliest end of ownership.
`CheckPoints` is pure (time comes in). Loop thread only.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from broker.store.state import state_kinds

BLOCK = 32
INVISIBLE_MS_MAX = 2**32 - 1
"""Longest ownership: 49 days."""

Owned = tuple[int, int]
"""(pop time, invisible time) of a check-point, ms."""
Lookup = Callable[[bytes], bytes | None]
"""Key -> value of a block as it was last written, None for an empty one."""

_ENTRY = struct.Struct("<BQI")
_QUEUE = struct.Struct(">I")
_BLOCK = struct.Struct(">Q")
_PLACE = struct.Struct(">IQ")


@dataclass(frozen=True, slots=True)
class BlockChange:
    """A block as it is to be written: `value` None removes it."""

    key: bytes
    value: bytes | None
    growth: int
    """How many check-points more, or fewer if negative."""
    plan_ms: int | None
    """When the block must be looked at; None where the schedule has an entry early enough."""
    kind: int = state_kinds.CHECK_POINT


@dataclass(frozen=True, slots=True)
class Due:
    """Messages of one block whose time of ownership is over."""

    key: bytes
    group: str
    queue_id: int
    offsets: tuple[int, ...]
    pop_ms: int
    """When the first of them was given."""


def queue_key(group: str, queue_id: int) -> bytes:
    """What the keys of all blocks of a group in a queue begin with."""
    return group.encode() + b"\x00" + _QUEUE.pack(queue_id)


def queue_of_key(key: bytes) -> tuple[str, int]:
    """(group, queue id) of what `queue_key` returned."""
    return key[: -_QUEUE.size - 1].decode(), _QUEUE.unpack_from(key, len(key) - _QUEUE.size)[0]


def _place(key: bytes) -> tuple[str, int, int]:
    """(group, queue id, first offset) of a block."""
    end = key.index(0)
    queue_id, block = _PLACE.unpack_from(key, end + 1)
    return key[:end].decode(), queue_id, block * BLOCK


def find_entry(value: bytes | None, at: int) -> int:
    """Where the entry of an offset within the block begins; -1 for none."""
    index = -1 if value is None else value[:: _ENTRY.size].find(at)
    return index * _ENTRY.size if index >= 0 else -1


def without(value: bytes | None, within: Iterable[int]) -> bytes:
    """The entries of a block but those of these offsets within it."""
    left = value or b""
    for at in within:
        begin = find_entry(left, at)
        if begin >= 0:
            left = left[:begin] + left[begin + _ENTRY.size :]
    return left


def first_end(value: bytes) -> int:
    """When the first ownership in a block that is not empty is over."""
    ends: list[int] = [pop + invisible for _at, pop, invisible in _ENTRY.iter_unpack(value)]
    return min(ends)


class CheckPoints:
    """The check-points of one broker."""

    def __init__(self, lookup: Lookup, blocks: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """`blocks`: what is there; `lookup` finds them later, with what was written since."""
        self._lookup = lookup
        self._counts: dict[bytes, int] = {}
        self._total = 0
        self._schedule: list[tuple[int, bytes]] = []
        for key, value in blocks:
            self._grow(key, len(value) // _ENTRY.size)
            self._schedule.append((first_end(value), key))
        heapq.heapify(self._schedule)

    def __len__(self) -> int:
        return self._total

    def in_flight(self, group: str, queue_id: int) -> int:
        """How many messages of a queue a group has."""
        return self._counts.get(queue_key(group, queue_id), 0)

    def find(self, group: str, queue_id: int, offset: int) -> Owned | None:
        """The check-point of a message, None when it is not in flight."""
        block, at = divmod(offset, BLOCK)
        value = self._lookup(queue_key(group, queue_id) + _BLOCK.pack(block))
        begin = find_entry(value, at)
        if value is None or begin < 0:
            return None
        _at, pop_ms, invisible_ms = _ENTRY.unpack_from(value, begin)
        return pop_ms, invisible_ms

    def give(self, group: str, queue_id: int, offsets: Sequence[int], owned: Owned) -> list[BlockChange]:
        """What changes when the group gets these messages, or gets them again."""
        changes = []
        end = owned[0] + owned[1]
        for key, within in _blocks(group, queue_id, offsets):
            before = self._lookup(key)
            value = without(before, within) + b"".join([_ENTRY.pack(at, *owned) for at in within])
            plan_ms = end if before is None or end < first_end(before) else None
            changes.append(BlockChange(key, value, (len(value) - len(before or b"")) // _ENTRY.size, plan_ms))
        return changes

    def release(self, group: str, queue_id: int, offsets: Sequence[int], *, planned: bool = True) -> list[BlockChange]:
        """What changes when these messages, all in flight, are done; `planned` False: `take_due` returned the block."""
        changes = []
        for key, within in _blocks(group, queue_id, offsets):
            value = without(self._lookup(key), within)
            plan_ms = None if planned or not value else first_end(value)
            changes.append(BlockChange(key, value or None, -len(within), plan_ms))
        return changes

    def written(self, change: BlockChange) -> None:
        """A change is in the log."""
        self._grow(change.key, change.growth)
        if change.plan_ms is not None:
            heapq.heappush(self._schedule, (change.plan_ms, change.key))

    def take_due(self, now_ms: int, count: int) -> list[Due]:
        """Blocks with messages whose ownership is over, about `count` messages at most.

        Each needs a `release` of these messages with `planned` False, or `postpone`.
        """
        found: list[Due] = []
        seen: set[bytes] = set()
        while self._schedule and self._schedule[0][0] <= now_ms and count > 0:
            key = heapq.heappop(self._schedule)[1]
            if key in seen:
                continue
            value = self._lookup(key)
            if value is None:
                continue
            late = {at: pop for at, pop, invisible in _ENTRY.iter_unpack(value) if pop + invisible <= now_ms}
            if late:
                seen.add(key)
                group, queue_id, first = _place(key)
                offsets = tuple(first + at for at in sorted(late))
                found.append(Due(key, group, queue_id, offsets, min(late.values())))
                count -= len(late)
            else:
                heapq.heappush(self._schedule, (first_end(value), key))
        return found

    def postpone(self, due: Due, at_ms: int) -> None:
        """Look at a block again at this time."""
        heapq.heappush(self._schedule, (at_ms, due.key))

    def _grow(self, key: bytes, growth: int) -> None:
        prefix = key[: -_BLOCK.size]
        count = self._counts.get(prefix, 0) + growth
        assert count >= 0, (prefix, count)
        self._total += growth
        if count:
            self._counts[prefix] = count
        else:
            self._counts.pop(prefix, None)


def _blocks(group: str, queue_id: int, offsets: Sequence[int]) -> list[tuple[bytes, list[int]]]:
    """(key, offsets within it) of each block that the offsets touch."""
    prefix = queue_key(group, queue_id)
    blocks: dict[int, list[int]] = {}
    for offset in offsets:
        block, at = divmod(offset, BLOCK)
        blocks.setdefault(block, []).append(at)
    return [(prefix + _BLOCK.pack(block), within) for block, within in blocks.items()]
