"""Upkeep in steps."""

from __future__ import annotations

from pathlib import Path

from broker.store.log.metadata import load_checkpoint
from broker.store.state.state_kinds import StateChange
from broker.store.state.state_tables import load_snapshot
from broker.store.upkeep import maintenance
from tests.sim.stores import StoreBench, drain, message


def test_snapshot_checkpoint_and_next_segment(tmp_path: Path, monkeypatch) -> None:
    """Each is made when it is due and not before."""
    monkeypatch.setattr(maintenance, "CHECKPOINT_LOG_BYTES", 3000)
    bench = StoreBench(tmp_path / "data", snapshot_log_bytes=5000)
    queue = bench.store.queues.open(b"q")
    bench.store.append_state([StateChange(4, b"k", b"v")])
    bench.store.maintain(0)
    drain(bench.store)
    assert load_snapshot(bench.directory / "state") is None
    for _ in range(10):
        bench.store.append(message([queue], bytes(1000)))
    bench.settle()
    bench.store.maintain(0)
    drain(bench.store)
    snapshot, checkpoint = load_snapshot(bench.directory / "state"), load_checkpoint(bench.directory)
    assert snapshot is not None
    assert checkpoint is not None
    assert snapshot.position == checkpoint.position == bench.store.end_position
    assert not checkpoint.clean
    assert (bench.directory / "log" / ".next").exists()
    bench.close()
    checkpoint = load_checkpoint(bench.directory)
    assert checkpoint is not None
    assert checkpoint.clean
    assert not (bench.directory / "log" / ".next").exists()


def test_much_state_is_not_written_again_for_little_traffic(tmp_path: Path) -> None:
    """The log between two snapshots is at least four times the size of one, the one found at start included."""
    bench = StoreBench(tmp_path / "data", snapshot_log_bytes=5000)
    bench.store.append_state([StateChange(4, b"%d" % number, bytes(1000)) for number in range(7)])
    queue = bench.store.queues.open(b"q")
    bench.reopen()
    first = load_snapshot(bench.directory / "state")
    assert first is not None
    size = (bench.directory / "state" / "SNAPSHOT").stat().st_size
    made = []
    for _ in range(45):
        bench.store.append(message([queue], bytes(900)))
        bench.settle()
        bench.store.maintain(0)
        drain(bench.store)
        made.append(bench.store._parts.snapshots.saved_position)
    steps = sorted(set(made))
    assert steps[0] == first.position
    assert len(steps) == 2
    assert 4 * size < steps[1] - steps[0] < 4 * size + 2000
    bench.close()
