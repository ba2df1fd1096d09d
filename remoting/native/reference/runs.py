"""The reference of the runs of the index: sorting entries into a run, look-up over all runs, merging.

Invariant: number for number what the compiled twin does. Thread rule: `RunTable` on the loop thread; sorting and
`merge` on any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from remoting.native.contracts import SLOT_FIELDS, Found, RunColumns, RunData, slot_column
from remoting.native.vectors import Column, arange, argsort, column, diff, empty, joined, repeat


def order_by_queue(queues: Column) -> Column:
    """Return the stable order that sorts queue ids."""
    return argsort(queues)


def sort_entries(queues: Column, slots: memoryview, first: int, end: int) -> RunData:
    """Return entries [first, end) of a ring as a run; `contracts.SLOT_FIELDS` says what a slot holds."""
    chosen = arange(first, end) % len(queues)
    order = order_by_queue(queues[chosen])
    chosen = chosen[order]
    qid = queues[chosen]
    starts = starts_of(qid)
    offsets, positions, sizes, tags, counts, _ = (slot_column(slots, name)[chosen] for name in SLOT_FIELDS)
    lasts = column([*starts.tolist()[1:], len(qid)][: len(starts)], "q") - 1
    return run_data(qid, starts, offsets[lasts] + counts[lasts], offsets, positions, sizes, tags)


def run_data(
    qid: Column, starts: Column, next_offsets: Column, offsets: Column, positions: Column, sizes: Column, tags: Column
) -> RunData:
    """Make a run of sorted entries; leave out the offsets when they are consecutive."""
    first_offsets, edges = offsets[starts], column([*starts, len(qid)], "I")
    dense = (next_offsets - first_offsets == diff(edges)).all()
    return RunData(qid[starts], first_offsets, next_offsets, edges, positions, sizes, tags, None if dense else offsets)


def starts_of(qid: Column) -> Column:
    """Return where each queue begins in sorted queue ids."""
    known = qid.tolist()
    return column([row for row in range(len(known)) if not row or known[row] != known[row - 1]], "q")


class RunTable:
    """The columns of all runs, oldest first."""

    def __init__(self, runs: Sequence[RunColumns]) -> None:
        self._runs = list(runs)

    def find(self, queue: int, offset: int, limit: int) -> Found:
        """Return the entries of `queue` that hold messages [offset, limit), as far as the runs go."""
        parts: list[tuple[Any, ...]] = []
        at = offset
        for run, row in self._with(queue):
            if at >= limit:
                break
            first, following = run.first_offsets[row], run.next_offsets[row]
            if not first <= at < following:
                continue
            begin, stop = run.starts[row], run.starts[row + 1]
            if run.offsets is None:
                start, end = begin + at - first, min(stop, begin + limit - first)
                offsets = arange(at, at + end - start)
                at += end - start
            else:
                start = begin + run.offsets[begin:stop].searchsorted(at, side="right") - 1
                end = begin + run.offsets[begin:stop].searchsorted(limit)
                offsets = run.offsets[start:end]
                at = following if end == stop else run.offsets[end]
            parts.append((offsets, run.positions[start:end], run.sizes[start:end], run.tags[start:end]))
        if len(parts) == 1:
            offsets, positions, sizes, tags = parts[0]
            return offsets, positions, sizes, tags, at
        if not parts:
            return empty(0, "q"), empty(0, "q"), empty(0, "I"), empty(0, "I"), at
        offsets, positions, sizes, tags = (joined(columns) for columns in zip(*parts, strict=True))
        return offsets, positions, sizes, tags, at

    def first_at(self, queue: int, begin: int) -> int:
        """Return the offset of the queue's first entry at or above log position `begin`, -1 when there is none."""
        for run, row in self._with(queue):
            start, stop = run.starts[row], run.starts[row + 1]
            found = start + run.positions[start:stop].searchsorted(begin)
            if found < stop:
                return run.first_offsets[row] + found - start if run.offsets is None else run.offsets[found]
        return -1

    def merge(self) -> RunData:
        """Return the runs merged into one."""
        parts = [_entries(run) for run in self._runs]
        qid, offset, position, size, tag = (joined(pieces) for pieces in zip(*parts, strict=True))
        youngest: dict[int, int] = {}
        for run in self._runs:
            youngest.update(zip(run.queues, run.next_offsets, strict=True))
        next_offsets = column([youngest[queue] for queue in sorted(youngest)], "q")
        order = order_by_queue(qid)
        qid = qid[order]
        return run_data(qid, starts_of(qid), next_offsets, offset[order], position[order], size[order], tag[order])

    def _with(self, queue: int) -> Iterator[tuple[RunColumns, int]]:
        """Yield the runs that have entries of the queue, each with its row in their directory."""
        for run in self._runs:
            queues = run.queues
            row = queues.searchsorted(queue)
            if row < len(queues) and queues[row] == queue:
                yield run, row


def _entries(run: RunColumns) -> tuple[Column, ...]:
    """Return queue id, offset, position, size and tag hash of every entry."""
    counts = diff(run.starts)
    offsets = run.offsets
    if offsets is None:
        offsets = repeat(run.first_offsets - run.starts[:-1], counts) + arange(0, len(run.positions))
    return repeat(run.queues, counts), offsets, run.positions, run.sizes, run.tags
