"""Where the messages of a source queue are in the queue here: source offset <-> target offset.

    run      source .. source + count    target .. target + span
    exact    count == span: offset by offset
    coarse   count < span: several runs as one; other producers' messages lie between the copied ones
    begin    count == span == 0: the map has no message below this place
    repeat   span == 0: source offsets of messages that the map has at a lower offset already

A run grows while messages are copied without a gap at either side. A message of another producer, or source offsets
that were deleted before they were copied, begin a new one. Where there are `RUNS_MAX`, the two oldest become one coarse
run, so the oldest offsets are mapped too low: a group that moves there gets messages again and misses none.

`OffsetMap` is one direction, `BothWays` are the two of a queue: messages copied from the source, and messages of
producers here that were mirrored back to it. Each direction keeps its order; the two together need not.

Invariants: runs rise in both offsets. Every message s of a run lies at `target + s - source` or above, and below
`target + span`. `to_target` is never above, and `to_source` never above, the first message that is not consumed yet.
Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

RUNS_MAX = 4_096
"""Most runs of one direction of a queue."""

_source, _target = attrgetter("source"), attrgetter("target")

RunChange = tuple[int, "CopiedRun | None"]
"""The source offset at which a run begins; None: it is no more."""


@dataclass(frozen=True, slots=True)
class CopiedRun:
    """Consecutive source offsets and the range of target offsets that they are in."""

    source: int
    target: int
    count: int
    span: int

    @property
    def source_end(self) -> int:
        """Source offset behind the run."""
        return self.source + self.count

    @property
    def target_end(self) -> int:
        """Target offset behind the run."""
        return self.target + self.span


class OffsetMap:
    """The runs of one direction of a queue, oldest first."""

    def __init__(self, runs: Iterable[CopiedRun] = ()) -> None:
        self.runs = sorted(runs, key=_source)

    @property
    def copied(self) -> int | None:
        """The source offset behind the last message; None before the first."""
        return self.runs[-1].source_end if self.runs and self.runs[-1].count else None

    @property
    def target_end(self) -> int:
        """The target offset behind the last message, or where the map begins."""
        return self.runs[-1].target_end if self.runs else 0

    @property
    def holding(self) -> list[CopiedRun]:
        """The runs that have messages."""
        return [run for run in self.runs if run.span]

    def begin(self, source: int, target: int) -> list[RunChange]:
        """Let the map begin at this place, if it has no run yet; returns the changed runs, as `add` does."""
        if self.runs:
            return []
        self.runs.append(CopiedRun(source, target, 0, 0))
        return [(source, self.runs[-1])]

    def add(self, source: int, target: int, count: int) -> list[RunChange]:
        """Note `count` messages copied from `source` on to `target` on; returns the changed runs by their source
        offset, None for those that are no more."""
        assert not self.runs or source >= self.runs[-1].source_end, (source, self.runs[-1])
        assert not self.runs or target >= self.runs[-1].target_end, (target, self.runs[-1])
        last = self.runs[-1] if self.runs else None
        if last is not None and last.span and (last.source_end, last.target_end) == (source, target):
            self.runs[-1] = CopiedRun(last.source, last.target, last.count + count, last.span + count)
            return [(last.source, self.runs[-1])]
        return self._append(CopiedRun(source, target, count, count))

    def repeat(self, source: int) -> list[RunChange]:
        """Note that a message of the map is at this source offset again; returns the changed runs, as `add` does."""
        last = self.runs[-1]
        if last.count and not last.span and last.source_end == source:
            self.runs[-1] = CopiedRun(last.source, last.target, last.count + 1, 0)
            return [(last.source, self.runs[-1])]
        return self._append(CopiedRun(source, last.target_end, 1, 0))

    def _append(self, run: CopiedRun) -> list[RunChange]:
        changes: list[RunChange] = []
        if self.runs and not self.runs[-1].count:
            changes.append((self.runs.pop().source, None))
        if len(self.runs) >= RUNS_MAX:
            changes += self._merge()
        self.runs.append(run)
        return [*changes, (run.source, run)]

    def _merge(self) -> list[RunChange]:
        """Make one coarse run of the two oldest."""
        first, second = self.runs[:2]
        count = second.source_end - first.source
        target = min(first.target, second.target - (second.source - first.source))
        target = min(target, second.target_end - count - 1)  # or it would be taken for an exact one
        merged = CopiedRun(first.source, target, count, second.target_end - target)
        self.runs[:2] = [merged]
        return [(second.source, None), (first.source, merged)]

    def first_target(self, source: int) -> int | None:
        """The lowest target offset that a message at `source` or above can have; None: there is no such message."""
        at = bisect_right(self.runs, source, key=_source) - 1
        if at >= 0 and self.runs[at].span and source < self.runs[at].source_end:
            return max(0, self.runs[at].target + source - self.runs[at].source)
        return next((max(0, run.target) for run in self._after(at) if run.span), None)

    def first_source(self, target: int) -> int | None:
        """The lowest source offset that a message at `target` or above can have; None: there is no such message."""
        at = bisect_right(self.runs, target, key=_target) - 1
        if at >= 0 and target < self.runs[at].target_end:
            run = self.runs[at]
            return run.source + target - run.target if run.count == run.span else run.source
        return next((run.source for run in self._after(at) if run.span), None)

    def _after(self, at: int) -> Iterator[CopiedRun]:
        return (self.runs[one] for one in range(at + 1, len(self.runs)))


@dataclass(slots=True)
class BothWays:
    """Both directions of one queue."""

    forth: OffsetMap = field(default_factory=OffsetMap)
    """Messages of the source, copied here."""
    back: OffsetMap = field(default_factory=OffsetMap)
    """Messages of producers here, mirrored back to the source; without a run none is."""

    @property
    def copied(self) -> int | None:
        """The source offset behind the last message that is known here; None before the first."""
        ends = [one.copied for one in (self.forth, self.back) if one.copied is not None]
        return max(ends, default=None)

    def to_target(self, source: int) -> int:
        """The target offset for a group that has consumed all source messages below `source`."""
        found = [one.first_target(source) for one in (self.forth, self.back)]
        ends = [one.holding[-1].target_end for one in (self.forth, self.back) if one.holding]
        return min((one for one in found if one is not None), default=max(ends, default=0))

    def to_source(self, target: int) -> int | None:
        """The source offset for a group that has consumed all target messages below `target`; None without a run."""
        found = [one.first_source(target) for one in (self.forth, self.back)]
        return min((one for one in found if one is not None), default=self.copied)

    def reach(self, since: int | None, target: int) -> int:
        """The highest target offset up to `target` that a group may move on to from `since` without skipping messages
        that are only here, which it can have consumed here only; `since` None: it has consumed none here."""
        runs = sorted([*self.forth.holding, *self.back.holding], key=_target)
        if not runs:
            return target if since is None else min(since, target)
        at = 0 if since is None else max(0, bisect_right(runs, since, key=_target) - 1)
        reached = max(0, runs[0].target) if since is None else since
        for run in runs[at:]:
            if reached >= target or max(0, run.target) > reached or run.count != run.span:
                break
            reached = max(reached, run.target_end)
        return min(reached, target)

    def copies(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The ranges of target offsets from `begin` up to `end` that were copied from the source."""
        first = max(0, bisect_right(self.forth.runs, begin, key=_target) - 1)
        found = []
        for run in self.forth.runs[first:]:
            if run.target >= end:
                break
            if run.target_end > begin:
                found.append((max(begin, run.target), min(end, run.target_end)))
        return found

    def waiting(self, end: int) -> int:
        """How many messages below the target offset `end` are still to be mirrored back."""
        if not self.back.runs:
            return 0
        begin = min(self.back.target_end, end)
        return end - begin - sum(behind - at for at, behind in self.copies(begin, end))
