"""What both twins of the store's hot loops offer, and the numbers they agree on.

An *entry block* holds the index entries of one append in log order: per entry queue id, queue offset, log position,
record size in bytes, tag hash. A *ring* is the index tail's memory: the entry columns and, per queue, the next offset
and the newest entry. Invariant: `Encoder.encode` gives out the offsets by moving the rows on at once; whoever cannot
write the bytes calls `Ring.undo`. Thread rule: loop thread, `order_by_queue` and `gather` anywhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from broker.store.store_message import StoreMessage
from remoting.protocol.record import FLAG_MQTT, FLAG_RETAIN, FLAG_STAGED

RETAINED_MASK = FLAG_MQTT | FLAG_RETAIN | FLAG_STAGED
RETAINED_VALUE = FLAG_MQTT | FLAG_RETAIN
"""A message whose flags under the mask are this sets or clears the retained message of its topic."""

Column = npt.NDArray[Any]
NextSegment = Callable[[int], int]
"""Makes the segment that starts at a position and returns where it ends. Raises OSError."""


class EntryBlock(Protocol):
    """Index entries in log order; never changed once made."""

    def __len__(self) -> int: ...

    def slice(self, first: int, end: int) -> EntryBlock:
        """Return entries [first, end)."""
        ...

    def position(self, at: int) -> int:
        """Return the log position of entry `at`."""
        ...

    def columns(self) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
        """Return queue ids, queue offsets, positions, sizes, tag hashes."""
        ...


class Encoded(Protocol):
    """A batch as bytes; `first` and `end` are log positions."""

    first: int
    end: int
    pieces: list[tuple[int, bytes]]
    """(log position, bytes) per segment; one behind the other from `first` to `end`."""
    offsets: list[int]
    """Per message its offset in its first queue, -1 when it has none."""
    retained: list[tuple[int, int]]
    """(index of the message, log position) of those that set or clear a retained message."""
    controls: list[int]
    """Log position of each control record."""

    @property
    def entries(self) -> EntryBlock:
        """The index entries."""
        ...


class Ring(Protocol):
    """The memory of the index tail; numbers count entries for ever, slot = number % capacity."""

    def store(self, entries: EntryBlock, first: int, count: int) -> None:
        """Put entries behind number `count`, when `first` is the oldest live one; their offsets are given out."""
        ...

    def claim(self, entries: EntryBlock, at: int, queue_limit: int) -> int:
        """Move the rows on for entries from `at`; return the first one that is not the next of a queue below the limit.

        The length when all of them are.
        """
        ...

    def undo(self, entries: EntryBlock) -> None:
        """Take back the offsets these entries were given, the latest."""
        ...

    def find(self, queue: int, offset: int, wanted: int, first: int, count: int) -> tuple[Column, Column, Column]:
        """Return positions, sizes and tags of up to `wanted` entries of `queue` from `offset`, which is live."""
        ...


class Encoder(Protocol):
    """Makes records of one start of the store (its epoch)."""

    def encode(
        self,
        ring: Ring,
        messages: Sequence[StoreMessage],
        controls: int,
        atomic: bool,
        store_ms: int,
        queue_limit: int,
        position: int,
        segment_end: int,
        next_segment: NextSegment,
    ) -> Encoded:
        """Return the records of `messages`, the last `controls` of which are control records, from `position` on.

        Raises RecordTooLarge, LocalMisuse, and what `next_segment` raises; the rows are as before then.
        """  # fmt: skip
        ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a scan came: positions, the last record's epoch and time, records seen, and why it stopped ("" : end)."""

    position: int
    groups_end: int
    epoch: int
    store_ms: int
    records: int
    group_open: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Core:
    """One twin."""

    name: str
    make_block: Callable[[Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[int]], EntryBlock]
    """(queue ids, queue offsets, positions, sizes, tag hashes) -> entries."""
    make_ring: Callable[[Sequence[Column], memoryview], Ring]
    """((qid, offset, position, size, tag, prev), flat rows of next offset and newest entry) -> ring."""
    make_encoder: Callable[[int, int, int], Encoder]
    """(epoch, largest record in bytes, most queues per record) -> encoder."""
    confirm: Callable[[Sequence[EntryBlock], array[int], array[int], int], list[int]]
    """(blocks, confirmed end per queue, stamp per queue, a new stamp) -> ids of the queues that moved, once each."""
    scan: Callable[[memoryview, int, int, Progress], Progress]
    """(segment, its base, its size in bytes, progress so far) -> progress to its end or to the first bad record."""
    collect: Callable[[memoryview, int, int, int, int, int, int], tuple[int, int, EntryBlock, list[int]]]
    """(segment, base, from, to, index from, state from, most entries) -> (where it stopped, records, entries of
    records at or above `index from`, positions of those at or above `state from` that change state). Positions all."""
    first_bad: Callable[[memoryview, int, Sequence[int], Sequence[int]], int]
    """(segment, base, positions, sizes) -> index of the first that is no such record by its checks, or -1."""
    gather: Callable[[memoryview, Column, Column, memoryview], None]
    """(source, starts, sizes, out): copy spans back to back; multiples of 8 inside `source`."""
    order_by_queue: Callable[[Column], Column]
    """(queue ids) -> the order that sorts them and keeps equal ones as they stand."""
