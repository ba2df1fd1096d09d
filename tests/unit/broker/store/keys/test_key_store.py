"""The key index of a store: appended keys are found once confirmed, as long as they are kept, after any start."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from broker.store.errors import StoreFailed
from broker.store.keys import key_store
from broker.store.keys.key_store import KeyMatches, KeyQuestion
from remoting.protocol.records.record import RecordView
from tests.sim.keyed import found, keyed_message
from tests.sim.stores import StoreBench, drain, message


def test_what_is_confirmed_is_found_and_nothing_else(tmp_path: Path) -> None:
    """The newest first; records of other topics, staged ones, and those without a queue are not found."""
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
            drain(bench.store)
    bench.settle()
    drain(bench.store)
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
    """Even few keys get a run once the queue index covers more; runs of an expired log are deleted."""
    bench = StoreBench(tmp_path / "data", retention_size_bytes=48 * 1024)
    queue = bench.store.queues.open(b"q")
    bench.store.append(keyed_message([queue], b"first", keys=b"k"))
    for n in range(40):
        bench.store.append(message([queue], b"%d" % n))
    bench.settle()
    drain(bench.store)
    bench.store.maintain(0)
    drain(bench.store)
    assert bench.store.metrics()["key_index_runs"] == 1
    assert found(bench.store, b"k") == [b"first"]
    for n in range(700):
        bench.store.append(message([queue], b"x" * 100))
        if not n % 50:
            bench.settle()
            for _ in range(4):
                bench.store.maintain(0)
                drain(bench.store)
    bench.settle()
    assert bench.store.begin_position > 0
    for _ in range(2):
        bench.store.maintain(0)
        drain(bench.store)
    assert found(bench.store, b"k") == []
    assert bench.store.metrics()["key_index_runs"] == 0
    bench.close()


def test_it_can_be_switched_off_and_on_again(tmp_path: Path) -> None:
    """Off, its files are deleted; on, everything in the log is found again, including what was written meanwhile."""
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
    """Memory is bounded: without a written run and without earlier refusals appends fail instead of growing."""
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


@pytest.fixture
def filled(tmp_path: Path) -> Any:
    """100 messages with the key k, ten at each 250 ms, some of them in runs."""
    bench = StoreBench(tmp_path / "data", key_index_entries=64)
    queue = bench.store.queues.open(b"q")
    for n in range(100):
        bench.store.append(keyed_message([queue], b"%d" % n, keys=b"k"))
        if n % 10 == 9:
            bench.clock.advance_ms(250)
    bench.settle()
    drain(bench.store)
    assert bench.store.metrics()["key_index_runs"] > 0
    yield bench
    bench.close()


def ask(bench: StoreBench, **question: Any) -> KeyMatches:
    """Look up key k of topic t."""
    assert bench.store.keys is not None
    return bench.store.keys.find(KeyQuestion(b"t", b"k", **question))


def test_the_time_bounds_are_exact_to_the_millisecond(filled: StoreBench) -> None:
    """Both ends included; inside one second, over seconds, and where nothing is."""
    start = filled.clock.now_ms() - 2500
    for begin in (0, start, start + 1, start + 250, start + 999, start + 1000, start + 3000):
        for end in (start - 1, start, start + 249, start + 250, start + 1001, start + 2250, 2**62):
            meant = [b"%d" % n for n in range(99, -1, -1) if begin <= start + n // 10 * 250 <= end]
            assert found(filled.store, b"k", begin_ms=begin, end_ms=end, count_max=200) == meant, (begin, end)


def test_records_outside_the_time_are_not_read(filled: StoreBench) -> None:
    """Only those that match, and at most one more."""
    start = filled.clock.now_ms() - 2500
    matches = ask(filled, begin_ms=start + 1000, end_ms=start + 1100)
    assert len(matches.records) == 10
    assert matches.examined <= 11


def test_count_and_bytes_end_a_look_up(filled: StoreBench) -> None:
    """At least one record whatever its size."""
    assert len(ask(filled, count_max=3).records) == 3
    size = len(ask(filled, count_max=1).records[0])
    assert len(ask(filled, bytes_max=5 * size).records) == 5
    assert len(ask(filled, bytes_max=1).records) == 1
    assert ask(filled, count_max=100).complete


def test_the_work_has_a_bound(filled: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that are read and do not match end the lookup, which is then reported as incomplete."""
    monkeypatch.setattr(key_store, "EXAMINED_MAX", 7)
    monkeypatch.setattr(key_store, "has_key", lambda view, topic, key, **_: view.body == b"2")
    matches = ask(filled)
    assert (matches.records, matches.examined, matches.complete) == ([], 7, False)


def test_equal_numbers_of_different_keys_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys of this test have one number."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    for n in range(9):
        bench.store.append(keyed_message([queue], b"%d" % n, keys=b"k%d" % (n % 3)))
    bench.settle()
    real = key_store.key_hash
    assert bench.store.keys is not None
    index = bench.store.keys._index
    every = [real(b"t", b"k%d" % n) for n in range(3)]
    find = index.find
    monkeypatch.setattr(index, "find", lambda _number, low, high: (one for n in every for one in find(n, low, high)))
    assert found(bench.store, b"k1") == [b"7", b"4", b"1"]
    bench.close()


def test_a_record_that_fails_its_checks_is_left_out_and_counted(filled: StoreBench) -> None:
    """The others are found."""
    record = ask(filled, count_max=3).records[2]
    position = RecordView(record).position
    segment = filled.store._log.segment_at(position)
    assert segment is not None
    segment.write(position + len(record) - 8, b"rot")
    matches = ask(filled, count_max=5)
    assert (len(matches.records), matches.unreadable) == (5, 1)
    assert [bytes(RecordView(one).body) for one in matches.records] == [b"99", b"98", b"96", b"95", b"94"]


def bench_of(directory: Path, count: int = 300) -> StoreBench:
    """A closed store with keys in several runs over several log files."""
    bench = StoreBench(directory, key_index_entries=64, index_merge_runs=30)
    queue = bench.store.queues.open(b"q")
    for n in range(count):
        bench.store.append(keyed_message([queue], b"%d" % n, keys=b"all k%d" % n))
    bench.settle()
    bench.close()
    return bench


def everything(bench: StoreBench) -> list[int]:
    """The messages with the key all, by their numbers."""
    return [int(body) for body in found(bench.store, b"all", count_max=1000)]


@pytest.mark.parametrize("what", ["gone", "manifest", "run", "short", "ahead", "older"])
def test_an_unreadable_index_is_rebuilt_from_the_log(tmp_path: Path, what: str) -> None:
    """Missing, a damaged MANIFEST, a damaged or missing run, one of another log, one that is behind."""
    bench = bench_of(tmp_path / "data")
    keys = tmp_path / "data" / "keys"
    runs = sorted(keys.glob("run-*"))
    assert len(runs) > 2
    if what == "gone":
        shutil.rmtree(keys)
    elif what == "manifest":
        (keys / "MANIFEST").write_bytes(b"{}\n00000000\n")
    elif what == "run":
        runs[1].write_bytes(b"\0" + runs[1].read_bytes()[1:])
    elif what == "short":
        runs[0].unlink()
    else:
        other = bench_of(tmp_path / "other", 900 if what == "ahead" else 20)
        shutil.rmtree(keys)
        shutil.copytree(other.directory / "keys", keys)
    bench.open()
    assert everything(bench) == list(range(299, -1, -1))
    assert found(bench.store, b"k17") == [b"17"]
    bench.reopen()
    assert everything(bench) == list(range(299, -1, -1))
    bench.close()


def test_damage_in_the_log_costs_only_the_keys_after_it_in_its_file(tmp_path: Path) -> None:
    """A rebuild continues with the next log file."""
    bench = bench_of(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "keys")
    log = sorted((tmp_path / "data" / "log").iterdir())
    data = bytearray(log[0].read_bytes())
    data[5000] ^= 1
    log[0].write_bytes(data)
    bench.open()
    left = everything(bench)
    assert 0 < len(left) < 300
    assert left[:50] == list(range(299, 249, -1))
    assert left[-1] == 0
    bench.close()
