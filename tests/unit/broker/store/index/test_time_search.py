"""A time finds its offset exactly, and with few looks at the log."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from broker.store.index import time_search
from remoting.protocol.records.record import RecordView
from tests.sim.stores import StoreBench, message


def filled(directory: Path, times: list[int], **settings: object) -> tuple[StoreBench, int]:
    """A store whose queue has one record per time, with records of another queue between them."""
    bench = StoreBench(directory, **settings)
    queue, other = bench.store.queues.open(b"q"), bench.store.queues.open(b"other")
    for ms in times:
        bench.clock.advance_ms(ms - bench.clock.now_ms())
        bench.store.append(message([other], b"between"), message([queue], b"x"))
    bench.settle()
    return bench, queue


@pytest.mark.parametrize("seed", range(3))
def test_every_time_finds_what_counting_finds(tmp_path: Path, seed: int) -> None:
    """Over tail, runs and log files; for times between, at, before and behind the records, both boundaries."""
    choice = random.Random(seed)
    at, times = StoreBench(tmp_path / "clock").clock.now_ms(), []
    for _ in range(500):
        at += choice.choice([0, 0, 0, 1, 1, 2, 50, 4000 if seed == 1 else 3])
        times.append(at)
    bench, queue = filled(tmp_path / "data", times)
    assert len(bench.store._log.segments) > 3
    for ms in {*times, times[0] - 1, times[-1] + 1, *(one + 1 for one in times)}:
        assert bench.store.reading.search_time(queue, ms) == sum(one < ms for one in times), ms
        assert bench.store.reading.search_time(queue, ms, upper=True) == sum(one <= ms for one in times), ms
    bench.close()


def test_few_records_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even times: about five looks in a queue of 4,000; the times of the log files are remembered."""
    start = 2 * 10**12
    times = [start + 7 * n for n in range(4000)]
    bench, queue = filled(tmp_path / "data", times, segment_size_bytes=256 * 1024, index_tail_entries=1024)
    looks: list[int] = []
    real = time_search.stored_ms
    monkeypatch.setattr(time_search, "stored_ms", lambda log, position: looks.append(position) or real(log, position))
    bench.store.reading.search_time(queue, times[777])
    assert len(looks) < 20
    looks.clear()
    for n in range(0, 4000, 100):
        assert bench.store.reading.search_time(queue, times[n]) == n
    assert len(looks) / 40 < 8, len(looks) / 40
    bench.close()


def test_expired_and_unreadable_records_are_passed_over(tmp_path: Path) -> None:
    """A record that is no record any more counts as its neighbours; the answer is at most that far off."""
    times = [2 * 10**12 + 10 * n for n in range(60)]
    bench, queue = filled(tmp_path / "data", times)
    positions = [RecordView(record).position for record in bench.store.reading.read(queue, 0, 60, 1 << 20).records]
    log = bench.store._log
    for number in (17, 18, 40):
        segment = log.segment_at(positions[number])
        segment.write(positions[number], bytes(48))
        assert time_search.stored_ms(log, positions[number]) is None
    assert time_search.stored_ms(log, positions[5]) == times[5]
    assert time_search.stored_ms(log, 1 << 40) is None
    for n in range(60):
        meant = {17: {17, 18, 19}, 18: {17, 18, 19}, 19: {17, 18, 19}, 40: {40, 41}, 41: {40, 41}}.get(n, {n})
        assert bench.store.reading.search_time(queue, times[n]) in meant, n
    bench.close()


def test_an_empty_queue_has_its_end(tmp_path: Path) -> None:
    """Nothing to look at."""
    bench, _ = filled(tmp_path / "data", [])
    queue = bench.store.queues.open(b"fresh")
    bench.settle()
    assert bench.store.reading.search_time(queue, 5) == 0
    bench.close()
