"""Turns a batch of messages and state changes into log records and index entries.

Invariant: offsets are assigned here and nowhere else, dense per queue; a record never crosses a segment, and what stays
free behind it is nothing or at least a header, so that a filler always fits. The offsets are given out before the bytes
are written; `take_back` returns them when the write fails. Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.store.index.queue_index import QueueIndex
from broker.store.log.commit_log import CommitLog, Piece, Segment
from broker.store.placed import Queues
from remoting.native import core as native
from remoting.native.contracts import Encoded
from remoting.protocol.records.image import encode_control_image

QUEUES_PER_RECORD_MAX = 1024
"""Queues that one record names; a message for more of them, because so many wildcard filters match its topic, is
written as several records."""


def record_of(batch: Encoded, position: int, size: int) -> bytes:
    """Return the bytes of the record at `position`, a message's of this batch."""
    for start, data in batch.pieces:
        at = position - start
        if 0 <= at < len(data):
            return data[at : at + size]
    raise AssertionError(f"no record of this batch stands at {position}")


class RecordEncoder:
    """Encodes batches for one log and one start (`epoch`); records above `record_limit` bytes are refused."""

    def __init__(self, log: CommitLog, index: QueueIndex, epoch: int, record_limit: int) -> None:
        self._log = log
        self._index = index
        self.queues_max = min(QUEUES_PER_RECORD_MAX, index.tail.capacity // 2)
        """Queues that one record names."""
        self._encoder = native.core.make_encoder(epoch, record_limit, self.queues_max)
        self.segments = native.core.make_segment_writer(self._encoder)
        """Does the whole of an append that stays within half a file."""
        self._segment: Segment | None = None

    def encode(
        self,
        images: list[bytes],
        queues: list[list[Queues]],
        controls: Sequence[bytes],
        *,
        atomic: bool,
        store_ms: int,
        queue_limit: int,
    ) -> Encoded:
        """Return the batch that appends the images of each part, then control records with these bodies.

        Raises RecordTooLarge, TooManyQueues, LocalMisuse, OSError (no room for the next segment); the log is
        unchanged then.
        """
        if controls:
            images = [*images, b"".join([encode_control_image(body, store_ms) for body in controls])]
            queues = [*queues, [()] * len(controls)]
        position, segment = self._log.end, self._segment
        if any(queues) and (segment is None or not segment.base <= position < segment.end):
            segment = self._segment = self._log.segment_to_append(position)
        return self._encoder.encode(
            self._index.tail.ring, images, queues, atomic, store_ms, queue_limit, position,
            segment.end if segment is not None else position, self._next_segment,
        )  # fmt: skip

    def _next_segment(self, position: int) -> int:
        self._segment = self._log.segment_to_append(position)
        return self._segment.end

    def pieces(self, batch: Encoded) -> list[Piece]:
        """Return what is to be written where."""
        segment = self._segment
        if segment is not None and len(batch.pieces) == 1 and batch.first_position >= segment.base:
            position, data = batch.pieces[0]
            return [(segment, position, data)]
        return [(self._log.segment_to_append(position), position, data) for position, data in batch.pieces]

    def aim(self, queue_limit: int) -> None:
        """Let the segment writer write at the end of the log, up to the middle or the end of its file."""
        segment, tail = self._log.segment_at(self._log.end), self._index.tail
        if segment is not None:
            middle = segment.base + segment.size // 2
            limit = middle if self._log.end < middle else segment.end
            self.segments.aim(tail.ring, queue_limit, tail.counters, segment.descriptor, segment.base, limit)

    def take_back(self, batch: Encoded) -> None:
        """Take back the offsets of a batch that was not written."""
        self._index.tail.ring.undo(batch.entries)
