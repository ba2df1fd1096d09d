"""The reference of an append: index entries, the ring that keeps them, images to records, a batch into the log.

An entry block is six lists, never changed. Invariants: byte for byte and number for number what the compiled twin
makes; a batch that is refused or fails leaves rows, index and published numbers as they were; entries are published
only when every byte is with the kernel. Thread rule: loop thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from remoting.native.contracts import (
    CONFIRMED,
    COUNT_AT,
    END_AT,
    FLUSHED,
    KEPT_BYTES_MAX,
    NEWEST,
    RETAINED_MASK,
    RETAINED_VALUE,
    ROW_WORDS,
    SLOT_FIELDS,
    Found,
    NextSegment,
    slot_column,
)
from remoting.native.contracts import EntryBlock as AnyBlock
from remoting.native.contracts import Ring as AnyRing
from remoting.native.vectors import Column, column
from remoting.protocol.errors import CorruptRecord, LocalMisuse, RecordTooLarge, TooManyQueues
from remoting.protocol.records.image import stamp
from remoting.protocol.records.record import (
    BATCH,
    CONTROL,
    DISPATCH_SIZE,
    FILLER,
    FLAG_GROUP_OPEN,
    FLAG_MQTT,
    HEADER_SIZE,
    MAGIC,
    MESSAGE,
    RecordView,
    encode_record,
    header_of,
    is_count,
    tag_hash,
)

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

    def positions(self, queue: int, offset: int, count: int, hint: int) -> list[int]:  # noqa: ARG002 - of the other twin
        """Return the log positions of the messages [offset, offset + count) of a queue, as far as they are here."""
        known = {at: position for one, at, position in zip(*self.lists[:3], strict=True) if one == queue}
        return [known[at] for at in range(offset, offset + count) if at in known]

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


WALK_MAX = 192
"""A read this close to a queue's end walks the chain; others search by number and scan the column of queue ids."""
LOOK_AT = 256
"""Entries scanned at first; each further step scans eight times as many."""


class Ring:
    """The mapped memory of the index tail."""

    def __init__(self, queues: Column, slots: memoryview, rows: memoryview) -> None:
        self._qid = queues
        self._fields = tuple(slot_column(slots, name) for name in SLOT_FIELDS)
        self._scalars = (queues, *self._fields)
        self._rows = rows
        self.capacity = len(queues)

    @property
    def queues(self) -> int:
        """Return the number of queue ids that have a row."""
        return len(self._rows) // ROW_WORDS

    @property
    def rows(self) -> memoryview:
        """Return the words of the queues' rows."""
        return self._rows

    def store(self, entries: AnyBlock, first: int, count: int) -> None:
        """Append the entries after number `count`."""
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
            for to, value in zip(columns, entry, strict=True):
                to[slot] = value
            slot = (slot + 1) % capacity

    def claim(self, entries: AnyBlock, at: int, queue_limit: int) -> int:
        """Advance the rows while each entry is its queue's next."""
        queues, offsets, _, _, _, counts = lists_of(entries)
        rows, limit = self._rows, min(queue_limit, self.queues)
        for row in range(at, len(queues)):
            queue, offset = queues[row], offsets[row]
            if queue >= limit or rows[ROW_WORDS * queue] != offset:
                return row
            rows[ROW_WORDS * queue] = offset + counts[row]
        return len(queues)

    def undo(self, entries: AnyBlock) -> None:
        """Take back the offsets of these entries, which must be the latest."""
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
        chosen = column(slots, "q")
        offsets, positions, sizes, tags = (field[chosen] for field in self._fields[:4])
        end = offsets[-1] + self._fields[4][slots[-1]] if slots else offset
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

        A queue's offsets rise with the numbers, so a binary search finds it.
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
        width = LOOK_AT
        while number < count:
            slot = number % self.capacity
            width = min(width, count - number, self.capacity - slot)
            looked = self._qid[slot : slot + width].tolist()
            if queue in looked:
                return number + looked.index(queue)
            number += width
            width = 8 * max(width, LOOK_AT)
        return count

    def confirm(self, blocks: Sequence[AnyBlock]) -> list[int]:
        """Advance each queue's confirmed end; return the distinct ids of the queues that advanced."""
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
        """Note the new first offset of the queues whose chain reaches below number `end`."""
        rows, queues, offsets, previous = self._rows, self._qid, self._fields[0], self._fields[5]
        for number in range(end, count):
            slot = number % self.capacity
            if previous[slot] and number - previous[slot] < end:
                rows[ROW_WORDS * queues[slot] + FLUSHED] = offsets[slot]


@dataclass(slots=True)
class Encoded:
    """A batch as log bytes: its positions, index entries, and pieces to write."""

    first_position: int
    end_position: int
    entries: EntryBlock
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    retained: list[tuple[int, int, int]] = field(default_factory=list)
    controls: list[int] = field(default_factory=list)
    keyed: bool = False

    def forget_bytes(self) -> None:
        """Keep everything but the pieces."""
        self.pieces = []


@dataclass(slots=True)
class _Image:
    """An image, its part and its place there, its queues, and the size of its record in bytes."""

    view: RecordView
    part: int
    at: int
    queues: tuple[int, ...]
    size: int


@dataclass(slots=True)
class _Call:
    """Constants of one call."""

    ring: Ring
    images: list[_Image]
    atomic: bool
    store_ms: int
    queue_limit: int


class Encoder:
    """Makes records of one epoch."""

    def __init__(self, epoch: int, record_limit: int, queues_max: int) -> None:
        self._epoch = epoch
        self._record_limit = record_limit
        self._queues_max = queues_max

    def encode(
        self,
        ring: AnyRing,
        images: list[bytes],
        queues: list[list[tuple[int, ...]]],
        atomic: bool,
        store_ms: int,
        queue_limit: int,
        position: int,
        segment_end: int,
        next_segment: NextSegment,
    ) -> Encoded:
        """Return the records of the images in all parts from `position` on."""
        assert isinstance(ring, Ring)
        planned = self.checked(images, queues)
        call = _Call(ring, planned, atomic, store_ms, min(queue_limit, ring.queues))
        batch = Encoded(position, position, EntryBlock([], [], [], [], [], []))
        at = 0
        try:
            while at < len(planned):
                fitting, used = self.plan(planned, at, segment_end - position)
                parts = self._records(batch, call, at, fitting, position)
                at += fitting
                filler = 0 if at == len(planned) else segment_end - position - used
                if filler:
                    parts.append(self._filler(position + used, filler))
                if parts:
                    batch.pieces.append((position, b"".join(parts)))
                    position += used + filler
                if at < len(planned):
                    segment_end = next_segment(position)
        except BaseException:
            ring.undo(batch.entries)
            raise
        batch.end_position = position
        return batch

    def encode_planned(
        self,
        ring: Ring,
        planned: list[_Image],
        atomic: bool,
        store_ms: int,
        queue_limit: int,
        position: int,
    ) -> Encoded:
        """Return the records of the images, all of which must fit according to `plan`."""
        call = _Call(ring, planned, atomic, store_ms, min(queue_limit, ring.queues))
        batch = Encoded(position, position, EntryBlock([], [], [], [], [], []))
        try:
            piece = b"".join(self._records(batch, call, 0, len(planned), position))
        except BaseException:
            ring.undo(batch.entries)
            raise
        batch.pieces.append((position, piece))
        batch.end_position = position + len(piece)
        return batch

    def checked(self, images: list[bytes], queues: list[list[tuple[int, ...]]]) -> list[_Image]:
        """Return the images one by one. Raises LocalMisuse unless each is whole and has its queues."""
        planned: list[_Image] = []
        for part, (data, of_part) in enumerate(zip(images, queues, strict=True)):
            at = 0
            for of_one in of_part:
                view = self._checked_one(data, at, of_one)
                planned.append(_Image(view, part, at, of_one, view.total + DISPATCH_SIZE * len(of_one)))
                at += view.total
            if at != len(data):
                raise LocalMisuse(f"{len(data) - at} bytes of images without queues")
        return planned

    def _checked_one(self, data: bytes, at: int, queues: tuple[int, ...]) -> RecordView:
        try:
            view = RecordView(data, at)
        except CorruptRecord as error:
            raise LocalMisuse("an image is cut short or its sizes contradict each other") from error
        meta_end = HEADER_SIZE + len(view.meta)
        body_end = ((meta_end + 7) & ~7) + len(view.body)
        if view.dispatch() or view.total != (body_end + 7) & ~7:
            raise LocalMisuse("an image is cut short or its sizes contradict each other")
        magic = MAGIC | view.type
        if magic not in (MESSAGE, BATCH, CONTROL) or not is_count(magic, view.flags, view.count):
            raise LocalMisuse(f"{view.count} messages in a record with flags {view.flags:#x}")
        if len(queues) > self._queues_max:
            raise TooManyQueues(f"a record for {len(queues)} queues; at most {self._queues_max}")
        size = view.total + DISPATCH_SIZE * len(queues)
        if size > self._record_limit:
            raise RecordTooLarge(f"a record of {size} bytes; the largest the store takes is {self._record_limit}")
        return view

    def plan(self, planned: list[_Image], first: int, room: int) -> tuple[int, int]:
        """Return the number of records from `first` on that fit into `room` bytes, and their bytes.

        The space left after a record is none or at least a header, so that a filler always fits.
        """
        left, fitting = room, 0
        for image in planned[first:]:
            if left - image.size < HEADER_SIZE and left != image.size:
                break
            left -= image.size
            fitting += 1
        return fitting, room - left

    def _records(self, batch: Encoded, call: _Call, first: int, count: int, position: int) -> list[bytes]:
        """Return the records of `count` images from `first` on, and add their entries to the batch."""
        records = []
        for at in range(first, first + count):
            planned = call.images[at]
            image = planned.view
            is_control = image.type == CONTROL & 0xFF
            flags = image.flags & ~FLAG_GROUP_OPEN
            dispatch = self._dispatch(batch, call, image, planned.queues, planned.size, position)
            if image.keys or (not flags & FLAG_MQTT and header_of(image).n_props):
                batch.keyed = True
            if is_control:
                batch.controls.append(position)
            else:
                batch.offsets.append(dispatch[0][1] if dispatch else -1)
                if flags & RETAINED_MASK == RETAINED_VALUE:
                    batch.retained.append((planned.part, planned.at, position))
            open_flag = FLAG_GROUP_OPEN if at < len(call.images) - 1 and (call.atomic or is_control) else 0
            records.append(
                stamp(
                    image, epoch=self._epoch, position=position, store_ms=call.store_ms, dispatch=dispatch,
                    flags=flags | open_flag,
                )
            )  # fmt: skip
            position += planned.size
        return records

    @staticmethod
    def _dispatch(
        batch: Encoded, call: _Call, image: RecordView, queues: tuple[int, ...], size: int, position: int
    ) -> list[tuple[int, int]]:
        """Assign a record its offset in each queue; return (queue, offset) of each."""
        rows, pairs = call.ring.rows, []
        tag = tag_hash(image.tags)
        of_queues, offsets, positions, sizes, tags, counts = batch.entries.lists
        for queue in queues:
            if not 0 <= queue < call.queue_limit:
                raise LocalMisuse(f"queue id {queue} does not exist")
            offset = rows[ROW_WORDS * queue]
            pairs.append((queue, offset))
            offsets.append(offset)
            positions.append(position)
            sizes.append(size)
            tags.append(tag)
            counts.append(image.count)
            of_queues.append(queue)
            rows[ROW_WORDS * queue] = offset + image.count
        return pairs

    def _filler(self, position: int, size: int) -> bytes:
        """Return a filler record of `size` bytes."""
        assert size >= HEADER_SIZE, (position, size)
        return encode_record(
            magic_type=FILLER, epoch=self._epoch, position=position, born_ms=0, store_ms=0, flags=0, count=0,
            dispatch=(), counts=(0, 0, 0, 0, 0), tag_hash=0, producer_seq=0, meta=b"", body=bytes(size - HEADER_SIZE),
        )  # fmt: skip


class SegmentWriter:
    """Writes batches into one range of a log file."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._ring: Ring | None = None
        self._queue_limit = 0
        self._counters = memoryview(b"")
        self._descriptor = self._base = self._limit = -1
        self.attempted = 0

    def aim(self, ring: Any, queue_limit: int, counters: memoryview, descriptor: int, base: int, limit: int) -> None:
        """Write into the file that starts at `base`, up to position `limit`; `counters` are those of the index tail."""
        self._ring, self._queue_limit, self._counters = ring, queue_limit, counters
        self._descriptor, self._base, self._limit = descriptor, base, limit

    def write(
        self,
        images: list[bytes],
        queues: list[list[tuple[int, ...]]],
        atomic: bool,
        store_ms: int,
        position: int,
        first: int,
        count: int,
    ) -> Encoded | None:
        """Append the images at `position`, their entries after number `count`; None when they do not fit."""
        ring = self._ring
        if ring is None or not self._base <= position < self._limit:
            return None
        planned = self._encoder.checked(images, queues)
        fitting, _ = self._encoder.plan(planned, 0, self._limit - position)
        if not planned or fitting < len(planned):
            return None
        batch = self._encoder.encode_planned(ring, planned, atomic, store_ms, self._queue_limit, position)
        if len(batch.entries) > ring.capacity - (count - first):
            ring.undo(batch.entries)
            return None
        try:
            self._write(batch.pieces[0][1], position - self._base)
        except BaseException:
            ring.undo(batch.entries)
            raise
        ring.store(batch.entries, first, count)
        self._counters[END_AT] = batch.end_position
        self._counters[COUNT_AT] = count + len(batch.entries)
        if batch.end_position - position > KEPT_BYTES_MAX:
            batch.forget_bytes()
        return batch

    def _write(self, data: bytes, at: int) -> None:
        self.attempted = len(data)
        written = os.pwrite(self._descriptor, data, at)
        while written < len(data):  # a short write means that the disk is filling up
            written += os.pwrite(self._descriptor, memoryview(data)[written:], at + written)
