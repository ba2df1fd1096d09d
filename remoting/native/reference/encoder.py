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
    retained: list[tuple[int, int]] = field(default_factory=list)
    controls: list[int] = field(default_factory=list)
    keyed: bool = False

    def forget_bytes(self) -> None:
        """Keep everything but the pieces."""
        self.pieces = []


@dataclass(slots=True)
class _Call:
    """What stands still during one call."""

    ring: Ring
    images: list[RecordView]
    queues: list[tuple[int, ...]]
    last: int
    atomic: bool
    store_ms: int
    queue_limit: int
    at: int = 0
    """Where the next image begins."""


class Encoder:
    """Makes records of one epoch."""

    def __init__(self, epoch: int, record_limit: int, queues_max: int) -> None:
        self._epoch = epoch
        self._record_limit = record_limit
        self._queues_max = queues_max

    def encode(
        self,
        ring: AnyRing,
        images: bytes,
        queues: list[tuple[int, ...]],
        atomic: bool,
        store_ms: int,
        queue_limit: int,
        position: int,
        segment_end: int,
        next_segment: NextSegment,
    ) -> Encoded:
        """Return the records of the images from `position` on, `queues` of each."""
        assert isinstance(ring, Ring)
        views = self.checked(images, queues)
        call = _Call(ring, views, queues, len(views) - 1, atomic, store_ms, min(queue_limit, ring.queues))
        batch = Encoded(position, position, EntryBlock([], [], [], [], [], []))
        at = 0
        try:
            while at < len(views):
                sizes, used = self.plan(views, queues, at, segment_end - position)
                parts = self._records(batch, call, at, sizes, position)
                at += len(sizes)
                filler = 0 if at == len(views) else segment_end - position - used
                if filler:
                    parts.append(self._filler(position + used, filler))
                if parts:
                    batch.pieces.append((position, b"".join(parts)))
                    position += used + filler
                if at < len(views):
                    segment_end = next_segment(position)
        except BaseException:
            ring.undo(batch.entries)
            raise
        batch.end_position = position
        return batch

    def encode_planned(
        self,
        ring: Ring,
        views: list[RecordView],
        queues: list[tuple[int, ...]],
        atomic: bool,
        store_ms: int,
        queue_limit: int,
        position: int,
        sizes: list[int],
    ) -> Encoded:
        """Return the records of the images, all of which `plan` has found to fit."""
        call = _Call(ring, views, queues, len(views) - 1, atomic, store_ms, min(queue_limit, ring.queues))
        batch = Encoded(position, position, EntryBlock([], [], [], [], [], []))
        try:
            piece = b"".join(self._records(batch, call, 0, sizes, position))
        except BaseException:
            ring.undo(batch.entries)
            raise
        batch.pieces.append((position, piece))
        batch.end_position = position + len(piece)
        return batch

    def checked(self, images: bytes, queues: list[tuple[int, ...]]) -> list[RecordView]:
        """Return the images one by one; LocalMisuse unless each is whole and has its queues."""
        views: list[RecordView] = []
        at = 0
        for of_one in queues:
            try:
                view = RecordView(images, at)
            except CorruptRecord as error:
                raise LocalMisuse("an image is cut short or its sizes contradict each other") from error
            meta_end = HEADER_SIZE + len(view.meta)
            body_end = ((meta_end + 7) & ~7) + len(view.body)
            if view.dispatch() or view.total != (body_end + 7) & ~7:
                raise LocalMisuse("an image is cut short or its sizes contradict each other")
            magic = MAGIC | view.type
            if magic not in (MESSAGE, BATCH, CONTROL) or not is_count(magic, view.flags, view.count):
                raise LocalMisuse(f"{view.count} messages in a record with flags {view.flags:#x}")
            if len(of_one) > self._queues_max:
                raise LocalMisuse(f"a record for {len(of_one)} queues; at most {self._queues_max}")
            size = view.total + DISPATCH_SIZE * len(of_one)
            if size > self._record_limit:
                raise RecordTooLarge(f"a record of {size} bytes; the largest the store takes is {self._record_limit}")
            views.append(view)
            at += view.total
        if at != len(images):
            raise LocalMisuse(f"{len(images) - at} bytes of images without queues")
        return views

    def plan(
        self, views: list[RecordView], queues: list[tuple[int, ...]], first: int, room: int
    ) -> tuple[list[int], int]:
        """Return the sizes of the records from `first` on that fit into `room` bytes, and their sum.

        What stays free behind a record is nothing or at least a header, so that a filler always fits.
        """
        sizes: list[int] = []
        left = room
        for at in range(first, len(views)):
            size = views[at].total + DISPATCH_SIZE * len(queues[at])
            if left - size < HEADER_SIZE and left != size:
                break
            left -= size
            sizes.append(size)
        return sizes, room - left

    def _records(self, batch: Encoded, call: _Call, first: int, sizes: list[int], position: int) -> list[bytes]:
        """Stamp the images from `first` on, of these sizes; their entries are in the batch."""
        records = []
        for at, size in enumerate(sizes, first):
            image = call.images[at]
            is_control = image.type == CONTROL & 0xFF
            flags = image.flags & ~FLAG_GROUP_OPEN
            dispatch = self._dispatch(batch, call, image, call.queues[at], size, position)
            if image.counts[2] or (image.counts[0] and not flags & FLAG_MQTT):
                batch.keyed = True
            if is_control:
                batch.controls.append(position)
            else:
                batch.offsets.append(dispatch[0][1] if dispatch else -1)
                if flags & RETAINED_MASK == RETAINED_VALUE:
                    batch.retained.append((call.at, position))
            open_flag = FLAG_GROUP_OPEN if at < call.last and (call.atomic or is_control) else 0
            records.append(
                stamp(
                    image, epoch=self._epoch, position=position, store_ms=call.store_ms, dispatch=dispatch,
                    flags=flags | open_flag,
                )
            )  # fmt: skip
            position += size
            call.at += image.total
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
