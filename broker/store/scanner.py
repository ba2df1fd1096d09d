"""Walks the log record by record with every check, to find its end.

Invariant: filler records join one segment to the next. Thread rule: reads only; before the first append, or below a
position that no longer changes.
"""

from __future__ import annotations

from broker.store import hot
from broker.store.commit_log import CommitLog
from broker.store.hot.contracts import Progress
from broker.store.recovery import Scan


def scan_log(log: CommitLog, start: int, before: Scan | None = None) -> Scan:
    """Check every record from `start` on and say where the valid ones end and why.

    `before` is what a scan up to a damaged stretch that ends at `start` found: what was whole there stays whole, and
    epochs, times and records count on from it.
    """
    epoch, store_ms, records = (before.epoch, before.store_ms, before.records) if before else (0, 0, 0)
    seen = Progress(start, start, epoch, store_ms, records, group_open=False)
    while not seen.reason and (segment := log.segment_at(seen.position)) is not None:
        seen = hot.core.scan(segment.view, segment.base, segment.size, seen)
    return Scan(seen.position, seen.groups_end, seen.reason, seen.epoch, seen.store_ms, seen.records)
