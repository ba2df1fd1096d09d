"""Compares the runs of the index with what the log says.

Invariant: a run must hold exactly the entries of the records in its part of the log, in the same order, with the same
queue offsets, sizes and tags. 28 bytes of memory per entry of the log. Thread rule: one thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.store.errors import CorruptIndex
from broker.store.queue_index.run import Run
from remoting.protocol.record import BATCH, dispatch_fields

DIFFERENCES_MAX = 20
"""Differences named per run; the first ones tell what happened."""
Column = npt.NDArray[Any]


class LogEntries:
    """Every dispatch of the log in order, as columns, and each queue's next offset."""

    def __init__(self) -> None:
        self.next_offsets: dict[int, int] = {}
        self._queues = array("I")
        self._offsets = array("q")
        self._positions = array("q")
        self._sizes = array("I")
        self._tags = array("I")

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, view: memoryview, at: int, position: int, head: tuple[int, ...]) -> Iterator[str]:
        """Take in one record; yield what is wrong with its offsets."""
        advance = head[10] if head[1] == BATCH else 1
        for queue, offset in dispatch_fields(view, at):
            expected = self.next_offsets.get(queue, offset)
            if offset != expected:
                yield f"queue {queue}: offset {offset} at {position} follows {expected - 1}"
            self.next_offsets[queue] = offset + advance
            self._queues.append(queue)
            self._offsets.append(offset)
            self._positions.append(position)
            self._sizes.append(head[0])
            self._tags.append(head[17])

    def part(self, start: int, end: int) -> tuple[Column, ...]:
        """Return (queue, offset, position, size, tag) of the records in [start, end), sorted by queue."""
        positions = np.frombuffer(self._positions, np.int64)
        first, last = positions.searchsorted(start), positions.searchsorted(end)
        queues = np.frombuffer(self._queues, np.uint32)[first:last]
        order = queues.argsort(kind="stable")
        others = (np.frombuffer(column, kind)[first:last][order] for column, kind in (
            (self._offsets, np.int64), (self._positions, np.int64), (self._sizes, np.uint32), (self._tags, np.uint32)
        ))  # fmt: skip
        return (queues[order], *others)


def check_run(run: Run, entries: LogEntries, begin: int) -> Iterator[str]:
    """Yield how `run` differs from the log, which begins at `begin`. Raises CorruptIndex (a checksum)."""
    queues, positions, sizes, tags = run.columns()
    offsets = _offsets_of(run, len(positions))
    kept = positions >= begin  # older ones have expired with their log file
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
    if at > end:
        yield f"the runs end at {at}, the manifest says {end}"


def _offsets_of(run: Run, count: int) -> Column:
    """Queue offset of every entry; they count up from the queue's first one in the run."""
    ends = run.next_offsets()
    counts = ends - run.first_offsets
    starts = np.cumsum(counts) - counts
    if int(counts.sum()) != count:
        raise CorruptIndex(run.path, "its directory does not add up")
    return np.repeat(run.first_offsets - starts, counts) + np.arange(count)
