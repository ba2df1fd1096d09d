"""Encoding batches: offsets, fillers, limits, nothing changed on refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoting.protocol.errors import LocalMisuse, RecordTooLarge
from tests.sim.log_judge import check_dense, read_log
from tests.sim.stores import StoreBench, message


@pytest.fixture
def bench(tmp_path: Path):
    made = StoreBench(tmp_path / "data", segment_size_bytes=4096)
    yield made
    made.close()


def test_every_size_around_the_end_of_a_segment(bench: StoreBench) -> None:
    """Whatever is left at the end of a file, records stay whole and the queues dense."""
    queue = bench.store.queues.open(b"q")
    for size in [*range(0, 400, 8), *range(1800, 1900, 8)]:
        bench.store.append(message([queue], bytes(size)), message([queue], bytes(64)))
    bench.settle()
    bench.reopen()
    records = [seen for seen in read_log(bench.directory) if seen.kind == 1]
    assert check_dense(records) == {queue: len(records)}
    assert len(records) == 2 * (50 + 13)
    assert bench.store.reading.bounds(queue) == (0, len(records))


def test_refusals_change_nothing(bench: StoreBench) -> None:
    """Too large, unknown queue: nothing of the batch is stored."""
    queue = bench.store.queues.open(b"q")
    end = bench.store.end_position
    good = message([queue], b"x")
    with pytest.raises(RecordTooLarge, match="2048"):
        bench.store.append(good, message([queue], bytes(2048)))
    with pytest.raises(LocalMisuse, match="does not exist"):
        bench.store.append(good, message([queue + 1], b"x"))
    assert (bench.store.end_position, bench.store.reading.next_offset(queue)) == (end, 0)
    assert bench.store.append().end_position == end


def test_a_batch_larger_than_the_tail(bench: StoreBench) -> None:
    """More entries than the tail holds: runs are cut inside the batch."""
    queues = bench.store.queues.open_all([b"a", b"b", b"c"])
    appended = bench.store.append(*[message(queues, b"%d" % n) for n in range(150)], atomic=True)
    assert appended.offsets == list(range(150))
    bench.settle()
    assert all(bench.store.reading.bounds(queue) == (0, 150) for queue in queues)
    assert len(bench.store.reading.read(queues[1], 17, 100, 1 << 20).records) == 100
