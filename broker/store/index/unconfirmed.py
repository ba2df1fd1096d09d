"""What the runs of a group's index hold although it is not confirmed yet; a start hides it again.

Runs take what is confirmed, and more only when the tail has no room for what is not. The MANIFEST says up to where all
was confirmed then. Invariant: no entry from there on counts as confirmed after a start; queues and offsets stay as the
runs have them. Thread rule: reading blocks; before the index is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from broker.store.index.run import Run
from remoting.native import core as native
from remoting.native.contracts import CONFIRMED, EntryBlock

BLOCK_ENTRIES = 2048
"""Entries of a block: what is confirmed together at most."""
Covered = tuple[EntryBlock, int]
"""Entries in log order, and the log position up to which they are all."""


def unconfirmed_entries(runs: Sequence[Run], confirmed: int, end: int) -> list[Covered]:
    """Return what the runs, which cover the log to `end`, hold from position `confirmed` on. Raises CorruptIndex."""
    pieces = [_columns_from(run, confirmed) for run in runs if run.end_position > confirmed and run.entry_count]
    if not pieces:
        return []
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    order = np.argsort(columns[2], kind="stable")
    columns = [column[order] for column in columns]
    positions, total = columns[2], len(order)
    found: list[Covered] = []
    first = 0
    while first < total:
        cut = min(first + BLOCK_ENTRIES, total)
        while cut < total and positions[cut] == positions[cut - 1]:  # one record in many queues
            cut += 1
        block = native.core.make_block(*(column[first:cut].tolist() for column in columns))
        found.append((block, int(positions[cut]) if cut < total else end))
        first = cut
    return found


def hide(rows: npt.NDArray[np.int64], found: Sequence[Covered]) -> None:
    """Let the confirmed end of every queue stand before its first entry in `found`."""
    for block, _ in reversed(found):
        queues, offsets, *_ = block.columns()
        for queue, offset in zip(reversed(queues), reversed(offsets), strict=True):
            rows[queue, CONFIRMED] = min(offset, int(rows[queue, CONFIRMED]))


def _columns_from(run: Run, position: int) -> list[npt.NDArray[np.int64]]:
    """Return (queue, offset, position, size, tag, count) of the entries at or behind a log position."""
    queues, offsets, positions, sizes, tags = run.columns()
    following = np.empty(run.entry_count, np.int64)
    following[:-1] = offsets[1:]
    following[run.starts[1:].astype(np.int64) - 1] = run.next_offsets
    chosen = positions >= position
    return [
        column[chosen].astype(np.int64) for column in (queues, offsets, positions, sizes, tags, following - offsets)
    ]
