"""The pure twin: a batch into the log in one call - encode, pwrite, index, publish.

Invariant: what is refused or fails leaves rows, index and published numbers as they were; entries are published only
when every byte is with the kernel. Thread rule: loop thread.
"""

from __future__ import annotations

import os
from typing import Any

from remoting.native.contracts import COUNT_AT, END_AT, KEPT_BYTES_MAX
from remoting.native.reference.encoder import Encoded, Encoder
from remoting.native.reference.ring import Ring


class Pen:
    """Writes into one stretch of one log file."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._ring: Ring | None = None
        self._queue_limit = 0
        self._counters = memoryview(b"")
        self._descriptor = self._base = self._limit = -1
        self.attempted = 0

    def aim(self, ring: Any, queue_limit: int, counters: memoryview, descriptor: int, base: int, limit: int) -> None:
        """Write into the file that starts at `base`, up to position `limit`; `counters` are the tail's."""
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
        """Append the images at `position`, their entries behind number `count`; None when they do not fit."""
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
        while written < len(data):  # a short write is how a disk says that it is filling up
            written += os.pwrite(self._descriptor, memoryview(data)[written:], at + written)
