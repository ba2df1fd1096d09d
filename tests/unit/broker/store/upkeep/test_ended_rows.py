"""Rows of deleted queues go back to the system, those of others and of entries in the tail stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.store.state.name_table import PAGE
from broker.store.upkeep.ended_rows import EndedRows
from tests.sim.stores import StoreBench, message

PAGES = 40


def holes(bench: StoreBench) -> int:
    """Pages of rows that the file of the tail has no longer."""
    found = (bench.store.directory / "index" / "tail").stat()
    missing = -(-found.st_size // 4_096) * 8 - found.st_blocks
    return -(-missing * 512 // (32 * PAGE))  # a file with holes may need a block to list its parts


def upkeep(bench: StoreBench) -> None:
    for _ in range(3):
        bench.store.maintain(bench.clock.now_ms())


def churned(bench: StoreBench, *, confirms: bool = True) -> list[int]:
    """Queues in many pages of ids, with a message each in two of them, of which only the first and the last stay.

    `confirms`: whether it is certain that the others do not.
    """
    ids: list[int] = []
    for page in range(PAGES):
        ids += bench.store.queues.open_all([b"%d/%d" % (page, at) for at in range(PAGE)])
    bench.store.append(message([ids[5]], b"x"), message([ids[20 * PAGE]], b"x"))
    bench.settle()
    if not confirms:
        bench.store.positions.limit_confirm(bench.store.end_position)
    for first in range(1, len(ids) - 1, 150):
        bench.store.queues.delete(ids[first : min(first + 150, len(ids) - 1)])
    if confirms:
        bench.settle()
    return ids


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="holes in files are Linux's")
def test_rows_of_deleted_queues_are_given_back(tmp_path: Path) -> None:
    bench = StoreBench(tmp_path / "data")
    ids = churned(bench)
    index = bench.store._parts.opened.index
    upkeep(bench)
    # all pages but the first and the last, which have a queue, and the one of which an entry is in the tail
    assert holes(bench) == PAGES - 3
    assert index.next_offset(ids[20 * PAGE]) == 1
    bench.store.append(message([ids[0], ids[-1]], b"y"))
    late = bench.store.queues.open(b"late")
    bench.store.append(message([late], b"z"))
    bench.settle()
    reading = bench.store.reading
    assert reading.bounds(ids[0]) == reading.bounds(ids[-1]) == reading.bounds(late) == (0, 1)
    bench.reopen()
    assert holes(bench) == 0
    upkeep(bench)
    assert holes(bench) == PAGES - 2, "after a start too"
    assert bench.store.queues.open(b"one more") == late + 1
    assert isinstance(bench.store._parts.maintenance._ended_rows, EndedRows)
    bench.close()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="holes in files are Linux's")
def test_rows_stay_while_the_log_may_be_cut_in_front_of_the_deletion(tmp_path: Path) -> None:
    bench = StoreBench(tmp_path / "data")
    churned(bench, confirms=False)
    upkeep(bench)
    assert holes(bench) == 0
    bench.store.positions.limit_confirm(bench.store.end_position)
    bench.settle()
    upkeep(bench)
    assert holes(bench) == PAGES - 3
    bench.close()
