"""When runs are written and which are merged."""

from __future__ import annotations

import errno
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from broker.store.index.index_flusher import choose_merge
from broker.store.log.index_thread import RUNS
from tests.sim.stores import StoreBench, bodies, drain, message


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), max_size=12), st.integers(2, 4), st.integers(1, 200))
def test_merge_choice(runs, count: int, entries_max: int) -> None:
    """Neighbours of one level within the bound, the oldest such group; None only when there is none."""
    chosen = choose_merge(runs, count, entries_max)
    fitting = [
        first
        for first in range(len(runs) - count + 1)
        if len({level for level, _ in runs[first : first + count]}) == 1
        and sum(entries for _, entries in runs[first : first + count]) <= entries_max
    ]
    assert chosen == ((fitting[0], fitting[0] + count) if fitting else None)


def test_full_disk_while_writing_a_run(tmp_path: Path) -> None:
    """The run fails, appends are refused, nothing is lost; with room again the run is written."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    bench.faults.arm("index.write", OSError(errno.ENOSPC, "full"))
    for n in range(32):
        bench.store.append(message([queue], b"%d" % n))
    drain(bench.store)
    assert bench.store.disk.full
    bench.store.maintain(0)
    assert not bench.store.disk.full
    drain(bench.store)
    assert bench.store.metrics()["index_runs"] == 1
    bench.settle()
    bench.reopen()
    assert len(bodies(bench.store, queue)) == 32
    bench.close()


def test_room_is_also_made_after_another_job(tmp_path: Path) -> None:
    """Waiting for a job that makes no room is no failure."""
    bench = StoreBench(tmp_path / "data")
    queue, flusher = bench.store.queues.open(b"q"), bench.store._parts.index_flusher
    for _ in range(20):
        bench.store.append(message([queue], b"x"))
    flusher._jobs.start(RUNS, lambda: None)
    flusher.make_room(64)
    assert bench.store._parts.opened.index.tail.room == 64
    bench.close()
