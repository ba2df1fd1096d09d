"""Reads by offset, by position and by time: bounds and limits."""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import pytest

from broker.store.errors import CorruptLog
from broker.store.index import reader
from broker.store.index.absence import Absence
from broker.store.index.reader import NO_SUCH_QUEUE, OFFSET_TOO_LARGE, OFFSET_TOO_SMALL, OK, ReadResult
from broker.store.placed import Placed
from remoting.native import core as native
from remoting.protocol.records.record import RecordView
from tests.sim.batches import FLAGS_BATCH
from tests.sim.stores import StoreBench, bodies, message


def test_read_at(tmp_path: Path) -> None:
    """A confirmed record by its position; nothing above the confirm position; no record inside another."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    bench.settle()
    first = bench.store.append(message([queue], b"x")).first_position
    assert bench.store.reading.read_at(first) is Absence.NOT_YET
    bench.settle()
    record = bench.store.reading.read_at(first)
    assert isinstance(record, memoryview)
    assert bytes(RecordView(record, 0).body) == b"x"
    assert bench.store.reading.read_at(1 << 50) is Absence.NOT_YET
    assert bench.store.reading.read_at(first + 8) is Absence.DAMAGED
    bench.close()


@pytest.mark.parametrize("check", [True, False])
def test_limits_by_count_and_bytes(tmp_path: Path, check: bool) -> None:
    """At most so many records and bytes, but always one; over runs, tail and segments alike."""
    bench = StoreBench(tmp_path / "data", check_on_read=check)
    queue = bench.store.queues.open(b"q")
    for n in range(700):
        bench.store.append(message([queue], b"%03d" % n))
    bench.settle()
    size = len(bench.store.reading.read(queue, 0, 1, 1).records[0])
    for offset in (0, 31, 32, 33, 255, 256, 600, 690, 699):
        for count, bytes_max in ((1, 1 << 20), (40, 1 << 20), (1000, 10 * size), (1000, 10 * size - 1), (300, 1 << 20)):
            result = bench.store.reading.read(queue, offset, count, bytes_max)
            expected = min(count, bytes_max // size, 700 - offset)
            assert len(result.records) == expected
            assert result.next_offset == offset + expected
            got = [int(bytes(RecordView(record, 0).body)) for record in result.records]
            assert got == list(range(offset, offset + expected))
    assert len(bodies(bench.store, queue)) == 700
    bench.close()


def test_a_range_over_runs_tail_and_segments_equals_single_reads(tmp_path: Path) -> None:
    """The records are contiguous, with the start of each, within both limits."""
    bench = StoreBench(tmp_path / "data")
    queue, other = bench.store.queues.open(b"q"), bench.store.queues.open(b"other")
    for n in range(700):
        bench.store.append(message([queue], b"x" * (n % 3 * 8)), message([other], b"between"))
    bench.settle()
    singles = [bytes(record) for record in bench.store.reading.read(queue, 0, 700, 1 << 20).records]
    for offset, end, bytes_max in (
        (0, 700, 1 << 20),
        (31, 650, 1 << 20),
        (650, 9999, 1 << 20),
        (7, 600, 5000),
        (3, 9, 1),
    ):
        found = bench.store.reading.read_range(queue, offset, 10_000, bytes_max, end)
        wanted = singles[offset : min(end, 700)]
        assert found.next_offset == offset + len(found.starts)
        assert len(found.blob) <= bytes_max or len(found.starts) == 1
        whole = b"".join(wanted[: len(found.starts)])
        assert found.blob == whole
        assert found.starts.tolist() == [len(b"".join(wanted[:n])) for n in range(len(found.starts))]
        if bytes_max == 1 << 20:
            assert len(found.starts) == len(wanted)
    assert len(bench.store.reading.read_range(queue, 700, 10, 100, 800).starts) == 0
    assert bench.store.reading.read_range(queue, 701, 10, 100, 800).status == OFFSET_TOO_LARGE
    assert bench.store.reading.read_range(99, 0, 10, 100, 800).status == NO_SUCH_QUEUE
    bench.close()


def test_a_range_never_returns_what_is_not_a_record(tmp_path: Path) -> None:
    """A size or position that contradicts the index is corruption, named by file and position."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    placed = bench.store.append(*[message([queue], b"x") for _ in range(3)])
    bench.settle()
    path = next((tmp_path / "data").rglob(f"{0:020d}"))
    second = RecordView(bench.store.reading.read(queue, 1, 1, 1).records[0]).position
    with path.open("r+b") as file:
        file.seek(second)
        file.write(b"\x10")
    with pytest.raises(CorruptLog, match="no record of the size"):
        bench.store._parts.reader.read_range(queue, 0, 10, 1 << 20, 3)
    assert placed.first_position < second
    bench.close()


def test_the_last_message_of_a_batch_alone(tmp_path: Path) -> None:
    """One record for one offset, and yet the record begins before it: its base is returned."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    batch = message([queue], b"x", flags=FLAGS_BATCH, count=5)
    bench.store.append(batch, message([queue], b"y"))
    bench.settle()
    for offset, bases in ((4, [0, 5]), (5, None)):
        read = bench.store.reading.read(queue, offset, 10, 10_000)
        ranged = bench.store.reading.read_range(queue, offset, 10, 10_000, 99)
        assert (read.first_offset, read.next_offset, read.bases) == (offset, 6, bases)
        assert (ranged.first_offset, ranged.next_offset) == (offset, 6)
        assert (None if ranged.bases is None else ranged.bases.tolist()) == bases
    bench.close()


def batch(queues: list[int], count: int, body: bytes) -> Placed:
    """A batch record of this many messages."""
    return message(queues, body, flags=FLAGS_BATCH, count=count)


def test_reads_from_the_middle_of_a_batch(tmp_path: Path) -> None:
    """Every offset of a queue of batches and single messages, from runs and tail, with limits of both kinds."""
    bench = StoreBench(tmp_path / "data")
    queue, other = bench.store.queues.open(b"q"), bench.store.queues.open(b"other")
    counts = [1, 5, 1, 40, 2, 1] * 12
    for n, count in enumerate(counts):
        one = batch([queue, other], count, b"%d" % n) if count > 1 else message([queue, other], b"%d" % n)
        bench.store.append(one)
    bench.settle()
    assert len(bench.store._parts.opened.index.runs) > 0
    ends = list(accumulate(counts))
    begins = [end - count for end, count in zip(ends, counts, strict=True)]
    assert bench.store.reading.bounds(queue) == (0, ends[-1])
    for offset in range(0, ends[-1], 3):
        first = bisect_right(begins, offset) - 1
        for wanted, end in ((1, None), (3, None), (50, None), (300, None), (300, offset + 7)):
            last = first
            while last + 1 < len(counts) and ends[last + 1] <= offset + wanted and begins[last + 1] < (end or ends[-1]):
                last += 1
            for queue_id in (queue, other):
                found = bench.store.reading.read(queue_id, offset, wanted, 1 << 20, end)
                piece = bench.store.reading.read_range(queue_id, offset, wanted, 1 << 20, end or ends[-1])
                said = begins[first : last + 1]
                got = [int(bytes(RecordView(record, 0).body)) for record in found.records]
                assert got == list(range(first, last + 1))
                assert (found.first_offset, found.next_offset) == (offset, ends[last])
                assert (found.bases or list(range(offset, ends[last]))) == said
                assert (piece.first_offset, piece.next_offset, len(piece.starts)) == (offset, ends[last], len(got))
                assert (list(range(offset, ends[last])) if piece.bases is None else piece.bases.tolist()) == said
                assert piece.blob == b"".join(found.records)
    bench.close()


def test_time_search_among_batches(tmp_path: Path) -> None:
    """The answer is the first message of a record, never one inside it."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    for count in (1, 7, 1, 30, 2):
        bench.clock.advance_ms(10)
        bench.store.append(batch([queue], count, b"x"))
    bench.settle()
    last = bench.clock.now_ms()
    begins = [0, 1, 8, 9, 39, 41]
    for n in range(5):
        when = last - 40 + 10 * n
        assert bench.store.reading.search_time(queue, when) == begins[n]
        assert bench.store.reading.search_time(queue, when, True) == begins[n + 1]
        assert bench.store.reading.search_time(queue, when - 5) == begins[n]
    bench.close()


def test_a_hole_is_corruption_with_its_offsets(tmp_path: Path) -> None:
    """What precedes it is read; at it the queue's offsets are named; after it reading continues."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    bench.store.append(message([queue], b"0"), message([queue], b"1"))
    index, position = bench.store._parts.opened.index, bench.store.end_position
    hole = native.core.make_block([queue], [2], [position], [0], [0], [4])
    assert index.tail.ring.claim(hole, 0, queue + 1) == 1
    index.append(hole, position)
    bench.store.append(message([queue], b"6"))
    bench.settle()
    assert bench.store.reading.bounds(queue) == (0, 7)
    assert bench.store.reading.read(queue, 0, 10, 1 << 20).next_offset == 2
    assert bench.store.reading.read_range(queue, 0, 10, 1 << 20, 7).next_offset == 2
    for offset in (2, 5):
        with pytest.raises(CorruptLog, match=f"offsets 2 to 5 of queue {queue} lie in a damaged stretch"):
            bench.store.reading.read(queue, offset, 10, 1 << 20)
        with pytest.raises(CorruptLog, match="offsets 2 to 5"):
            bench.store.reading.read_range(queue, offset, 10, 1 << 20, 7)
    assert bench.store.reading.read(queue, 6, 10, 1 << 20).next_offset == 7
    assert bench.store.reading.search_time(queue, 0) == 0
    assert bench.store.reading.search_time(queue, bench.clock.now_ms(), True) == 7
    bench.close()


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
    """Over tail, runs and log files; for times between, at, before and after the records, both boundaries."""
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


def test_few_records_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even times: about five probes in a queue of 4,000; the times of the log files are cached."""
    start = 2 * 10**12
    times = [start + 7 * n for n in range(4000)]
    bench, queue = filled(tmp_path / "data", times, segment_size_bytes=256 * 1024, index_tail_entries=1024)
    looks: list[int] = []
    real = reader.stored_ms
    monkeypatch.setattr(reader, "stored_ms", lambda log, position: looks.append(position) or real(log, position))
    bench.store.reading.search_time(queue, times[777])
    assert len(looks) < 20
    looks.clear()
    for n in range(0, 4000, 100):
        assert bench.store.reading.search_time(queue, times[n]) == n
    assert len(looks) / 40 < 8, len(looks) / 40
    bench.close()


def test_expired_and_unreadable_records_are_skipped(tmp_path: Path) -> None:
    """A record that can no longer be read counts like its neighbours; the answer is at most that far off."""
    times = [2 * 10**12 + 10 * n for n in range(60)]
    bench, queue = filled(tmp_path / "data", times)
    positions = [RecordView(record).position for record in bench.store.reading.read(queue, 0, 60, 1 << 20).records]
    log = bench.store._log
    for number in (17, 18, 40):
        segment = log.segment_at(positions[number])
        segment.write(positions[number], bytes(48))
        assert reader.stored_ms(log, positions[number]) is None
    assert reader.stored_ms(log, positions[5]) == times[5]
    assert reader.stored_ms(log, 1 << 40) is None
    for n in range(60):
        meant = {17: {17, 18, 19}, 18: {17, 18, 19}, 19: {17, 18, 19}, 40: {40, 41}, 41: {40, 41}}.get(n, {n})
        assert bench.store.reading.search_time(queue, times[n]) in meant, n
    bench.close()


def test_an_empty_queue_has_its_end(tmp_path: Path) -> None:
    """A queue without records."""
    bench, _ = filled(tmp_path / "data", [])
    queue = bench.store.queues.open(b"fresh")
    bench.settle()
    assert bench.store.reading.search_time(queue, 5) == 0
    bench.close()


def test_statuses_are_those_on_the_wire() -> None:
    """The pull reply carries these numbers."""
    assert (OK, OFFSET_TOO_SMALL, NO_SUCH_QUEUE, OFFSET_TOO_LARGE) == (0, 1, 2, 3)
    assert ReadResult(OK, 1, 1, 0, 9).records == []
