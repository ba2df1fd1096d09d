"""The pure twin of the index tail's memory: `contracts.Ring` in plain Python and numpy.

Invariant: number for number what the compiled twin does. Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from remoting.native.contracts import CONFIRMED, FLUSHED, NEWEST, ROW_WORDS, SLOT, Column, Found
from remoting.native.contracts import EntryBlock as AnyBlock
from remoting.native.reference.blocks import lists_of

WALK_MAX = 192
"""A read this close to a queue's end walks the chain; deeper ones halve the numbers and look through the qid column."""
LOOK_AT = 256
"""Entries looked through at first; then eight times as many, and so on."""


class Ring:
    """The mapped memory of the index tail."""

    def __init__(self, queues: Column, slots: Column, rows: memoryview) -> None:
        self._qid = queues
        self._fields = tuple(slots[name] for name in SLOT.names or ())
        self._scalars = tuple(array.data for array in (queues, *self._fields))
        self._rows = rows
        self.words = np.frombuffer(rows, "<i8")
        """The words of the rows, as an array."""
        self.capacity = len(queues)

    @property
    def queues(self) -> int:
        """How many queue ids have a row."""
        return len(self._rows) // ROW_WORDS

    @property
    def rows(self) -> memoryview:
        """The words of the queues' rows."""
        return self._rows

    def store(self, entries: AnyBlock, first: int, count: int) -> None:
        """Put entries behind number `count`."""
        assert len(entries) <= self.capacity - (count - first), (len(entries), first, count)
        lists, rows, number, capacity = lists_of(entries), self._rows, count, self.capacity
        previous: list[int] = []
        add = previous.append
        for queue, offset in zip(lists[0], lists[1], strict=True):
            at = ROW_WORDS * queue
            newest = rows[at + NEWEST]
            if newest >= first:
                add(number - newest)
            else:
                add(0)
                rows[at + FLUSHED] = offset
            rows[at + NEWEST] = number
            number += 1
        slot, columns = count % capacity, self._scalars
        for entry in zip(*lists, previous, strict=True):
            for column, value in zip(columns, entry, strict=True):
                column[slot] = value
            slot = (slot + 1) % capacity

    def claim(self, entries: AnyBlock, at: int, queue_limit: int) -> int:
        """Move the rows on while each entry is its queue's next."""
        queues, offsets, _, _, _, counts = lists_of(entries)
        rows, limit = self._rows, min(queue_limit, self.queues)
        for row in range(at, len(queues)):
            queue, offset = queues[row], offsets[row]
            if queue >= limit or rows[ROW_WORDS * queue] != offset:
                return row
            rows[ROW_WORDS * queue] = offset + counts[row]
        return len(queues)

    def undo(self, entries: AnyBlock) -> None:
        """Take the offsets back."""
        queues, offsets, *_ = lists_of(entries)
        for queue, offset in zip(reversed(queues), reversed(offsets), strict=True):
            self._rows[ROW_WORDS * queue] = offset

    def find(self, queue: int, offset: int, wanted: int, first: int, count: int) -> Found:
        """Return the entries of `queue` that hold messages [offset, offset + wanted)."""
        rows, at = self._rows, ROW_WORDS * queue
        slots: list[int] = []
        if rows[at] > offset and wanted > 0 and rows[at + NEWEST] >= first:
            number = rows[at + NEWEST]
            if rows[at] - offset - wanted > WALK_MAX:
                number = self._last_below(queue, offset + wanted, first, count)
            if number:
                slots = self._walk(number, offset, offset + wanted)
        chosen = np.asarray(slots, np.intp)
        offsets, positions, sizes, tags = (column[chosen] for column in self._fields[:4])
        end = int(offsets[-1]) + int(self._fields[4][chosen[-1]]) if len(chosen) else offset
        return offsets, positions, sizes, tags, end

    def _walk(self, number: int, offset: int, limit: int) -> list[int]:
        """Return the slots from the entry that holds `offset` to the last one that begins below `limit`."""
        capacity, offsets, previous = self.capacity, self._scalars[1], self._scalars[6]
        slots = []
        while True:
            slot = number % capacity
            begins, distance = offsets[slot], previous[slot]
            if begins < limit:
                slots.append(slot)
            if begins <= offset or not distance:
                break
            number -= distance
        slots.reverse()
        return slots

    def _last_below(self, queue: int, limit: int, first: int, count: int) -> int:
        """Return the number of the queue's last live entry that begins below `limit`, 0 when there is none.

        Entries of one queue rise with their numbers, so halving finds it.
        """
        found, capacity, offsets = 0, self.capacity, self._scalars[1]
        while first < count:
            middle = (first + count) // 2
            at = self._next_of(queue, middle, count)
            if at == count or offsets[at % capacity] >= limit:
                count = middle
            else:
                found = at
                first = at + 1
        return found

    def _next_of(self, queue: int, number: int, count: int) -> int:
        """Return the number of the queue's first entry from `number` on, `count` when there is none."""
        key, width = np.uint32(queue), LOOK_AT
        while number < count:
            slot = number % self.capacity
            width = min(width, count - number, self.capacity - slot)
            hits = self._qid[slot : slot + width] == key
            at = int(hits.argmax())
            if hits[at]:
                return number + at
            number += width
            width = 8 * max(width, LOOK_AT)
        return count

    def confirm(self, blocks: Sequence[AnyBlock]) -> list[int]:
        """Move each queue's confirmed end; return the ids of the queues that moved, once each."""
        rows, moved = self._rows, []
        ends: dict[int, int] = {}
        for block in blocks:
            queues, offsets, _, _, _, counts = lists_of(block)
            ends.update(zip(queues, map(int.__add__, offsets, counts), strict=True))
        for block in reversed(blocks):
            for queue in reversed(lists_of(block)[0]):
                at = ROW_WORDS * queue + CONFIRMED
                if rows[at] < ends[queue]:
                    rows[at] = ends[queue]
                    moved.append(queue)
        moved.reverse()
        return moved

    def release(self, end: int, count: int) -> None:
        """Note the first offset of the queues whose chain leads below number `end`."""
        numbers = np.arange(end, count)
        slots = numbers % self.capacity
        previous = self._fields[5][slots]
        crossing = slots[(previous > 0) & (numbers - previous < end)]
        self.words[ROW_WORDS * self._qid[crossing].astype(np.int64) + FLUSHED] = self._fields[0][crossing]
