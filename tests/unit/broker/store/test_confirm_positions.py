"""The positions of an open log, and the listeners to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.confirm_positions import ConfirmPositions
from tests.sim.replicas import ReplicaBench, pull
from tests.sim.stores import message


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_positions_follow_each_other_up_to_the_limit(tmp_path: Path, flush: str) -> None:
    """Confirmed is what is kept, as far as the group allows; the certain end is the log's once there is no limit."""
    bench = ReplicaBench(tmp_path / "data", epoch=1, flush=flush, flush_interval_ms=1)
    store, kept = bench.store, []
    positions: ConfirmPositions = store.positions
    queue = store.queues.open(b"q")
    positions.on_kept(kept.append)
    end = store.append(message([queue], b"x")).end_position
    bench.flush()
    assert (positions.flushed, positions.kept, positions.confirmed, positions.certain) == (end, end, 0, 0)
    positions.limit_confirm(end - 1)
    assert 0 < positions.confirmed < end
    assert positions.limit == end - 1
    positions.limit_confirm(None)
    assert (positions.confirmed, positions.certain) == (end, end)
    assert kept[-1] == end
    assert positions.flushes_total >= 1
    bench.close()


def test_listeners_survive_a_truncation(tmp_path: Path) -> None:
    """Truncated bytes are never reported as kept; their replacements are."""
    master, replica = ReplicaBench(tmp_path / "m", epoch=1), ReplicaBench(tmp_path / "r", role="replica")
    queue = master.store.queues.open(b"q")
    ends = [master.store.append(message([queue], b"%d" % n)).end_position for n in range(9)]
    master.flush()
    pull(master.store, replica.store, 1)
    kept, written, moved = [], [], []
    store = replica.store
    store.positions.on_kept(kept.append)
    store.positions.on_written(written.append)
    store.positions.on_advance(moved.append)
    before = store.positions
    store.replica.truncate(ends[3])
    assert (kept, written, store.end_position) == ([], [], ends[3])
    assert store.positions is not before
    pull(master.store, store, 1)
    replica.flush()
    store.positions.limit_confirm(ends[-1])
    assert kept[-1] == written[-1] == ends[-1]
    assert [list(one) for one in moved] == [[queue]]
    for bench in (replica, master):
        bench.close()
