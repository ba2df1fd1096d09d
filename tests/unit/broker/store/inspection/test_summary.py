"""Numbers of a directory."""

from __future__ import annotations

from pathlib import Path

from broker.store.inspection.commands import queues_of, state_of, summarise
from broker.store.inspection.directory import open_directory
from tests.sim.stores import StoreBench


def test_numbers(directory: Path) -> None:
    """Closed: clean, everything indexed; the state's sizes are those of keys and values."""
    found = summarise(directory)
    assert found.clean
    assert found.in_use_by is None
    assert (found.epoch, found.first_epoch, found.queues) == (1, 1, 3)
    assert found.end_position == found.indexed_position == found.snapshot_position == found.durable_position
    assert found.segments * 16 * 1024 == found.segment_bytes
    assert found.state["session"] == {"entries": 1, "key_bytes": 1, "value_bytes": 1}
    assert sum(run["entries"] for run in found.runs) > 0
    assert dict(queues_of(state_of(open_directory(directory))[0])) == {0: b"parent", 1: b"plant/7", 2: b"plant/+"}


def test_live_and_without_snapshot(directory: Path) -> None:
    """Beside an open store, and when the state must come from the log alone."""
    bench = StoreBench(directory)
    found = summarise(directory)
    assert found.in_use_by
    assert not found.clean
    assert found.epoch == 2
    bench.close()
    (directory / "state" / "SNAPSHOT").unlink()
    assert summarise(directory).state == found.state
