"""Entries of runs that nobody has confirmed: found in log order, whole records together, and hidden."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from broker.store.errors import CorruptIndex
from broker.store.index import unconfirmed
from broker.store.index.run import Run, run_path
from broker.store.index.unconfirmed import hide, unconfirmed_entries
from remoting.native.contracts import CONFIRMED, ROW_WORDS
from tests.sim.replicas import ReplicaBench
from tests.sim.stores import message


def runs_of(directory: Path) -> tuple[list[Run], list[int], int]:
    """Runs over forty records, every fifth of them in two queues; where each begins; where the last ends."""
    bench = ReplicaBench(directory, epoch=1, index_tail_entries=16)
    one, two = bench.store.queues.open(b"one"), bench.store.queues.open(b"two")
    begins = []
    for number in range(40):
        begins.append(bench.store.end_position)
        bench.store.append(message([one, two] if number % 5 == 0 else [one], b"x"))
    bench.store._site.thread.drain()
    index = bench.store._parts.opened.index
    runs, end = list(index.runs), index.manifest.end_position
    bench.close()
    return runs, begins, end


def test_only_what_stands_behind_the_position_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In log order; a record in two queues is in one block; blocks follow each other up to where the runs end."""
    monkeypatch.setattr(unconfirmed, "BLOCK_ENTRIES", 3)
    runs, begins, end = runs_of(tmp_path / "store")
    found = unconfirmed_entries(runs, begins[7], end)
    positions = [position for block, _ in found for position in block.columns()[2]]
    held = [begin for begin in begins[7:] if begin < end]
    assert positions == sorted(positions)
    assert sorted(set(positions)) == held
    for (block, block_end), (following, _) in pairwise(found):
        assert block.position(len(block) - 1) < block_end == following.position(0)
    assert found[-1][1] == end
    assert {count for block, _ in found for count in block.columns()[5]} == {1}
    assert unconfirmed_entries(runs, end, end) == []


def test_queues_end_before_what_is_hidden(tmp_path: Path) -> None:
    """The confirmed end of each queue is the offset of its first entry that is not; others stay."""
    runs, begins, end = runs_of(tmp_path / "store")
    rows = np.full((3, ROW_WORDS), 1_000, np.int64)
    hide(rows, unconfirmed_entries(runs, begins[7], end))
    queues = sorted(set(runs[0].queues.tolist()))
    assert rows[queues, CONFIRMED].tolist() == [7, 2]
    assert rows[:, CONFIRMED].sum() == 1_009


def test_a_damaged_run_is_told(tmp_path: Path) -> None:
    """Its columns are checked before anything is made of them."""
    _, begins, end = runs_of(tmp_path / "store")
    path = min((tmp_path / "store" / "index").glob("run-*"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    run = Run(run_path(path.parent, int(path.name[4:])))
    with pytest.raises(CorruptIndex):
        unconfirmed_entries([run], begins[0], end)
