"""Where the messages of a source queue are in the queue they were copied to: source offset <-> target offset.

    run      source .. source + count    target .. target + span
    exact    count == span: offset by offset
    coarse   count < span: several runs as one; other producers' messages lie between the copied ones

A run grows while messages are copied without a gap at either side. A message of another producer, or source offsets
that were deleted before they were copied, begin a new one. Where there are `RUNS_MAX`, the two oldest become one coarse
run, so the oldest offsets are mapped too low: a group that moves there gets messages again and misses none.

Invariant: runs rise in both offsets, and every message s of a run lies at `target + s - source` or above, and below
`target + span`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

RUNS_MAX = 4_096
"""Most runs of one queue."""

_source = attrgetter("source")


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
