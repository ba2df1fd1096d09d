"""Check-points of POP: which messages of a queue each consumer group has in flight, since when and for how long.

A check-point says that a group was given one message and owns it until `pop time + invisible time`. Check-points of
neighbouring offsets are one entry of the state (`broker.store.state.check_point_table` has the layout), so that a
million of them cost few bytes each.

What lies below the group's offset in a queue (GROUP_OFFSET) and has no check-point is done; what lies at or above it
was not given yet. Changes are computed here (`give`, `release`) and written in one group with what belongs to them,
which puts them into the table.

Invariant: computing a change changes nothing. `CheckPoints` is pure (time comes in). Loop thread only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.store.state.check_point_table import BLOCK, CHECK_POINT_BYTES, KEY_TAIL
from broker.store.state.state_kinds import CHECK_POINT, StateChange

if TYPE_CHECKING:
    from broker.pop.held import HeldChanges
    from broker.store.state.check_point_table import CheckPointTable

INVISIBLE_MS_MAX = 2**32 - 1
"""Longest ownership: 49 days."""

Owned = tuple[int, int]
"""(pop time, invisible time) of a check-point, ms."""

_TIMES = struct.Struct("<QI")
_QUEUE = struct.Struct(">I")
_WITHIN = [bytes([at]) for at in range(BLOCK)]


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


def find_check_point(value: bytes, at: int) -> int:
    """Where the check-point of an offset within the block begins; -1 for none."""
    index = value[::CHECK_POINT_BYTES].find(at)
    return index * CHECK_POINT_BYTES if index >= 0 else -1


def without(value: bytes, within: Sequence[int]) -> bytes:
    """The check-points of a block but those of these offsets within it."""
    left = value
    for at in within:
        begin = find_check_point(left, at)
        if begin >= 0:
            left = left[:begin] + left[begin + CHECK_POINT_BYTES :]
    return left


class CheckPoints:
    """The check-points of one broker."""

    def __init__(self, table: CheckPointTable, held: HeldChanges | None = None) -> None:
        """`table` has what was written, `held` also what is written next."""
        self._table = table
        self._held = held

    def __len__(self) -> int:
        return self._table.total

    def in_flight(self, group: str, queue_id: int) -> int:
        """How many messages of a queue a group has."""
        owner = queue_key(group, queue_id)
        return self._table.in_flight(owner) + (0 if self._held is None else self._held.growth(owner))

    def find(self, group: str, queue_id: int, offset: int) -> Owned | None:
        """The check-point of a message, None when it is not in flight."""
        block, at = divmod(offset, BLOCK)
        value = self._value(queue_key(group, queue_id) + KEY_TAIL.pack(block))
        begin = find_check_point(value, at)
        return None if begin < 0 else _TIMES.unpack_from(value, begin + 1)

    def named(self, group: str, queue_id: int, offsets: Sequence[int], owned: Owned) -> Sequence[int]:
        """Those of these messages that the group has with this ownership."""
        found: list[int] = []
        times = _TIMES.pack(*owned)
        for key, first, within in _blocks(group, queue_id, offsets):
            value = self._value(key)
            if value == _given(within, times):
                found += [first + at for at in within]
            elif value:
                begins = [(at, find_check_point(value, at)) for at in within]
                found += [first + at for at, begin in begins if begin >= 0 and value.startswith(times, begin + 1)]
        return offsets if len(found) == len(offsets) else found

    def give(self, group: str, queue_id: int, offsets: Sequence[int], owned: Owned) -> list[StateChange]:
        """What changes when the group gets these messages, each named once, or gets them again."""
        changes, times = [], _TIMES.pack(*owned)
        for key, _first, within in _blocks(group, queue_id, offsets):
            before, added = self._value(key), _given(within, times)
            changes.append(StateChange(CHECK_POINT, key, without(before, within) + added if before else added))
        return changes

    def release(self, group: str, queue_id: int, offsets: Sequence[int]) -> list[StateChange]:
        """What changes when these messages, all in flight and each named once, are done."""
        changes = []
        for key, _first, within in _blocks(group, queue_id, offsets):
            value = self._value(key)
            left = b"" if len(value) == len(within) * CHECK_POINT_BYTES else without(value, within)
            changes.append(StateChange(CHECK_POINT, key, left or None))
        return changes

    def take_due(self, now_ms: int, count: int) -> list[Due]:
        """Blocks with messages whose ownership is over, about `count` messages at most.

        Each needs a `release` of these messages to be written, or `postpone`.
        """
        found = []
        for key, within, pop_ms in self._table.take_due(now_ms, count):
            group, queue_id = queue_of_key(key[: -KEY_TAIL.size])
            first = KEY_TAIL.unpack_from(key, len(key) - KEY_TAIL.size)[0] * BLOCK
            found.append(Due(key, group, queue_id, tuple(first + at for at in within), pop_ms))
        return found

    def postpone(self, due: Due, at_ms: int) -> None:
        """Look at a block again at this time, or earlier."""
        self._table.postpone(due.key, at_ms)

    def _value(self, key: bytes) -> bytes:
        if self._held is not None:
            return self._held.value(CHECK_POINT, key) or b""
        found = self._table.get(key)
        return b"" if found is None else found[0]


def _given(within: Sequence[int], times: bytes) -> bytes:
    """The check-points of messages that were given together."""
    places = _WITHIN[within.start : within.stop] if isinstance(within, range) else [_WITHIN[at] for at in within]
    return times.join(places) + times


def _blocks(group: str, queue_id: int, offsets: Sequence[int]) -> Iterator[tuple[bytes, int, Sequence[int]]]:
    """(key, its first offset, offsets within it) of each block that the offsets, each named once, touch."""
    if not offsets:
        return
    prefix = queue_key(group, queue_id)
    low, high = min(offsets), max(offsets) + 1
    if high - low == len(offsets):  # neighbours, as most are: nothing is done for each of them
        for first in range(low - low % BLOCK, high, BLOCK):
            yield prefix + KEY_TAIL.pack(first // BLOCK), first, range(max(low - first, 0), min(high - first, BLOCK))
        return
    blocks: dict[int, list[int]] = {}
    for offset in offsets:
        blocks.setdefault(offset // BLOCK, []).append(offset % BLOCK)
    for block, within in blocks.items():
        yield prefix + KEY_TAIL.pack(block), block * BLOCK, within
