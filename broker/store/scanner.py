"""Walks the log record by record with every check, to find its end.

Invariant: filler records join one segment to the next. Thread rule: reads only; before the first append, or below a
position that no longer changes.
"""

from __future__ import annotations

from broker.store import hot
from broker.store.commit_log import CommitLog
from broker.store.hot.contracts import Progress
from broker.store.recovery import Scan


def scan_log(log: CommitLog, start: int, epoch: int = 0) -> Scan:
    """Check every record from `start` on and say where the valid ones end and why."""
    seen = Progress(start, start, epoch, 0, 0, group_open=False)
    while not seen.reason and (segment := log.segment_at(seen.position)) is not None:
        seen = hot.core.scan(segment.view, segment.base, segment.size, seen)
    return Scan(seen.position, seen.groups_end, seen.reason, seen.epoch, seen.store_ms, seen.records)
