"""The key index as part of the store: what is appended is found, once it is confirmed and as long as it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.errors import StoreFailed
from tests.sim.keyed import found, keyed_message
from tests.sim.stores import StoreBench, message


def test_what_is_confirmed_is_found_and_nothing_else(tmp_path: Path) -> None:
    """The newest first; another topic's, staged, and queueless records are not there."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    bench.settle()
    bench.store.append(keyed_message([queue], b"one", keys=b"k other", unique=b"id1"))
    assert found(bench.store, b"k") == []
    bench.settle()
    bench.store.append(
        keyed_message([queue], b"two", keys=b"k"), keyed_message([queue], b"three", keys=b"k", topic=b"u"),
        keyed_message([], b"no queue", keys=b"k"), keyed_message([queue], b"staged", keys=b"k", flags=0x20),
        message([queue], b"plain"),
    )  # fmt: skip
    bench.settle()
    assert found(bench.store, b"k") == [b"two", b"one"]
    assert found(bench.store, b"k", topic=b"u") == [b"three"]
    assert found(bench.store, b"id1") == found(bench.store, b"id1", unique_only=True) == [b"one"]
    assert found(bench.store, b"k", unique_only=True) == []
    bench.close()


def test_keys_survive_a_restart_and_a_merge(tmp_path: Path) -> None:
    """In memory, in runs, in merged runs: the same answers, also from the log alone."""
    bench = StoreBench(tmp_path / "data", key_index_entries=64)
    queue = bench.store.queues.open(b"q")
    for n in range(900):
        bench.store.append(keyed_message([queue], b"%d" % n, keys=b"k%d" % (n % 10), unique=b"id%d" % n))
        if not n % 300:
            bench.settle()
            bench.store._site.thread.drain()
    bench.settle()
    bench.store._site.thread.drain()
    metrics = bench.store.metrics()
    assert metrics["key_index_entries"] == 1800
    assert metrics["key_index_merges_total"] > 0
    for _ in range(2):
        assert found(bench.store, b"k7", count_max=1000) == [b"%d" % n for n in range(897, 0, -10)]
        assert found(bench.store, b"id333") == [b"333"]
        assert found(bench.store, b"id900") == []
        bench.reopen()
    names = {path.name for path in (tmp_path / "data" / "keys").iterdir()}
    assert len(names) == bench.store.metrics()["key_index_runs"] + 1
    assert found(bench.store, b"k7", count_max=2) == [b"897", b"887"]
    bench.close()


def test_upkeep_covers_what_the_queue_index_has_and_drops_what_expired(tmp_path: Path) -> None:
    """A run for few keys too once the queue index has gone further; runs of an expired log go."""
    bench = StoreBench(tmp_path / "data", retention_size_bytes=48 * 1024)
    queue = bench.store.queues.open(b"q")
    bench.store.append(keyed_message([queue], b"first", keys=b"k"))
    for n in range(40):
        bench.store.append(message([queue], b"%d" % n))
    bench.settle()
    bench.store._site.thread.drain()
    bench.store.maintain(0)
    bench.store._site.thread.drain()
    assert bench.store.metrics()["key_index_runs"] == 1
    assert found(bench.store, b"k") == [b"first"]
    for n in range(700):
        bench.store.append(message([queue], b"x" * 100))
        if not n % 50:
            bench.settle()
            for _ in range(4):
                bench.store.maintain(0)
                bench.store._site.thread.drain()
    bench.settle()
    assert bench.store.begin_position > 0
    for _ in range(2):
        bench.store.maintain(0)
        bench.store._site.thread.drain()
    assert found(bench.store, b"k") == []
    assert bench.store.metrics()["key_index_runs"] == 0
    bench.close()


def test_it_can_be_switched_off_and_on_again(tmp_path: Path) -> None:
    """Off, its files go; on, everything in the log is found again, what was written meanwhile too."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    bench.store.append(keyed_message([queue], b"one", keys=b"k"))
    bench.close()
    assert (tmp_path / "data" / "keys").exists()
    off = StoreBench(tmp_path / "data", key_index=False)
    assert off.store.keys is None
    assert "key_index_runs" not in off.store.metrics()
    assert not (tmp_path / "data" / "keys").exists()
    off.store.append(keyed_message([queue], b"two", keys=b"k"))
    off.settle()
    off.store.maintain(0)
    off.close()
    bench.open()
    assert found(bench.store, b"k") == [b"two", b"one"]
    bench.close()


def test_an_index_that_cannot_be_written_stops_the_store(tmp_path: Path) -> None:
    """Memory is bounded: with no run written and nothing refused before, appends fail instead of growing."""
    bench = StoreBench(tmp_path / "data", key_index_entries=64)
    queue = bench.store.queues.open(b"q")
    bench.faults.arm("keys.write", ValueError("no such thing"), times=None)
    many = [keyed_message([queue], b"%d" % n, keys=b"k%d" % n) for n in range(2000)]
    with pytest.raises(StoreFailed, match="key index is full"):
        bench.store.append(*many)
    bench.faults.disarm("keys.write")
    bench.close()
    bench.open()
    assert found(bench.store, b"k5") == [b"5"]
    bench.close()
