"""Look-ups: times, counts, sizes, colliding numbers, damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.store.keys import key_store
from broker.store.keys.key_store import KeyMatches, KeyQuestion
from remoting.protocol.records.record import RecordView
from tests.sim.keyed import found, keyed_message
from tests.sim.stores import StoreBench


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
    bench.store._site.thread.drain()
    assert bench.store.metrics()["key_index_runs"] > 0
    yield bench
    bench.close()


def ask(bench: StoreBench, **question: Any) -> KeyMatches:
    """Look k of topic t up."""
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
    """Records that are read and do not match end the look-up, and it says so."""
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
