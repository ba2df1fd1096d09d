"""The pure twin of the encoder: `contracts.Encoder` in plain Python.

Invariant: byte for byte what the compiled twin makes; a batch that fails leaves the rows as they were. Thread rule:
loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from remoting.native.contracts import RETAINED_MASK, RETAINED_VALUE, ROW_WORDS, NextSegment
from remoting.native.contracts import Ring as AnyRing
from remoting.native.reference.blocks import EntryBlock
from remoting.native.reference.ring import Ring
from remoting.protocol.errors import CorruptRecord, LocalMisuse, RecordTooLarge
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
    is_count,
    tag_hash,
)


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
    """An image, where in which part it is, its queues, and the bytes of its record."""

    view: RecordView
    part: int
    at: int
    queues: tuple[int, ...]
    size: int


@dataclass(slots=True)
class _Call:
    """What stands still during one call."""

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
        """Return the records of the images, all of which `plan` has found to fit."""
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
        """Return the images one by one; LocalMisuse unless each is whole and has its queues."""
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
            raise LocalMisuse(f"a record for {len(queues)} queues; at most {self._queues_max}")
        size = view.total + DISPATCH_SIZE * len(queues)
        if size > self._record_limit:
            raise RecordTooLarge(f"a record of {size} bytes; the largest the store takes is {self._record_limit}")
        return view

    def plan(self, planned: list[_Image], first: int, room: int) -> tuple[int, int]:
        """Return how many records from `first` on fit into `room` bytes, and how many bytes they take.

        What stays free behind a record is nothing or at least a header, so that a filler always fits.
        """
        left, fitting = room, 0
        for image in planned[first:]:
            if left - image.size < HEADER_SIZE and left != image.size:
                break
            left -= image.size
            fitting += 1
        return fitting, room - left

    def _records(self, batch: Encoded, call: _Call, first: int, count: int, position: int) -> list[bytes]:
        """Stamp `count` images from `first` on; their entries are in the batch."""
        records = []
        for at in range(first, first + count):
            planned = call.images[at]
            image = planned.view
            is_control = image.type == CONTROL & 0xFF
            flags = image.flags & ~FLAG_GROUP_OPEN
            dispatch = self._dispatch(batch, call, image, planned.queues, planned.size, position)
            if image.counts[2] or (image.counts[0] and not flags & FLAG_MQTT):
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
        """Give a record its offset in each queue; return (queue, offset) of each."""
        rows, pairs = call.ring.rows, []
        tag = tag_hash(image.tags) if image.counts[3] else 0
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
        """Return a record of nothing that takes `size` bytes."""
        assert size >= HEADER_SIZE, (position, size)
        return encode_record(
            magic_type=FILLER, epoch=self._epoch, position=position, born_ms=0, store_ms=0, flags=0, count=0,
            dispatch=(), counts=(0, 0, 0, 0, 0), tag_hash=0, producer_seq=0, meta=b"", body=bytes(size - HEADER_SIZE),
        )  # fmt: skip
