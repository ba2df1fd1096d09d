"""How many messages are due in each second, which is what one second of delivery has to do.

Messages stored since the start are counted and, gradually, those that waited before: `count_earlier` reads their
records a few at a time, the next spans first. Until it is through, a second may take more than `per_second_max`. A
message that was not stored after all counts until its span is over, and one that retention copies before it was
counted does not. Loop thread only.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from broker.delayed.buckets import BUCKET_MS

if TYPE_CHECKING:
    from broker.delayed.buckets import DelayBucket, DelayBuckets

SECOND_MS = 1_000
STEP = 500
"""Records read at once."""


class DueSeconds:
    """Messages per second of due time."""

    def __init__(self, buckets: DelayBuckets, per_second_max: int) -> None:
        """`per_second_max`: most messages that may be due in one second; 0 for no limit."""
        self._buckets = buckets
        self.per_second_max = per_second_max
        self._counts: dict[int, array[int]] = {}
        """Start of a span -> messages in each of its seconds."""
        self._earlier = [(bucket, bucket.floor, buckets.end(bucket)) for bucket in buckets.after(0)]
        """(bucket, first offset not counted yet, end of what waited at the start), the next span last."""
        self._earlier.reverse()

    def is_full(self, due_ms: int) -> bool:
        """Whether no more messages may be due in that second."""
        if not self.per_second_max:
            return False
        counts = self._counts.get(due_ms - due_ms % BUCKET_MS)
        return counts is not None and counts[due_ms % BUCKET_MS // SECOND_MS] >= self.per_second_max

    def add(self, due_ms: int, count: int = 1) -> None:
        """Count messages that are due then; negative for those that no longer are."""
        start_ms = due_ms - due_ms % BUCKET_MS
        counts = self._counts.get(start_ms)
        if counts is None:
            counts = self._counts[start_ms] = array("l", bytes(array("l").itemsize * (BUCKET_MS // SECOND_MS)))
        counts[due_ms % BUCKET_MS // SECOND_MS] += count

    def remove(self, bucket: DelayBucket) -> None:
        """Forget a span that is over."""
        self._counts.pop(bucket.start_ms, None)

    def count_earlier(self, records_max: int) -> None:
        """Count up to so many records of those that waited at the start."""
        while self._earlier and records_max > 0:
            bucket, offset, end = self._earlier.pop()
            offset = max(offset, bucket.floor)
            if self._buckets.find(bucket.start_ms) is not bucket or offset >= end:
                continue
            found = self._buckets.read(bucket, offset, min(STEP, end - offset))
            for at, record in enumerate(found.records, offset):
                due_ms = bucket.due_ms(record)
                if bucket.is_waiting((due_ms, at)):
                    self.add(due_ms)
            if found.after > offset:
                self._earlier.append((bucket, found.after, end))
            records_max -= max(1, found.after - offset)

    def fullest(self) -> tuple[int, int]:
        """(start of the second in ms, messages due in it) of the second with most; (0, 0) when none are counted."""
        best = (0, 0)
        for start_ms, counts in self._counts.items():
            most = max(counts)
            if most > best[1]:
                best = start_ms + counts.index(most) * SECOND_MS, most
        return best
