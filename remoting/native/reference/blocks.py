"""The reference's index entries: six lists. Thread rule: values, never changed."""

from __future__ import annotations

from collections.abc import Sequence

from remoting.native.contracts import EntryBlock as AnyBlock

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
