"""When key runs are written, what a failure leaves, and that file ids are never reused."""

from __future__ import annotations

import errno
from pathlib import Path

from broker.store.keys.key_manifest import load_key_manifest
from tests.sim.keyed import found, keyed_message
from tests.sim.stores import StoreBench


def test_a_full_disk_while_writing_a_run_loses_nothing(tmp_path: Path) -> None:
    """Appends are refused until there is room; then the run is written."""
    bench = StoreBench(tmp_path / "data", key_index_entries=128)
    queue = bench.store.queues.open(b"q")
    bench.faults.arm("keys.write", OSError(errno.ENOSPC, "full"))
    for n in range(20):
        bench.store.append(keyed_message([queue], b"%d" % n, keys=b"a b c d k%d" % n))
    bench.store._site.thread.drain()
    assert bench.store.disk.full
    assert bench.store.metrics()["key_index_runs"] == 0
    bench.store.maintain(0)
    assert not bench.store.disk.full
    bench.store.append(keyed_message([queue], b"20", keys=b"a"))
    bench.settle()
    bench.store.maintain(0)
    bench.store._site.thread.drain()
    assert bench.store.metrics()["key_index_runs"] >= 1
    assert len(found(bench.store, b"a")) == 21
    bench.reopen()
    assert len(found(bench.store, b"a")) == 21
    bench.close()


def test_a_failure_before_the_manifest_leaves_a_file_nobody_names(tmp_path: Path) -> None:
    """The next start takes the keys from the log again; nothing is there twice."""
    bench = StoreBench(tmp_path / "data", key_index_entries=64)
    queue = bench.store.queues.open(b"q")
    bench.faults.arm("keys.manifest", ValueError("killed here"))
    for n in range(60):
        bench.store.append(keyed_message([queue], b"%d" % n, keys=b"a k%d" % n))
    bench.settle()
    bench.store._site.thread.drain()
    bench.reopen()
    assert found(bench.store, b"a", count_max=100) == [b"%d" % n for n in range(59, -1, -1)]
    assert found(bench.store, b"k3") == [b"3"]
    bench.close()


def test_the_manifest_names_what_is_there_and_ids_rise(tmp_path: Path) -> None:
    """Through runs, merges and restarts."""
    bench, seen = StoreBench(tmp_path / "data", key_index_entries=64), 0
    queue, keys = bench.store.queues.open(b"q"), tmp_path / "data" / "keys"
    for n in range(1000):
        bench.store.append(keyed_message([queue], b"%d" % n, keys=b"k%d" % n))
        if n % 100 == 99:
            bench.settle()
            bench.store._site.thread.drain()
            manifest = load_key_manifest(keys)
            assert manifest is not None
            assert manifest.next_file_id > max(manifest.runs)
            assert manifest.next_file_id >= seen
            assert {path.name for path in keys.glob("run-*")} == {f"run-{number:010d}" for number in manifest.runs}
            assert manifest.end_position <= bench.store.positions.flushed
            seen = manifest.next_file_id
        if n % 250 == 249:
            bench.settle()
            bench.reopen()
    assert bench.store.metrics()["key_index_runs"] < 12
    bench.close()


def test_a_run_never_holds_more_than_it_says(tmp_path: Path) -> None:
    """Also when one append fills it many times over; else a start would take keys in twice."""
    bench = StoreBench(tmp_path / "data", key_index_entries=64)
    queue = bench.store.queues.open(b"q")
    bench.store.append(*[keyed_message([queue], b"%d" % n, keys=b"k%d" % n) for n in range(500)])
    bench.settle()
    bench.store._site.thread.drain()
    assert bench.store.keys is not None
    runs = bench.store.keys._index.runs
    assert sum(run.entry_count for run in runs) == 500
    for run in runs:
        assert run.first_position <= run.positions.min()
        assert run.positions.max() < run.end_position
    bench.close()
