"""The pure twin of the encoder: `contracts.Encoder` in plain Python and struct.

Invariant: byte for byte what the compiled twin makes; a batch that fails leaves the rows as they were. Thread rule:
loop thread.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.store.store_message import StoreMessage
from remoting.native.checksum import crc32c
from remoting.native.contracts import RETAINED_MASK, RETAINED_VALUE, ROW_WORDS, NextSegment
from remoting.native.contracts import Ring as AnyRing
from remoting.native.reference.blocks import EntryBlock
from remoting.native.reference.ring import Ring
from remoting.protocol.errors import LocalMisuse, RecordTooLarge
from remoting.protocol.records.record import (
    BATCH,
    CHECKSUM_SEEDS,
    CONTROL,
    FILLER,
    FLAG_FORMAT_MASK,
    FLAG_GROUP_OPEN,
    FLAG_MQTT,
    HEADER_SIZE,
    MESSAGE,
    encode_record,
    is_count,
)

_PREFIX = struct.Struct("<III")
_HEAD = struct.Struct("<IQqqIIIIHHHHHHIQ")
_PADS = tuple(bytes(n) for n in range(8))


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
    messages: Sequence[StoreMessage]
    first_control: int
    last: int
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
        total = len(messages)
        call = _Call(ring, messages, total - controls, total - 1, atomic, store_ms, min(queue_limit, ring.queues))
        batch = Encoded(position, position, EntryBlock([], [], [], [], [], []))
        at = 0
        try:
            while at < total:
                sizes, used = self.plan(messages, at, segment_end - position)
                at += len(sizes)
                filler = 0 if at == total else segment_end - position - used
                parts = self._put(batch, call, at - len(sizes), sizes, position) if sizes else []
                if filler:
                    parts.append(self._filler(position + used, filler))
                if parts:
                    batch.pieces.append((position, b"".join(parts)))
                    position += used + filler
                if at < total:
                    segment_end = next_segment(position)
        except BaseException:
            ring.undo(batch.entries)
            raise
        batch.end_position = position
        del batch.offsets[call.first_control :]
        return batch

    def encode_planned(
        self,
        ring: Ring,
        messages: Sequence[StoreMessage],
        atomic: bool,
        store_ms: int,
        queue_limit: int,
        position: int,
        sizes: list[int],
    ) -> Encoded:
        """Return the records of `messages`, none of them a control record, all of which `plan` has found to fit."""
        total = len(messages)
        call = _Call(ring, messages, total, total - 1, atomic, store_ms, min(queue_limit, ring.queues))
        batch = Encoded(position, position, EntryBlock([], [], [], [], [], []))
        try:
            piece = b"".join(self._put(batch, call, 0, sizes, position))
        except BaseException:
            ring.undo(batch.entries)
            raise
        batch.pieces.append((position, piece))
        batch.end_position = position + len(piece)
        return batch

    def plan(self, messages: Sequence[StoreMessage], first: int, room: int) -> tuple[list[int], int]:
        """Return the sizes of the records from `first` on that fit into `room` bytes, and their sum.

        What stays free behind a record is nothing or at least a header, so that a filler always fits.
        """
        sizes: list[int] = []
        add, left, limit, queues_max = sizes.append, room, self._record_limit, self._queues_max
        for message in messages[first:] if first else messages:
            n = len(message.queues)
            if n > queues_max:
                raise LocalMisuse(f"a record for {n} queues; at most {queues_max}")
            size = (((HEADER_SIZE + 16 * n + len(message.meta) + 7) & ~7) + len(message.body) + 7) & ~7
            if size > limit:
                raise RecordTooLarge(f"a record of {size} bytes; the largest the store takes is {limit}")
            if left - size < HEADER_SIZE and left != size:
                break
            left -= size
            add(size)
        return sizes, room - left

    def _put(self, batch: Encoded, call: _Call, first: int, sizes: list[int], position: int) -> list[bytes]:
        """Return the records of the messages from `first` on, of these sizes; their entries are in the batch."""
        messages = call.messages[first : first + len(sizes)]
        pairs = self._dispatch(batch, call, messages, sizes, position)
        try:
            return self._records(batch, call, first, messages, sizes, position, pairs)
        except struct.error as error:
            raise LocalMisuse(f"a record field is out of range: {error}") from error

    def _dispatch(
        self, batch: Encoded, call: _Call, messages: Sequence[StoreMessage], sizes: list[int], position: int
    ) -> bytes:
        """Give every record its offset in each queue, one by one; return the dispatch lists, back to back."""
        rows, limit = call.ring.rows, call.queue_limit
        queues, offsets, positions, entry_sizes, tags, counts = batch.entries.lists
        pairs: list[int] = []
        for message, size in zip(messages, sizes, strict=True):
            count, n = message.count, len(message.queues)
            for queue in message.queues:
                if not 0 <= queue < limit:
                    raise LocalMisuse(f"queue id {queue} does not exist")
                at = ROW_WORDS * queue
                offset = rows[at]
                pairs += (queue, offset)
                offsets.append(offset)
                positions.append(position)
                entry_sizes.append(size)
                tags.append(message.tag_hash)
                counts.append(count)
                queues.append(queue)
                rows[at] = offset + count
            batch.offsets.append(pairs[-2 * n + 1] if n else -1)
            position += size
        return struct.pack(f"<{len(pairs)}Q", *pairs)

    def _records(
        self,
        batch: Encoded,
        call: _Call,
        at: int,
        messages: Sequence[StoreMessage],
        sizes: list[int],
        position: int,
        pairs: bytes,
    ) -> list[bytes]:
        parts: list[bytes] = []
        add, pack, pack_prefix, seeds, join = parts.append, _HEAD.pack, _PREFIX.pack, CHECKSUM_SEEDS, b"".join
        epoch, store_ms, last_open = self._epoch, call.store_ms, call.last
        pair = 0
        for message, size in zip(messages, sizes, strict=True):
            meta, body, flags = message.meta, message.body, message.flags & ~FLAG_GROUP_OPEN
            n, meta_len, body_len = len(message.queues), len(meta), len(body)
            n_props, topic_len, keys_len = message.n_props, message.topic_len, message.keys_len
            tags_len, props_len = message.tags_len, message.props_len
            if 4 * n_props + topic_len + keys_len + tags_len + props_len != meta_len:
                lengths = (n_props, topic_len, keys_len, tags_len, props_len)
                raise LocalMisuse(f"meta of {meta_len} bytes does not have the lengths {lengths}")
            magic = MESSAGE
            if at >= call.first_control or message.count != 1 or flags & FLAG_FORMAT_MASK:
                magic = _magic(message, flags, is_control=at >= call.first_control)
            if keys_len or (n_props and not flags & FLAG_MQTT):
                batch.keyed = True
            if at < last_open and (call.atomic or magic == CONTROL):
                flags |= FLAG_GROUP_OPEN
            meta_end = HEADER_SIZE + 16 * n + meta_len
            body_off = (meta_end + 7) & ~7
            tail = join((
                pack(
                    epoch, position, message.born_ms, store_ms, body_len, body_off, flags, message.count, n, n_props,
                    topic_len, keys_len, tags_len, props_len, message.tag_hash, message.producer_seq,
                ),
                pairs[pair : pair + 16 * n], meta, _PADS[body_off - meta_end], body, _PADS[size - body_off - body_len],
            ))  # fmt: skip
            add(pack_prefix(size, magic, crc32c(tail, seeds[magic])))
            add(tail)
            if magic == CONTROL:
                batch.controls.append(position)
            elif flags & RETAINED_MASK == RETAINED_VALUE:
                batch.retained.append((at, position))
            pair += 16 * n
            position += size
            at += 1
        return parts

    def _filler(self, position: int, size: int) -> bytes:
        """Return a record of nothing that takes `size` bytes."""
        assert size >= HEADER_SIZE, (position, size)
        return encode_record(
            magic_type=FILLER, epoch=self._epoch, position=position, born_ms=0, store_ms=0, flags=0, count=0,
            dispatch=(), counts=(0, 0, 0, 0, 0), tag_hash=0, producer_seq=0, meta=b"", body=bytes(size - HEADER_SIZE),
        )  # fmt: skip


def _magic(message: StoreMessage, flags: int, *, is_control: bool) -> int:
    """Return the type of a record that is no plain message. Raises LocalMisuse for a count it may not have."""
    magic = CONTROL if is_control else BATCH if flags & FLAG_FORMAT_MASK else MESSAGE
    if not is_count(magic, flags, message.count):
        raise LocalMisuse(f"{message.count} messages in a record with flags {flags:#x}")
    return magic
