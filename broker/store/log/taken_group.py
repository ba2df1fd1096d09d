"""A group of records that was taken over from a log as bytes: what waits to be confirmed like an append of one's own.

Invariant: `end_position` is the end of a whole atomic group. Thread rule: plain values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.store.log.commit_log import CommitLog
from remoting.native import core as native
from remoting.native.contracts import EntryBlock, Progress


@dataclass(slots=True)
class TakenGroup:
    """The records in [first_position, end_position); see `contracts.Encoded`."""

    first_position: int
    end_position: int
    entries: EntryBlock
    keyed: bool = True
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    retained: list[tuple[int, int, int]] = field(default_factory=list)
    controls: list[int] = field(default_factory=list)

    def forget_bytes(self) -> None:
        """Nothing to drop: the bytes were written before they came here."""


def taken_groups(first: int, end: int, blocks: Sequence[EntryBlock]) -> list[TakenGroup]:
    """Return what is confirmed together once `end` is; one group at least, because state may have no entries."""
    return [TakenGroup(first, end, block) for block in blocks or [native.core.make_block([], [], [], [], [], [])]]


def whole_groups(log: CommitLog, start: int, blocks: Sequence[tuple[EntryBlock, int]]) -> list[TakenGroup]:
    """Return the blocks with the log positions they are confirmed at, the last one at the end of the log.

    Each block comes with the position up to which it covers the log from `start` on, which may be within a group.
    """
    ends, seen = [], Progress(start, start, 0, 0, 0, group_open=False)
    for _, end in blocks:
        while seen.position < end and (segment := log.segment_at(seen.position)) is not None:
            before = seen.position
            seen = native.core.scan(segment.view, segment.base, min(end, segment.end) - segment.base, seen)
            if seen.position == before:  # damage: nothing here tells where groups end
                seen = Progress(end, end, seen.epoch, 0, 0, group_open=False)
        ends.append(log.end if seen.group_open else end)
    groups, following = [], log.end
    for (block, _), end in zip(reversed(blocks), reversed(ends), strict=True):
        following = min(end, following)
        groups.append(TakenGroup(start, following, block))
    groups.reverse()
    if not groups or groups[-1].end_position < log.end:
        groups += taken_groups(start, log.end, [])
    return groups if log.end > start else []
