"""The pure twin's index entries: as lists, and, where many were made at once, as arrays that know their groups.

Invariant: both say the same; an `ArrayBlock` holds entries of one message each. Thread rule: values, never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from broker.store.hot.contracts import Column
from broker.store.hot.contracts import EntryBlock as AnyBlock

Lists = tuple[list[int], list[int], list[int], list[int], list[int], list[int]]


class EntryBlock:
    """Entries as six lists: queue ids, queue offsets, positions, sizes, tag hashes, counts."""

    def __init__(self, *lists: list[int]) -> None:
        self.lists = lists

    def __len__(self) -> int:
        return len(self.lists[0])

    def slice(self, first: int, end: int) -> EntryBlock:
        """Return entries [first, end)."""
        return EntryBlock(*[one[first:end] for one in self.columns()])

    def position(self, at: int) -> int:
        """Return the log position of entry `at`."""
        return self.lists[2][at]

    def columns(self) -> Lists:
        """Return the six columns."""
        queues, offsets, positions, sizes, tags, counts = self.lists
        return queues, offsets, positions, sizes, tags, counts


class ArrayBlock(EntryBlock):
    """Entries as arrays, with the order that brings those of one queue together."""

    def __init__(self, queues: Column, order: Column, firsts: Column) -> None:
        self.queues = queues
        self.order = order
        """Indices, by queue and then as they stand."""
        self.firsts = firsts
        """Where in `order` each queue begins."""
        self.each = queues[order[firsts]]
        """The queues, once each, rising."""
        self.offsets = self.positions = self.sizes = self.tags = queues

    def __len__(self) -> int:
        return len(self.queues)

    @property
    def lasts(self) -> Column:
        """Where in `order` each queue ends."""
        ends = np.empty_like(self.firsts)
        ends[:-1] = self.firsts[1:]
        ends[-1] = len(self.order)
        return ends - 1

    @cached_property
    def lists(self) -> Lists:  # type: ignore[override]
        """The six columns as lists."""
        return (
            self.queues.tolist(), self.offsets.tolist(), self.positions.tolist(), self.sizes.tolist(),
            self.tags.tolist(), [1] * len(self.queues),
        )  # fmt: skip

    def position(self, at: int) -> int:
        """Return the log position of entry `at`."""
        return int(self.positions[at])


def grouped(queues: Column) -> ArrayBlock:
    """Return a block of these queue ids, all of 32 bits; offsets and the other columns are still to be put in."""
    assert 0 < len(queues) < 1 << 20, len(queues)
    keys = queues << 20 | np.arange(len(queues))
    keys.sort()
    ids = keys >> 20
    firsts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    return ArrayBlock(queues, keys & 0xF_FFFF, firsts)


def make_block(
    queues: Sequence[int],
    offsets: Sequence[int],
    positions: Sequence[int],
    sizes: Sequence[int],
    tags: Sequence[int],
    counts: Sequence[int],
) -> EntryBlock:
    """Return a block of these columns."""
    return EntryBlock(*map(list, (queues, offsets, positions, sizes, tags, counts)))


def lists_of(entries: AnyBlock) -> Sequence[list[int]]:
    """Return the six columns of a block of this twin."""
    assert isinstance(entries, EntryBlock)
    return entries.lists
