"""Reads by position, bounds and limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.errors import CorruptLog
from remoting.protocol.record import RecordView
from tests.sim.stores import StoreBench, bodies, message


def test_read_at(tmp_path: Path) -> None:
    """A confirmed record by its position; nothing above the confirm position; no record inside another."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.open_queue(b"q")
    bench.settle()
    first = bench.store.append([message([queue], b"x")]).first_position
    assert bench.store.read_at(first) is None
    bench.settle()
    record = bench.store.read_at(first)
    assert record is not None
    assert bytes(RecordView(record, 0).body) == b"x"
    assert bench.store.read_at(1 << 50) is None
    with pytest.raises(CorruptLog):
        bench.store.read_at(first + 8)
    bench.close()


@pytest.mark.parametrize("check", [True, False])
def test_limits_by_count_and_bytes(tmp_path: Path, check: bool) -> None:
    """At most so many records and bytes, but always one; over runs, tail and segments alike."""
    bench = StoreBench(tmp_path / "data", check_on_read=check)
    queue = bench.store.open_queue(b"q")
    for n in range(700):
        bench.store.append([message([queue], b"%03d" % n)])
    bench.settle()
    size = len(bench.store.read(queue, 0, 1, 1).records[0])
    for offset in (0, 31, 32, 33, 255, 256, 600, 690, 699):
        for count, bytes_max in ((1, 1 << 20), (40, 1 << 20), (1000, 10 * size), (1000, 10 * size - 1), (300, 1 << 20)):
            result = bench.store.read(queue, offset, count, bytes_max)
            expected = min(count, bytes_max // size, 700 - offset)
            assert len(result.records) == expected
            assert result.next_offset == offset + expected
            got = [int(bytes(RecordView(record, 0).body)) for record in result.records]
            assert got == list(range(offset, offset + expected))
    assert len(bodies(bench.store, queue)) == 700
    bench.close()
