"""Reads by position, bounds and limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.errors import CorruptLog
from broker.store.read_result import NO_SUCH_QUEUE, OFFSET_TOO_LARGE
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


def test_a_range_over_runs_tail_and_segments_is_what_single_reads_give(tmp_path: Path) -> None:
    """The records lie back to back in one piece, with the start of each, within both limits."""
    bench = StoreBench(tmp_path / "data")
    queue, other = bench.store.open_queue(b"q"), bench.store.open_queue(b"other")
    for n in range(700):
        bench.store.append([message([queue], b"x" * (n % 3 * 8)), message([other], b"between")])
    bench.settle()
    singles = [bytes(record) for record in bench.store.read(queue, 0, 700, 1 << 20).records]
    for offset, end, bytes_max in (
        (0, 700, 1 << 20),
        (31, 650, 1 << 20),
        (650, 9999, 1 << 20),
        (7, 600, 5000),
        (3, 9, 1),
    ):
        found = bench.store.read_range(queue, offset, 10_000, bytes_max, end)
        wanted = singles[offset : min(end, 700)]
        assert found.next_offset == offset + len(found.starts)
        assert len(found.blob) <= bytes_max or len(found.starts) == 1
        whole = b"".join(wanted[: len(found.starts)])
        assert found.blob == whole
        assert found.starts.tolist() == [len(b"".join(wanted[:n])) for n in range(len(found.starts))]
        if bytes_max == 1 << 20:
            assert len(found.starts) == len(wanted)
    assert len(bench.store.read_range(queue, 700, 10, 100, 800).starts) == 0
    assert bench.store.read_range(queue, 701, 10, 100, 800).status == OFFSET_TOO_LARGE
    assert bench.store.read_range(99, 0, 10, 100, 800).status == NO_SUCH_QUEUE
    bench.close()


def test_a_range_never_hands_out_what_is_no_record(tmp_path: Path) -> None:
    """A size or position that contradicts the index is corruption, named by file and position."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.open_queue(b"q")
    placed = bench.store.append([message([queue], b"x") for _ in range(3)])
    bench.settle()
    path = next((tmp_path / "data").rglob(f"{0:020d}"))
    second = RecordView(bench.store.read(queue, 1, 1, 1).records[0]).position
    with path.open("r+b") as file:
        file.seek(second)
        file.write(b"\x10")
    with pytest.raises(CorruptLog, match="no record of the size"):
        bench.store.read_range(queue, 0, 10, 1 << 20, 3)
    assert placed.first_position < second
    bench.close()
