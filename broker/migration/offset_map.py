"""Where the messages of a source queue are in the queue they were copied to: source offset <-> target offset.

    run      source .. source + count    target .. target + span
    exact    count == span: offset by offset
    coarse   count < span: several runs as one; other producers' messages lie between the copied ones

A run grows while messages are copied without a gap at either side. A message of another producer, or source offsets
that were deleted before they were copied, begin a new one. Where there are `RUNS_MAX`, the two oldest become one coarse
run, so the oldest offsets are mapped too low: a group that moves there gets messages again and misses none.

Invariants: runs rise in both offsets. Every message s of a run lies at `target + s - source` or above, and below
`target + span`. `to_target` is never above, and `to_source` never above, the first message that is not consumed yet.
Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

RUNS_MAX = 4_096
"""Most runs of one queue."""

_source, _target = attrgetter("source"), attrgetter("target")


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
    """The runs of one queue, oldest first."""

    def __init__(self, runs: Iterable[CopiedRun] = ()) -> None:
        self.runs = sorted(runs, key=_source)

    @property
    def copied(self) -> int | None:
        """The source offset behind the last message copied; None before the first."""
        return self.runs[-1].source_end if self.runs else None

    def add(self, source: int, target: int, count: int) -> list[tuple[int, CopiedRun | None]]:
        """Note `count` messages copied from `source` on to `target` on; returns the changed runs by their source
        offset, None for those that are no more."""
        assert not self.runs or source >= self.runs[-1].source_end, (source, self.runs[-1])
        assert not self.runs or target >= self.runs[-1].target_end, (target, self.runs[-1])
        last = self.runs[-1] if self.runs else None
        if last is not None and (last.source_end, last.target_end) == (source, target):
            self.runs[-1] = CopiedRun(last.source, last.target, last.count + count, last.span + count)
            return [(last.source, self.runs[-1])]
        changes: list[tuple[int, CopiedRun | None]] = []
        if len(self.runs) >= RUNS_MAX:
            changes += self._merge()
        self.runs.append(CopiedRun(source, target, count, count))
        return [*changes, (source, self.runs[-1])]

    def _merge(self) -> list[tuple[int, CopiedRun | None]]:
        """Make one coarse run of the two oldest."""
        first, second = self.runs[:2]
        count = second.source_end - first.source
        target = min(first.target, second.target - (second.source - first.source))
        target = min(target, second.target_end - count - 1)  # or it would be taken for an exact one
        merged = CopiedRun(first.source, target, count, second.target_end - target)
        self.runs[:2] = [merged]
        return [(second.source, None), (first.source, merged)]

    def to_target(self, source: int) -> int:
        """The target offset for a group that has consumed all source messages below `source`."""
        at = bisect_right(self.runs, source, key=_source) - 1
        if at < 0:
            return max(0, self.runs[0].target) if self.runs else 0
        run = self.runs[at]
        if source < run.source_end:
            return max(0, run.target + source - run.source)
        return run.target_end if at + 1 == len(self.runs) else max(0, self.runs[at + 1].target)

    def reach(self, since: int | None, target: int) -> int:
        """The highest target offset up to `target` that a group may move on to from `since` without skipping messages
        of other producers, which it can have consumed here only; `since` None: it has consumed none here."""
        if not self.runs:
            return target if since is None else min(since, target)
        at = 0 if since is None else max(0, bisect_right(self.runs, since, key=_target) - 1)
        reached = max(0, self.runs[0].target) if since is None else since
        for run in self.runs[at:]:
            if reached >= target or max(0, run.target) > reached or run.count != run.span:
                break
            reached = max(reached, run.target_end)
        return min(reached, target)

    def to_source(self, target: int) -> int | None:
        """The source offset for a group that has consumed all target messages below `target`; None without a run."""
        if not self.runs:
            return None
        at = bisect_right(self.runs, target, key=_target) - 1
        if at < 0:
            return self.runs[0].source
        run = self.runs[at]
        if target >= run.target_end:
            return run.source_end
        return run.source + target - run.target if run.count == run.span else run.source
