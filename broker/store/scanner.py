"""Walks the log record by record: once with every check to find its end, once fast to replay it.

Invariant: filler records join one segment to the next and are never shown. Thread rule: reads only; before the first
append, or below a position that no longer changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.store.commit_log import CommitLog
from broker.store.recovery import Scan
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.record import FILLER, FLAG_GROUP_OPEN, HEADER, check_record


def scan_log(log: CommitLog, start: int, epoch: int = 0) -> Scan:
    """Check every record from `start` on and say where the valid ones end and why."""
    position = groups_end = start
    store_ms = records = 0
    unpack = HEADER.unpack_from
    group_open = False
    while (segment := log.segment_at(position)) is not None:
        view, base, size = segment.view, segment.base, segment.size
        at = position - base
        try:
            while at < size:
                total = check_record(view, at, base + at)
                head = unpack(view, at)
                if head[3] < epoch:
                    raise CorruptRecord(f"its epoch {head[3]} is lower than {epoch} of the record before")
                epoch, store_ms = head[3], head[6]
                at += total
                records += 1
                if head[1] != FILLER:
                    group_open = bool(head[9] & FLAG_GROUP_OPEN)
                if not group_open:
                    groups_end = base + at
        except CorruptRecord as error:
            return Scan(base + at, groups_end, error.reason, epoch, store_ms, records)
        position = base + at
    return Scan(position, groups_end, "", epoch, store_ms, records)


def replay(log: CommitLog, start: int, end: int) -> Iterator[tuple[memoryview, int, int, tuple[int, ...]]]:
    """Yield (segment view, offset in it, position, header fields) of each record in [start, end), fillers left out.

    The caller knows that the records are valid.
    """
    position = start
    unpack = HEADER.unpack_from
    while position < end and (segment := log.segment_at(position)) is not None:
        view, base = segment.view, segment.base
        stop = min(end, segment.end) - base
        at = position - base
        while at < stop:
            head = unpack(view, at)
            if head[1] != FILLER:
                yield view, at, base + at, head
            at += head[0]
        position = base + at
