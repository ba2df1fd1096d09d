"""The pure twin of the write side: `contracts` in plain Python, struct and numpy.

Invariant: byte for byte what the compiled twin makes. Thread rule: loop thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from broker.store.errors import RecordTooLarge
from broker.store.hot.contracts import RETAINED_MASK, RETAINED_VALUE, Column, NextSegment
from broker.store.hot.contracts import EntryBlock as AnyBlock
from broker.store.hot.contracts import Ring as AnyRing
from broker.store.store_message import StoreMessage
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.record import (
    CONTROL,
    FILLER,
    FLAG_GROUP_OPEN,
    HEADER_SIZE,
    MESSAGE,
    encode_record,
    record_size,
)

WALK_MAX = 192
"""A read this close to a queue's end walks the chain; deeper ones scan the qid column, whose cost has a bound."""
SCALAR_MAX = 24
"""Up to this many entries are stored one by one; numpy's fixed cost pays off above."""


class EntryBlock:
    """Entries as five lists."""

    __slots__ = ("lists",)

    def __init__(self, *lists: list[int]) -> None:
        self.lists = lists

    def __len__(self) -> int:
        return len(self.lists[0])

    def slice(self, first: int, end: int) -> EntryBlock:
        """Return entries [first, end)."""
        return EntryBlock(*[one[first:end] for one in self.lists])

    def position(self, at: int) -> int:
        """Return the log position of entry `at`."""
        return self.lists[2][at]

    def columns(self) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
        """Return the five columns."""
        queues, offsets, positions, sizes, tags = self.lists
        return queues, offsets, positions, sizes, tags


def make_block(
    queues: Sequence[int], offsets: Sequence[int], positions: Sequence[int], sizes: Sequence[int], tags: Sequence[int]
) -> EntryBlock:
    """Return a block of these columns."""
    return EntryBlock(*map(list, (queues, offsets, positions, sizes, tags)))


def _lists(entries: AnyBlock) -> tuple[list[int], ...]:
    assert isinstance(entries, EntryBlock)
    return entries.lists


class Ring:
    """The mapped memory of the index tail."""

    def __init__(self, columns: Sequence[Column], rows: memoryview) -> None:
        self._arrays = tuple(columns)
        self._scalars = tuple(array.data for array in self._arrays)
        self._rows = rows
        self.capacity = len(columns[0])

    @property
    def queues(self) -> int:
        """How many queue ids have a row."""
        return len(self._rows) // 2

    @property
    def rows(self) -> memoryview:
        """Next offset and newest entry of every queue."""
        return self._rows

    def store(self, entries: AnyBlock, first: int, count: int) -> None:
        """Put entries behind number `count`."""
        lists, rows, number, capacity = _lists(entries), self._rows, count, self.capacity
        assert len(lists[0]) <= capacity - (count - first), (len(lists[0]), first, count)
        previous: list[int] = []
        add = previous.append
        for queue in lists[0]:
            at = queue + queue + 1
            newest = rows[at]
            add(number - newest if newest >= first else 0)
            rows[at] = number
            number += 1
        slot = count % capacity
        if len(previous) <= SCALAR_MAX:
            qid, offset, position, size, tag, prev = self._scalars
            for entry in zip(*lists, previous, strict=True):
                qid[slot], offset[slot], position[slot], size[slot], tag[slot], prev[slot] = entry
                slot += 1
                if slot == capacity:
                    slot = 0
            return
        fits = min(capacity - slot, len(previous))
        for target, values in zip(self._arrays, (*lists, previous), strict=True):
            target[slot : slot + fits] = values[:fits]
            if fits < len(values):
                target[: len(values) - fits] = values[fits:]

    def claim(self, entries: AnyBlock, at: int, queue_limit: int) -> int:
        """Move the rows on while each entry is its queue's next."""
        queues, offsets, *_ = _lists(entries)
        rows, limit = self._rows, min(queue_limit, self.queues)
        for row in range(at, len(queues)):
            queue, offset = queues[row], offsets[row]
            if queue >= limit or rows[queue + queue] != offset:
                return row
            rows[queue + queue] = offset + 1
        return len(queues)

    def undo(self, entries: AnyBlock) -> None:
        """Take the offsets back."""
        queues, offsets, *_ = _lists(entries)
        for queue, offset in zip(reversed(queues), reversed(offsets), strict=True):
            self._rows[queue + queue] = offset

    def find(self, queue: int, offset: int, wanted: int, first: int, count: int) -> tuple[Column, Column, Column]:
        """Return positions, sizes and tags of up to `wanted` entries of `queue` from `offset` on."""
        depth = self._rows[queue + queue] - offset
        slots: Any = []
        if depth > 0 and wanted > 0:
            if depth <= WALK_MAX:
                slots = self._walk(queue, depth, wanted)
            else:
                slots = self._live_slots_of(queue, first, count)
                skip = offset - int(self._arrays[1][slots[0]])
                slots = slots[skip : skip + wanted]
        chosen = np.asarray(slots, np.intp)
        return self._arrays[2][chosen], self._arrays[3][chosen], self._arrays[4][chosen]

    def _walk(self, queue: int, depth: int, wanted: int) -> list[int]:
        number, capacity, previous = self._rows[queue + queue + 1], self.capacity, self._scalars[5]
        slots = []
        for _ in range(depth):
            slot = number % capacity
            slots.append(slot)
            number -= previous[slot]
        slots.reverse()
        return slots[:wanted]

    def _live_slots_of(self, queue: int, first: int, count: int) -> Column:
        qid, n = self._arrays[0], self.capacity
        begin, end = first % n, count % n
        if begin < end:
            return np.flatnonzero(qid[begin:end] == queue) + begin
        older = np.flatnonzero(qid[begin:n] == queue) + begin
        return np.concatenate((older, np.flatnonzero(qid[:end] == queue)))


def confirm(
    blocks: Sequence[AnyBlock],
    ends: array[int],
    stamps: array[int],  # noqa: ARG001 - a dictionary does it here
    stamp: int,  # noqa: ARG001
) -> list[int]:
    """Move each queue's confirmed end; return the ids of the queues that moved, once each."""
    moved: dict[int, None] = {}
    for block in blocks:
        queues, offsets, *_ = _lists(block)
        for queue, offset in zip(queues, offsets, strict=True):
            ends[queue] = offset + 1
        moved.update(dict.fromkeys(queues))
    return list(moved)


@dataclass(slots=True)
class Encoded:
    """A batch as bytes."""

    first: int
    end: int
    entries: EntryBlock
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    retained: list[tuple[int, int]] = field(default_factory=list)
    controls: list[int] = field(default_factory=list)


class Encoder:
    """Makes records of one epoch."""

    def __init__(self, epoch: int, record_limit: int, queues_max: int) -> None:
        self._epoch = epoch
        self._record_limit = record_limit
        self._queues_max = queues_max
        self._parts: list[bytes] = []
        self._piece_start = 0

    def encode(
        self,
        ring: AnyRing,
        messages: Sequence[StoreMessage],
        controls: int,
        atomic: bool,
        store_ms: int,
        queue_limit: int,
        position: int,
        segment_end: int,
        next_segment: NextSegment,
    ) -> Encoded:
        """Return the records of `messages` from `position` on; the last `controls` of them are control records."""
        assert isinstance(ring, Ring)
        batch = Encoded(position, position, EntryBlock([], [], [], [], []))
        self._parts, self._piece_start = [], position
        last, first_control = len(messages) - 1, len(messages) - controls
        try:
            for at, message in enumerate(messages):
                size = record_size(len(message.queues), len(message.meta), len(message.body))
                if size > self._record_limit:
                    raise RecordTooLarge(
                        f"a record of {size} bytes; the largest the store takes is {self._record_limit}"
                    )
                left = segment_end - position - size
                while left and left < HEADER_SIZE:
                    position = self._fill_up(batch, position, segment_end)
                    segment_end = next_segment(position)
                    left = segment_end - position - size
                is_control = at >= first_control
                is_open = at < last and (is_control or atomic)
                dispatch = self._dispatch(ring, batch, message, min(queue_limit, ring.queues), position, size)
                flags = message.flags & ~FLAG_GROUP_OPEN
                self._parts.append(
                    encode_record(
                        magic_type=CONTROL if is_control else MESSAGE, epoch=self._epoch, position=position,
                        born_ms=message.born_ms, store_ms=store_ms, flags=flags | FLAG_GROUP_OPEN if is_open else flags,
                        count=1, dispatch=dispatch, counts=(
                            message.n_props, message.topic_len, message.keys_len, message.tags_len, message.props_len,
                        ), tag_hash=message.tag_hash, producer_seq=message.producer_seq, meta=message.meta,
                        body=message.body,
                    )
                )  # fmt: skip
                if is_control:
                    batch.controls.append(position)
                else:
                    batch.offsets.append(dispatch[0][1] if dispatch else -1)
                    if flags & RETAINED_MASK == RETAINED_VALUE:
                        batch.retained.append((at, position))
                position += size
        except BaseException:
            ring.undo(batch.entries)
            raise
        self._close_piece(batch)
        batch.end = position
        return batch

    def _dispatch(
        self, ring: Ring, batch: Encoded, message: StoreMessage, queue_limit: int, position: int, size: int
    ) -> list[tuple[int, int]]:
        """Give the record its offset in each queue, move the queues' rows on, note the index entries."""
        queues, n, rows = message.queues, len(message.queues), ring.rows
        if n > self._queues_max:
            raise LocalMisuse(f"a record for {n} queues; at most {self._queues_max}")
        entry_queues, entry_offsets, positions, sizes, tags = batch.entries.lists
        dispatch = []
        for queue in queues:
            if not 0 <= queue < queue_limit:
                raise LocalMisuse(f"queue id {queue} does not exist")
            at = queue + queue
            offset = rows[at]
            rows[at] = offset + 1
            dispatch.append((queue, offset))
            entry_queues.append(queue)
            entry_offsets.append(offset)
        if n == 3:
            positions += (position, position, position)
            sizes += (size, size, size)
            tags += (message.tag_hash, message.tag_hash, message.tag_hash)
        else:
            positions += [position] * n
            sizes += [size] * n
            tags += [message.tag_hash] * n
        return dispatch

    def _fill_up(self, batch: Encoded, position: int, segment_end: int) -> int:
        """Fill the rest of a segment with a record of nothing, if there is any; the next piece starts behind it."""
        size = segment_end - position
        if size:
            assert size >= HEADER_SIZE, (position, size)
            self._parts.append(
                encode_record(
                    magic_type=FILLER, epoch=self._epoch, position=position, born_ms=0, store_ms=0, flags=0, count=0,
                    dispatch=(), counts=(0, 0, 0, 0, 0), tag_hash=0, producer_seq=0, meta=b"",
                    body=bytes(size - HEADER_SIZE),
                )
            )  # fmt: skip
        self._close_piece(batch)
        return segment_end

    def _close_piece(self, batch: Encoded) -> None:
        if self._parts:
            piece = b"".join(self._parts)
            batch.pieces.append((self._piece_start, piece))
            self._piece_start += len(piece)
            self._parts = []
