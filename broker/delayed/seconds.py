"""How many messages are due in each second, which is what one second of delivery has to do.

Messages stored since the start are counted and, gradually, those that waited before: `count_earlier` reads their
times some at a time, the next spans first. Until it is through, a second may take more than `per_second_max`. A message
that the store refused counts until its span is over, and one that retention copies before it was counted does not.
Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.delayed.buckets import BUCKET_MS
from remoting.native import core as native
from remoting.native.vectors import arange, bincount, nonzero

if TYPE_CHECKING:
    from broker.delayed.buckets import DelayBucket, DelayBuckets
    from remoting.native.contracts import DueSpan

SECOND_MS = 1_000
STEP = 5_000
"""Times read at once."""


class DueSeconds:
    """Messages per second of due time."""

    def __init__(self, buckets: DelayBuckets, per_second_max: int) -> None:
        """`per_second_max`: most messages that may be due in one second; 0 for no limit."""
        self._buckets = buckets
        self.per_second_max = per_second_max
        self.spans: dict[int, DueSpan] = {}
        """Start of a span -> messages in each of its seconds, as far as it was asked for."""
        self._earlier = [(bucket, bucket.floor, buckets.end(bucket)) for bucket in buckets.after(0)]
        """(bucket, first offset not counted yet, end of what waited at the start), the next span last."""
        self._earlier.reverse()

    def is_full(self, due_ms: int) -> bool:
        """Whether no more messages may be due in that second."""
        if not self.per_second_max:
            return False
        span = self.spans.get(due_ms - due_ms % BUCKET_MS)
        return span is not None and span.count(due_ms % BUCKET_MS // SECOND_MS) >= self.per_second_max

    def opened(self, start_ms: int) -> DueSpan:
        """The span that starts then, with its queue. Raises StoreError when that cannot be made."""
        span = self.spans.get(start_ms)
        if span is None:
            span = self.spans[start_ms] = native.core.make_span((self._buckets.at(start_ms).queue_id,))
        return span

    def add(self, due_ms: int, count: int = 1) -> None:
        """Count messages that are due then; negative for those that no longer are."""
        self.opened(due_ms - due_ms % BUCKET_MS).add(due_ms % BUCKET_MS // SECOND_MS, count)

    def remove(self, bucket: DelayBucket) -> None:
        """Forget a span that is over."""
        self.spans.pop(bucket.start_ms, None)

    def count_earlier(self, records_max: int) -> None:
        """Count up to so many of those that waited at the start."""
        while self._earlier and records_max > 0:
            bucket, offset, end = self._earlier.pop()
            offset = max(offset, bucket.floor)
            if self._buckets.find(bucket.start_ms) is not bucket or offset >= end:
                continue
            found = self._buckets.dues(bucket, offset, min(STEP, end - offset))
            offsets = arange(offset, offset + len(found.dues))
            waits = bucket.waiting_among(found.dues, offsets)
            seconds = bincount((found.dues[waits] - bucket.start_ms) // SECOND_MS)
            for second in nonzero(seconds):
                self.opened(bucket.start_ms).add(second, seconds[second])
            if found.after > offset:
                self._earlier.append((bucket, found.after, end))
            records_max -= max(1, found.after - offset)

    def fullest(self) -> tuple[int, int]:
        """(start of the second in ms, messages due in it) of the second with most; (0, 0) when none are counted."""
        best = (0, 0)
        for start_ms, span in self.spans.items():
            second, most = span.fullest()
            if most > best[1]:
                best = start_ms + second * SECOND_MS, most
        return best
