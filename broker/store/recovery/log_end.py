"""Walks the log record by record with every check, and decides from what the walk found where the log ends.

A record is valid when its magic, sizes, position and checksum hold and its epoch is not lower than the one before. A
failure below the durable position is corruption: nothing is cut. Above it, it is the torn tail of a crash: the log ends
at the last whole group before it. A group that is durable in part was damaged: what can be read of it stays.
Invariant: the decision never ends a log below the durable position. Filler records join one segment to the
next. Thread rule: reads only; before the first append, or below a position that no longer changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.store import hot
from broker.store.log.commit_log import CommitLog
from remoting.native.contracts import Progress


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan of the log found: where whole records and whole groups end, and why it stopped."""

    records_end: int
    groups_end: int
    reason: str
    epoch: int
    store_ms: int
    records: int
    gaps: tuple[tuple[int, int], ...] = ()
    """Damaged stretches (from, to) that the scan left out."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The log ends at `position`; `discarded_bytes` of whole records of an unfinished group go with the torn tail."""

    position: int
    discarded_bytes: int


@dataclass(frozen=True, slots=True)
class Damage:
    """The log is not what was made durable: the record at `position` fails for `reason`."""

    position: int
    reason: str


def decide_end(scan: Scan, durable: int, *, keep_parts: bool = False) -> LogEnd | Damage:
    """Return where the log ends, or the damage that forbids to go on.

    With `keep_parts` a group that was durable in part is no such damage: the log ends behind what is left of it.
    """
    assert scan.groups_end <= scan.records_end, scan
    if scan.records_end < durable:
        return Damage(scan.records_end, scan.reason or "the log ends there")
    if scan.groups_end < durable:
        if keep_parts:
            return LogEnd(scan.records_end, 0)
        return Damage(scan.groups_end, "an atomic group that starts there is not complete")
    return LogEnd(scan.groups_end, scan.records_end - scan.groups_end)


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
