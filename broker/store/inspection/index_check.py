"""Compares the runs of the index with what the log says.

Invariant: a run must hold exactly the entries of the records in its part of the log, in the same order, with the same
queue offsets, sizes and tags; what it holds more are holes, which lie in damaged stretches. 32 bytes of memory per
entry of the log. Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.store import hot
from broker.store.index.run import Run

DIFFERENCES_MAX = 20
"""Differences named per run; the first ones tell what happened."""
Column = npt.NDArray[Any]
Columns = tuple[Column, ...]
_NOTHING: Columns = tuple(np.empty(0, kind) for kind in ("<u4", "<i8", "<i8", "<u4", "<u4"))


class LogEntries:
    """Every dispatch of the log in order, as columns, and each queue's next offset."""

    def __init__(self) -> None:
        self._next = np.empty(0, np.int64)
        self._last = np.empty(0, np.int64)
        self._parts: list[Columns] = []
        self._joined: Columns | None = None
        self._damage = -1

    def __len__(self) -> int:
        return sum(len(part[0]) for part in self._parts)

    @property
    def queues(self) -> int:
        """How many queues have entries."""
        return int((self._next >= 0).sum())

    def pass_damage(self, position: int) -> None:
        """The log is damaged at `position`: queues may go on at a higher offset behind it."""
        self._damage = position

    def add(self, columns: Columns) -> Iterator[str]:
        """Take in (queue, offset, position, size, tag, count) in log order; yield what is wrong with the offsets."""
        *kept, counts = columns
        if not len(counts):
            return
        self._parts.append(tuple(kept))
        self._joined = None
        queues, offsets, positions = kept[:3]
        self._grow(int(queues.max()) + 1)
        wrong = hot.core.follow(queues, offsets, positions, counts, self._next, self._last, self._damage)
        for row, expected in wrong:
            yield f"queue {queues[row]}: offset {offsets[row]} at {positions[row]} follows {expected - 1}"

    def _grow(self, count: int) -> None:
        missing = max(0, count - len(self._next))
        if missing:
            more = np.full(missing + len(self._next) // 2, -1, np.int64)
            self._next, self._last = np.concatenate((self._next, more)), np.concatenate((self._last, more))

    def part(self, start: int, end: int) -> Columns:
        """Return (queue, offset, position, size, tag) of the records in [start, end), sorted by queue."""
        if self._joined is None:
            self._joined = tuple(np.concatenate(columns) for columns in zip(*self._parts, strict=True)) or _NOTHING
            self._parts = [self._joined]
        first, last = self._joined[2].searchsorted((start, end)).tolist()
        chosen = [column[first:last] for column in self._joined]
        order = hot.core.order_by_queue(chosen[0])
        return tuple(column[order] for column in chosen)


def check_run(run: Run, entries: LogEntries, begin: int, gaps: Sequence[tuple[int, int]] = ()) -> Iterator[str]:
    """Yield how `run` differs from the log, which begins at `begin` and is damaged at `gaps`.

    Raises CorruptIndex (a checksum).
    """
    queues, offsets, positions, sizes, tags = run.columns()
    kept = (positions >= begin) & (sizes > 0)  # older ones have expired with their log file, holes are not in the log
    for start, end in gaps:
        kept &= (positions < start) | (positions >= end)
    said = [column[kept] for column in (queues, offsets, positions, sizes, tags)]
    meant = entries.part(max(run.first_position, begin), run.end_position)
    if len(said[0]) != len(meant[0]):
        yield f"{run.path.name}: {len(said[0])} entries where the log has {len(meant[0])}"
        return
    wrong = np.flatnonzero(np.logical_or.reduce([a != b for a, b in zip(said, meant, strict=True)]))
    names = ("queue", "offset", "position", "size", "tag")
    for at in wrong[:DIFFERENCES_MAX].tolist():
        pairs = [f"{name} {int(a[at])}/{int(b[at])}" for name, a, b in zip(names, said, meant, strict=True)]
        yield f"{run.path.name}: index/log say {', '.join(pairs)}"


def check_cover(runs: list[Run], begin: int, end: int) -> Iterator[str]:
    """Yield the holes in what `runs` cover of the log from `begin` to `end`, where the manifest says they end."""
    at = begin
    for run in runs:
        if run.first_position > at:
            yield f"{run.path.name} begins at {run.first_position}, the run before ends at {at}"
        at = max(at, run.end_position)
    if at > max(begin, end):  # an index that was begun anew has no manifest yet, wherever the log begins
        yield f"the runs end at {at}, the manifest says {end}"
