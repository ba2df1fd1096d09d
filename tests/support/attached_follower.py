"""Follows one queue of an `attached_writer` from another process and checks everything it reads.

Every record must pass its checksum, be in the queue at the offset it was read at, and contain the number that its place
in the parent queue demands; offsets must be consecutive, except where retention removed the older ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from broker.store.attached.store import AttachedStore
from broker.store.index.reader import OFFSET_TOO_SMALL, OK, RangeResult
from remoting.protocol.records.record import HEADER_SIZE, check_record
from tests.support.attached_writer import LIGHTS

COUNT_MAX = 1_000_000
BYTES_MAX = 1024 * 1024
_BODY_OFF_AT = 44


class Inconsistent(AssertionError):
    """Something was read that was never written in this form."""


class Follower:
    """Reads one queue from `offset` on; `light` is the number of a light queue, None for the parent."""

    def __init__(self, store: AttachedStore, queue: int, offset: int = 0, light: int | None = None) -> None:
        self._store = store
        self._queue = queue
        self._light = light
        self.offset = offset
        self.records = 0
        self.expired = 0
        self.lags_ns: list[int] = []

    def step(self, *, end_offset: int = 1 << 62) -> int:
        """Read and check one range; returns how many records it had."""
        found = self._store.read_range(self._queue, self.offset, COUNT_MAX, BYTES_MAX, end_offset)
        now_ns = time.monotonic_ns()
        if found.status == OFFSET_TOO_SMALL:
            expect(found.first_offset > self.offset, "an offset that is not too small was called so")
            self.expired += found.first_offset - self.offset
        else:
            expect(found.status == OK, f"status {found.status} at {self.offset}")
            expect(found.first_offset == self.offset, f"asked {self.offset}, got {found.first_offset}")
        count = len(found.starts)
        expect(found.next_offset == found.first_offset + count, "offsets and records differ")
        expect(found.next_offset <= found.max_offset, "records above the confirmed end")
        if count:
            self.lags_ns.append(now_ns - self._check(found))
        self.offset = found.next_offset
        self.records += count
        return count

    def _check(self, found: RangeResult) -> int:
        """Check every record; returns when the oldest of them was appended."""
        blob, starts = memoryview(found.blob), found.starts.tolist()
        ends = [*starts[1:], len(blob)]
        for start, end in zip(starts, ends, strict=True):
            expect(check_record(blob[:end], start, None) == end - start, f"sizes at {start}")
        words, at = np.frombuffer(blob, "<u8"), np.asarray(starts) // 8
        offsets = np.arange(found.first_offset, found.next_offset)
        dispatch = HEADER_SIZE // 8 + (0 if self._light is None else 2)
        expect_equal(words[at + dispatch] & 0xFFFF_FFFF, np.full(len(at), self._queue), "queue ids")
        expect_equal(words[at + dispatch + 1], offsets, "offsets")
        bodies = at + np.frombuffer(blob, "<u4")[np.asarray(starts) // 4 + _BODY_OFF_AT // 4] // 8
        numbers = offsets if self._light is None else offsets * LIGHTS + self._light
        expect_equal(words[bodies], numbers, "numbers")
        return int(words[bodies + 1][0])


def expect(condition: bool, text: str) -> None:
    """Raise Inconsistent unless it is so."""
    if not condition:
        raise Inconsistent(text)


def expect_equal(found: Sequence[int], wanted: Sequence[int], what: str) -> None:
    """Raise Inconsistent naming the first difference."""
    different = np.flatnonzero(np.asarray(found, np.int64) != np.asarray(wanted, np.int64))
    if len(different):
        at = int(different[0])
        raise Inconsistent(f"{what}: {found[at]} in place of {wanted[at]} at {at} of {len(found)}")
