"""The pure twin of the key index's memory: `contracts.KeyChunk` in plain Python and numpy.

Invariant: number for number what the compiled twin takes in. Thread rule: `take` on the loop thread; the entries below
`count` are never changed again, so that the index thread may read them.
"""

from __future__ import annotations

import numpy as np

from remoting.native.contracts import Column
from remoting.protocol.records.properties import KEYS_PER_RECORD_MAX, key_hashes
from remoting.protocol.records.record import BATCH, FLAG_MQTT, FLAG_STAGED, HEADER, MESSAGE, RecordView

_KEYED = frozenset({MESSAGE, BATCH})


class KeyChunk:
    """Entries in log order in four columns of one length."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self._hashes = np.empty(capacity, np.uint32)
        self._positions = np.empty(capacity, np.int64)
        self._sizes = np.empty(capacity, np.uint32)
        self._seconds = np.empty(capacity, np.uint32)

    def columns(self) -> tuple[Column, Column, Column, Column]:
        """Return hashes, positions, sizes and store times in seconds of the entries so far."""
        n = self.count
        return self._hashes[:n], self._positions[:n], self._sizes[:n], self._seconds[:n]

    def take(self, view: bytes | memoryview, base: int, position: int, end: int) -> int:
        """Take in the keys of the sound records in [position, end); return the first record there was no room for."""
        unpack = HEADER.unpack_from
        while position < end:
            head = unpack(view, position - base)
            shown = head[1] in _KEYED and head[11] and not head[9] & FLAG_STAGED
            if shown and (head[14] or (head[12] and not head[9] & FLAG_MQTT)):
                if self.capacity - self.count < KEYS_PER_RECORD_MAX:
                    return position
                self._put(key_hashes(RecordView(view, position - base)), position, head[0], head[6])
            position += head[0]
        return position

    def _put(self, hashes: list[int], position: int, size: int, store_ms: int) -> None:
        at, end = self.count, self.count + len(hashes)
        self._hashes[at:end] = hashes
        self._positions[at:end] = position
        self._sizes[at:end] = size
        self._seconds[at:end] = store_second(store_ms)
        self.count = end


def store_second(store_ms: int) -> int:
    """Return the store time as the index keeps it: whole seconds, from 0 to 2**32 - 1."""
    return min(max(store_ms // 1000, 0), 0xFFFF_FFFF)
