"""Readers around damage: nothing is skipped silently, no reader is stuck."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.errors import UnreadableOffsets
from broker.store.recovery.log_end import load_quarantine
from remoting.protocol.records.record import RecordView
from tests.sim.log_judge import Seen, read_log
from tests.sim.stores import StoreBench, drain, message

BATCH = 1 << 8


@pytest.fixture
def bench(tmp_path: Path) -> StoreBench:
    """A store with two queues: one record of `other` after every record of `q`, one of which is a batch of 10."""
    made = StoreBench(tmp_path / "data", segment_size_bytes=64 * 1024)
    queue, other = made.store.queues.open_all([b"q", b"other"])
    batch = message([queue], b"batch", flags=BATCH, count=10)
    for n in range(20):
        made.store.append(batch if n == 9 else message([queue], b"%d" % n), message([other], b"o"))
    made.settle()
    return made


def rot(bench: StoreBench, *victims: Seen) -> None:
    path = bench.directory / "log" / "0".zfill(20)
    with path.open("r+b") as file:
        for victim in victims:
            file.seek(victim.position + 100)
            file.write(b"?")


def of_queue(bench: StoreBench, queue: int) -> list[Seen]:
    return [seen for seen in read_log(bench.directory) if seen.dispatch and seen.dispatch[0][0] == queue]


def read_all(bench: StoreBench, queue: int, *, ranges: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
    """First offsets of the records read, and the unreadable ranges."""
    at, high = bench.store.reading.bounds(queue)
    read, missing = [], []
    while at < high:
        try:
            if ranges:
                found = bench.store.reading.read_range(queue, at, 1000, 1 << 20, high)
                count = len(found.starts)
            else:
                found = bench.store.reading.read(queue, at, 1000, 1 << 20)
                count = len(found.records)
        except UnreadableOffsets as error:
            missing.append((error.first_offset, error.next_offset))
            at = error.next_offset
        else:
            bases = range(at, at + count) if found.bases is None else found.bases
            read += [int(base) for base in bases]
            at = found.next_offset
    return read, missing


def test_one_record_and_its_neighbours(bench: StoreBench) -> None:
    """Before it, the refusal, after it; recorded once, counted each time."""
    victim = of_queue(bench, 0)[4]
    rot(bench, victim)
    assert read_all(bench, 0) == ([0, 1, 2, 3, *range(5, 10), *range(19, 29)], [(4, 5)])
    assert read_all(bench, 1) == (list(range(20)), [])
    drain(bench.store)
    (known,) = load_quarantine(bench.directory)
    assert (known.start, known.end) == (victim.position, victim.end)
    read_all(bench, 0)
    assert bench.store.metrics()["damaged_reads_total"] == 2
    assert bench.store.metrics()["quarantined_bytes"] == victim.end - victim.position
    bench.close()


def test_a_damaged_batch_is_one_range(bench: StoreBench) -> None:
    """Also when the read begins in its middle."""
    rot(bench, of_queue(bench, 0)[9])
    assert read_all(bench, 0) == ([*range(9), *range(19, 29)], [(9, 19)])
    with pytest.raises(UnreadableOffsets, match="offsets 12 to 18") as told:
        bench.store.reading.read(0, 12, 10, 1 << 20)
    assert told.value.next_offset == 19
    bench.close()


def test_damage_to_the_end_of_the_queue(bench: StoreBench) -> None:
    """The reader continues at the end and gets what comes then."""
    rot(bench, *of_queue(bench, 0)[17:])
    assert read_all(bench, 0)[1] == [(26, 29)]
    bench.store.append(message([0], b"new"))
    bench.settle()
    found = bench.store.reading.read(0, 29, 10, 1 << 20)
    assert bytes(RecordView(found.records[0]).body) == b"new"
    bench.close()


def test_ranges_leave_out_known_damage(bench: StoreBench) -> None:
    """A range checks no checksums, but known damage is left out."""
    rot(bench, of_queue(bench, 0)[4])
    assert read_all(bench, 0, ranges=True)[1] == []
    read_all(bench, 0)
    assert read_all(bench, 0, ranges=True) == ([0, 1, 2, 3, *range(5, 10), *range(19, 29)], [(4, 5)])
    bench.close()


def test_the_next_start_knows_it(bench: StoreBench) -> None:
    """And logs nothing twice."""
    rot(bench, of_queue(bench, 0)[4])
    read_all(bench, 0)
    bench.reopen()
    assert read_all(bench, 0)[1] == [(4, 5)]
    assert all(each.settled for each in bench.store.quarantined)
    end = bench.store.end_position
    bench.reopen()
    assert bench.store.end_position == end
    bench.close()


def test_a_piece_is_read_where_somebody_asks(bench: StoreBench) -> None:
    """As a master does for a replica that comes again; damage further on than a piece is for the passes."""
    first, victim = of_queue(bench, 0)[2], of_queue(bench, 0)[4]
    rot(bench, victim)
    for outside in (bench.store.end_position, bench.store.end_position + 80):
        bench.store.replica.examine(outside)
    bench.store.replica.examine(victim.end)
    drain(bench.store)
    assert not bench.store.quarantined
    bench.store.replica.examine(first.position)
    bench.store.replica.examine(first.position)
    drain(bench.store)
    (known,) = bench.store.quarantined
    assert (known.start, known.end) == (victim.position, victim.end)
    bench.close()


@pytest.mark.parametrize("size", [0, 40, 2**31])
def test_a_size_that_cannot_be_one_is_damage_and_not_sent(bench: StoreBench, size: int) -> None:
    """The pieces of a log for its replicas end where the sizes of its records say."""
    victim = of_queue(bench, 0)[4]
    path = bench.directory / "log" / "0".zfill(20)
    with path.open("r+b") as file:
        file.seek(victim.position)
        file.write(size.to_bytes(4, "little"))
    assert bench.store.replica.raw(0, victim.position).end == victim.position
    assert bench.store.replica.raw(0, victim.position + 1) is None
    drain(bench.store)
    (known,) = bench.store.quarantined
    assert known.start == victim.position
    bench.close()
