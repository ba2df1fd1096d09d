"""Turns a batch of messages and state changes into log records and index entries.

Invariant: offsets are assigned here and nowhere else, dense per queue; a record never crosses a segment, and what stays
free behind it is nothing or at least a header, so that a filler always fits. Nothing of the store changes before the
bytes are written. Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.store.commit_log import CommitLog, Piece
from broker.store.errors import RecordTooLarge
from broker.store.queue_index.index import QueueIndex
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

QUEUES_PER_RECORD_MAX = 1024
"""Queues one record may be dispatched to; a topic that matches more wildcard filters than this is refused."""


@dataclass(slots=True)
class Batch:
    """Records ready to be written, and the index entries (parallel lists) that go with them."""

    first: int
    end: int = 0
    pieces: list[Piece] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    """Position of each message, then of each control record."""
    offsets: list[int] = field(default_factory=list)
    queues: list[int] = field(default_factory=list)
    queue_offsets: list[int] = field(default_factory=list)
    entry_positions: list[int] = field(default_factory=list)
    entry_sizes: list[int] = field(default_factory=list)
    entry_tags: list[int] = field(default_factory=list)

    def record(self, position: int, size: int) -> bytes:
        """Return the bytes of the record at `position`, a message's of this batch."""
        for _segment, start, data in self.pieces:
            at = position - start
            if 0 <= at < len(data):
                return bytes(data[at : at + size])
        raise AssertionError(f"no record of this batch stands at {position}")

    def columns(self) -> list[list[int]]:
        """Return the index entries as the index takes them."""
        return [self.queues, self.queue_offsets, self.entry_positions, self.entry_sizes, self.entry_tags]


class Appender:
    """Encodes batches for one log and one start (`epoch`); records above `record_limit` bytes are refused."""

    def __init__(self, log: CommitLog, index: QueueIndex, epoch: int, record_limit: int) -> None:
        self._log = log
        self._index = index
        self._epoch = epoch
        self._record_limit = record_limit
        self._queues_max = min(QUEUES_PER_RECORD_MAX, index.tail.capacity // 2)
        self._parts: list[bytes] = []
        self._piece_start = 0

    def encode(
        self,
        messages: Sequence[StoreMessage],
        controls: Sequence[bytes],
        *,
        atomic: bool,
        store_ms: int,
        queue_limit: int,
    ) -> Batch:
        """Return the batch that appends `messages`, then control records with these bodies.

        Raises RecordTooLarge, LocalMisuse, OSError (no room for the next segment); the log is unchanged then.
        """
        batch = Batch(self._log.end)
        self._parts, self._piece_start = [], batch.first
        last = len(messages) + len(controls) - 1 if atomic else -1
        position = self._encode_messages(batch, messages, store_ms, queue_limit, last)
        for at, body in enumerate(controls, len(messages)):
            size = record_size(0, 0, len(body))
            position = self._make_way(batch, position, size)
            flags = FLAG_GROUP_OPEN if at < len(messages) + len(controls) - 1 else 0
            self._parts.append(
                encode_record(
                    magic_type=CONTROL, epoch=self._epoch, position=position, born_ms=store_ms, store_ms=store_ms,
                    flags=flags, count=1, dispatch=(), counts=(0, 0, 0, 0, 0), tag_hash=0, producer_seq=0, meta=b"",
                    body=body,
                )
            )  # fmt: skip
            batch.positions.append(position)
            position += size
        self._close_piece(batch)
        batch.end = position
        return batch

    def _encode_messages(
        self, batch: Batch, messages: Sequence[StoreMessage], store_ms: int, queue_limit: int, last: int
    ) -> int:
        next_offsets: dict[int, int] = {}
        known = next_offsets.get
        rows, epoch, position = self._index.tail.rows, self._epoch, batch.first
        entry_queues, entry_offsets = batch.queues, batch.queue_offsets
        room_end, record_limit = 0, self._record_limit
        for at, message in enumerate(messages):
            dispatch = []
            for queue in message.queues:
                offset = known(queue)
                if offset is None:
                    if not 0 <= queue < queue_limit:
                        raise LocalMisuse(f"queue id {queue} does not exist")
                    offset = rows[queue + queue]
                next_offsets[queue] = offset + 1
                dispatch.append((queue, offset))
                entry_queues.append(queue)
                entry_offsets.append(offset)
            n = len(dispatch)
            if n > self._queues_max:
                raise LocalMisuse(f"a record for {n} queues; at most {self._queues_max}")
            size = record_size(n, len(message.meta), len(message.body))
            if position + size > room_end or size > record_limit:
                position = self._make_way(batch, position, size)
                room_end = self._room_end(position)
            flags = message.flags & ~FLAG_GROUP_OPEN
            self._parts.append(
                encode_record(
                    magic_type=MESSAGE, epoch=epoch, position=position, born_ms=message.born_ms, store_ms=store_ms,
                    flags=flags | FLAG_GROUP_OPEN if at < last else flags, count=1, dispatch=dispatch,
                    counts=(message.n_props, message.topic_len, message.keys_len, message.tags_len, message.props_len),
                    tag_hash=message.tag_hash, producer_seq=message.producer_seq, meta=message.meta, body=message.body,
                )
            )  # fmt: skip
            batch.positions.append(position)
            batch.offsets.append(dispatch[0][1] if n else -1)
            batch.entry_positions += [position] * n
            batch.entry_sizes += [size] * n
            batch.entry_tags += [message.tag_hash] * n
            position += size
        return position

    def _make_way(self, batch: Batch, position: int, size: int) -> int:
        """Return where a record of `size` goes: at `position`, or at the start of the next segment behind a filler."""
        if size > self._record_limit:
            raise RecordTooLarge(f"a record of {size} bytes; the largest the store takes is {self._record_limit}")
        segment = self._log.segment_at(position)
        if segment is None:
            segment = self._log.segment_to_append(position)
        if position == segment.base and self._parts:
            self._close_piece(batch)
        left = segment.end - position - size
        if left == 0 or left >= HEADER_SIZE:
            return position
        self._parts.append(self._filler(position, segment.end - position))
        self._close_piece(batch)
        self._log.segment_to_append(segment.end)
        return segment.end

    def _room_end(self, position: int) -> int:
        """Return how far records behind the one at `position` may reach without a look at the segment."""
        segment = self._log.segment_at(position)
        return segment.end - HEADER_SIZE if segment is not None else 0

    def _filler(self, position: int, size: int) -> bytes:
        assert size >= HEADER_SIZE, (position, size)
        return encode_record(
            magic_type=FILLER, epoch=self._epoch, position=position, born_ms=0, store_ms=0, flags=0, count=0,
            dispatch=(), counts=(0, 0, 0, 0, 0), tag_hash=0, producer_seq=0, meta=b"", body=bytes(size - HEADER_SIZE),
        )  # fmt: skip

    def _close_piece(self, batch: Batch) -> None:
        if self._parts:
            segment = self._log.segment_to_append(self._piece_start)
            batch.pieces.append((segment, self._piece_start, b"".join(self._parts)))
            self._piece_start += len(batch.pieces[-1][2])
            self._parts = []
