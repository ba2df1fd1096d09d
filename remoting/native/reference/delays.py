"""The pure twin of what waits for its time: counts by second, the order of what is due, records back into images.

Invariant: `DueHeap` hands out its messages in order of (due, offset). Thread rule: loop thread.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence

from remoting.native.contracts import SPAN_S, Key, Waiting
from remoting.native.vectors import Column, column
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.image import KIND_BATCH, kind_of, show
from remoting.protocol.records.record import FLAG_STAGED, HEADER_SIZE, RecordView, check_record

SIFTED_SHARE = 8
"""More new messages than this part of the heap are taken in at once, which costs the whole heap; fewer one by one."""


class DueSpan:
    """The waiting messages of one span of due times: their queues, and how many are due in each second."""

    def __init__(self, queues: tuple[int, ...]) -> None:
        self.queues = queues
        self._counts = array("i", bytes(array("i").itemsize * SPAN_S))

    def count(self, second: int) -> int:
        """Return how many messages are due in this second of the span."""
        return self._counts[second]

    def add(self, second: int, count: int) -> None:
        """Count messages that are due in this second; negative for those that no longer are."""
        self._counts[second] += count

    def fullest(self) -> tuple[int, int]:
        """Return (second, messages due in it) of the first second with most."""
        most = max(self._counts)
        return self._counts.index(most), most


class DueHeap:
    """Messages that wait, as (due, offset, log position), the first in this order at hand."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def first(self) -> Key | None:
        """Return the first key, None when there is none."""
        return self._heap[0][:2] if self._heap else None

    def add(self, first_offset: int, dues: Column, positions: Column, floor: int, mark: Key, limit: Key) -> None:
        """Add messages of offsets from `first_offset` on, those at or above `floor` between the keys."""
        offsets = range(first_offset, first_offset + len(dues))
        entries = zip(dues.tolist(), offsets, positions.tolist(), strict=True)
        self._add([entry for entry in entries if entry[1] >= floor and mark < entry[:2] < limit])

    def put_back(self, entries: Waiting) -> None:
        """Add messages that `take` returned."""
        self._add(list(zip(*entries, strict=True)))

    def _add(self, added: Sequence[tuple[int, int, int]]) -> None:
        heap = self._heap
        if len(added) * SIFTED_SHARE > len(heap):
            heap += added
            heapq.heapify(heap)
        else:
            for entry in added:
                heapq.heappush(heap, entry)

    def take(self, count: int, floor: int, mark: Key, limit: Key) -> Waiting:
        """Remove up to `count` messages below the key `limit`, and return their columns."""
        heap = self._heap
        taken: list[tuple[int, int, int]] = []
        while len(taken) < count and heap and heap[0][:2] < limit:
            entry = heapq.heappop(heap)
            if entry[1] >= floor and entry[:2] > mark:
                taken.append(entry)
        dues, offsets, positions = (column([entry[at] for entry in taken], "q") for at in range(3))
        return dues, offsets, positions

    def keep(self, count: int) -> Key:
        """Keep the first `count` messages, of more; return the key of the first that was dropped."""
        self._heap.sort()  # a sorted list is a heap
        dropped = self._heap[count][:2]
        del self._heap[count:]
        return dropped

    def clear(self) -> None:
        """Remove all messages."""
        self._heap = []


def staged_images(positions: Column, files: list[tuple[int, memoryview]], bytes_max: int) -> tuple[bytes, int]:
    """Return (images of the staged records at these positions, how many), up to the first that is none or too much."""
    made: list[bytes] = []
    size = 0
    for position in positions.tolist():
        record = _staged(position, files)
        if record is None or (made and size + record.total > bytes_max):
            break
        made.append(show(record))
        size += len(made[-1])
    return b"".join(made), len(made)


def _staged(position: int, files: list[tuple[int, memoryview]]) -> RecordView | None:
    for base, view in files:
        if not 0 <= position - base <= len(view) - HEADER_SIZE:
            continue
        try:
            check_record(view, position - base, position)
        except CorruptRecord:
            return None
        record = RecordView(view, position - base)
        return record if record.flags & FLAG_STAGED and kind_of(record) != KIND_BATCH else None
    return None
