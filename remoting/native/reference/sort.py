"""The pure twin of the sorting of entries into runs, in numpy.

Invariant: number for number what the compiled twin makes. Thread rule: plain values, any thread.
"""

from __future__ import annotations

import numpy as np

from remoting.native.contracts import Column, RunData


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
    """Make a run of sorted entries; leave the offsets out where they only count up."""
    first_offsets, edges = offsets[starts], np.append(starts, len(qid))
    dense = bool((next_offsets - first_offsets == np.diff(edges)).all())
    edges = edges.astype("<u4")
    return RunData(qid[starts], first_offsets, next_offsets, edges, positions, sizes, tags, None if dense else offsets)


def starts_of(qid: Column) -> Column:
    """Return where each queue begins in sorted queue ids."""
    return np.flatnonzero(np.concatenate((np.ones(min(len(qid), 1), bool), qid[1:] != qid[:-1])))
