"""The reference of the runs of the index, in numpy: sorting entries into a run, look-up over all runs, merging.

Invariant: number for number what the compiled twin does. Thread rule: `RunTable` on the loop thread; sorting and
`merge` on any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from remoting.native.contracts import Column, Found, RunColumns, RunData


def order_by_queue(queues: Column) -> Column:
    """Return the stable order that sorts queue ids."""
    return np.argsort(queues, kind="stable")


def sort_entries(queues: Column, slots: Column, first: int, end: int) -> RunData:
    """Return entries [first, end) of a ring as a run; `contracts.SLOT` says what a slot holds."""
    chosen = np.arange(first, end) % len(queues)
    qid, entries = queues[chosen], slots[chosen]
    order = order_by_queue(qid)
    qid, entries = qid[order], entries[order]
    starts = starts_of(qid)
    lasts = entries[np.append(starts[1:], len(qid))[: len(starts)] - 1]
    columns = [np.ascontiguousarray(entries[name]) for name in ("offset", "position", "size", "tag")]
    return run_data(qid, starts, lasts["offset"] + lasts["count"], *columns)


def run_data(
    qid: Column, starts: Column, next_offsets: Column, offsets: Column, positions: Column, sizes: Column, tags: Column
) -> RunData:
    """Make a run of sorted entries; leave out the offsets when they are consecutive."""
    first_offsets, edges = offsets[starts], np.append(starts, len(qid))
    dense = bool((next_offsets - first_offsets == np.diff(edges)).all())
    edges = edges.astype("<u4")
    return RunData(qid[starts], first_offsets, next_offsets, edges, positions, sizes, tags, None if dense else offsets)


def starts_of(qid: Column) -> Column:
    """Return where each queue begins in sorted queue ids."""
    return np.flatnonzero(np.concatenate((np.ones(min(len(qid), 1), bool), qid[1:] != qid[:-1])))


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
            first, following = int(run.first_offsets[row]), int(run.next_offsets[row])
            if not first <= at < following:
                continue
            begin, stop = int(run.starts[row]), int(run.starts[row + 1])
            if run.offsets is None:
                start, end = begin + at - first, min(stop, begin + limit - first)
                offsets = np.arange(at, at + end - start)
                at += end - start
            else:
                start = begin + int(run.offsets[begin:stop].searchsorted(at, side="right")) - 1
                end = begin + int(run.offsets[begin:stop].searchsorted(limit))
                offsets = run.offsets[start:end]
                at = following if end == stop else int(run.offsets[end])
            parts.append((offsets, run.positions[start:end], run.sizes[start:end], run.tags[start:end]))
        if len(parts) == 1:
            offsets, positions, sizes, tags = parts[0]
            return offsets, positions, sizes, tags, at
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint32), at
        offsets, positions, sizes, tags = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return offsets, positions, sizes, tags, at

    def first_at(self, queue: int, begin: int) -> int:
        """Return the offset of the queue's first entry at or above log position `begin`, -1 when there is none."""
        for run, row in self._with(queue):
            start, stop = int(run.starts[row]), int(run.starts[row + 1])
            found = start + int(run.positions[start:stop].searchsorted(begin))
            if found < stop:
                return int(run.first_offsets[row]) + found - start if run.offsets is None else int(run.offsets[found])
        return -1

    def merge(self) -> RunData:
        """Return the runs merged into one."""
        parts = [_entries(run) for run in self._runs]
        qid, offset, position, size, tag = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
        queues = np.concatenate([run.queues for run in self._runs])[::-1]
        _, lasts = np.unique(queues, return_index=True)  # the first occurrence from behind is the youngest run's
        next_offsets = np.concatenate([run.next_offsets for run in self._runs])[::-1][lasts]
        order = order_by_queue(qid)
        qid = qid[order]
        return run_data(qid, starts_of(qid), next_offsets, offset[order], position[order], size[order], tag[order])

    def _with(self, queue: int) -> Iterator[tuple[RunColumns, int]]:
        """Yield the runs that have entries of the queue, each with its row in their directory."""
        key = np.uint32(queue)  # a Python int would make numpy convert the whole column first
        for run in self._runs:
            queues = run.queues
            row = queues.searchsorted(key)
            if row < len(queues) and queues[row] == key:
                yield run, int(row)


def _entries(run: RunColumns) -> tuple[Column, ...]:
    """Return queue id, offset, position, size and tag hash of every entry."""
    counts: Column = np.diff(run.starts.astype(np.int64))
    offsets = run.offsets
    if offsets is None:
        offsets = np.repeat(run.first_offsets - run.starts[:-1], counts) + np.arange(len(run.positions))
    return np.repeat(run.queues, counts), offsets, run.positions, run.sizes, run.tags
