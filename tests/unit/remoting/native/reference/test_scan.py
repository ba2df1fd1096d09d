"""The read side of the twin in place: scanning, replaying, checking, copying, sorting."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.native import core as native
from remoting.native.contracts import Progress
from remoting.native.reference.scan import gather, store_second
from remoting.native.vectors import arange, column, full
from remoting.protocol.records.properties import KEYS_PER_RECORD_MAX, key_hash
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN
from tests.sim.batches import Bench, bare
from tests.sim.keyed import back_to_back
from tests.support.images import placed

START = Progress(0, 0, 0, 0, 0, group_open=False)


def log() -> tuple[bytearray, Bench]:
    """A segment of records: plain, retained, control."""
    bench = Bench(native.core, segment=4096)
    plain = placed((0, 1), b"body", tags=b"tag")
    kept = placed((1,), b"body", flags=FLAG_MQTT | FLAG_RETAIN, tags=b"tag")
    made = bench.encode([plain, kept, plain, bare(b"state")])
    return bytearray(made.pieces[0][1]), bench


def test_scan_stops_at_zeros_and_at_the_end() -> None:
    """The end of the valid bytes, and the reason."""
    data, _ = log()
    whole = native.core.scan(memoryview(data), 0, len(data), START)
    assert (whole.position, whole.records, whole.reason, whole.epoch) == (len(data), 4, "", 3)
    padded = native.core.scan(memoryview(bytes(data) + bytes(96)), 0, len(data) + 96, START)
    assert (padded.position, padded.records) == (len(data), 4)
    assert "magic" in padded.reason
    older = native.core.scan(memoryview(data), 0, len(data), Progress(0, 0, 9, 0, 0, group_open=False))
    assert (older.position, older.reason) == (0, "its epoch 3 is lower than 9 of the record before")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_no_flipped_bit_is_overlooked(data) -> None:
    """Any bit of any record: the scan ends before that record, first_bad names it."""
    segment, _ = log()
    at = data.draw(st.integers(0, len(segment) - 1))
    positions, sizes = places(segment)
    segment[at] ^= 1 << data.draw(st.integers(0, 7))
    hit = next(row for row, (p, s) in enumerate(zip(positions, sizes, strict=True)) if p <= at < p + s)
    found = native.core.scan(memoryview(segment), 0, len(segment), START)
    assert found.position == positions[hit]
    assert found.reason
    assert native.core.first_bad(memoryview(segment), 0, positions, sizes) == hit


def places(segment: bytearray) -> tuple[list[int], list[int]]:
    positions, sizes, at = [], [], 0
    while at < len(segment):
        positions.append(at)
        sizes.append(int.from_bytes(segment[at : at + 4], "little"))
        at += sizes[-1]
    return positions, sizes


def test_first_bad_checks_size_and_position() -> None:
    """A sound record of another size, or elsewhere, is not the expected one."""
    segment, _ = log()
    view = memoryview(segment)
    positions, sizes = places(segment)
    assert native.core.first_bad(view, 0, positions, sizes) == -1
    assert native.core.first_bad(view, 0, [], []) == -1
    assert native.core.first_bad(view, 0, positions, [*sizes[:2], 8, sizes[3]]) == 2
    assert native.core.first_bad(view, 0, positions, [*sizes[:3], sizes[3] + 8]) == 3
    assert native.core.first_bad(view, 8, positions, sizes) == 0
    assert native.core.first_bad(view, 0, [len(segment)], [80]) == 0


def test_the_end_of_a_record_is_found_by_the_sizes() -> None:
    segment, _ = log()
    (_, second, *_), sizes = places(segment)
    end = len(segment)
    view = memoryview(segment)
    assert native.core.record_end(view, 0, 0, 1, end) == second
    assert native.core.record_end(view, 0, 0, second, end) == second
    assert native.core.record_end(view, 0, 0, second + 1, end) == second + sizes[1]
    assert native.core.record_end(view[second:], second, second, end, end) == end
    assert native.core.record_end(view, 0, 0, second + sizes[1], second + sizes[1] - 8) == -1, "it ends behind the end"
    for wrong in (0, 72, 2**32 - 8):
        segment[second : second + 4] = wrong.to_bytes(4, "little")
        assert native.core.record_end(memoryview(segment), 0, 0, second, end) == second
        assert native.core.record_end(memoryview(segment), 0, 0, second + 1, end) == -1


def test_collect_in_pieces() -> None:
    """At most this many entries at a time; marks are changes of state; the starts are respected."""
    segment, _ = log()
    view, (positions, _) = memoryview(segment), places(segment)
    at, entries, marks = 0, [], []
    while at < len(segment):
        at, _, block, more = native.core.collect(view, 0, at, len(segment), 0, 0, 2)
        entries += zip(*block.columns(), strict=True)
        marks += more
    assert [entry[:3] for entry in entries] == [
        (0, 0, positions[0]), (1, 0, positions[0]), (1, 1, positions[1]), (0, 1, positions[2]), (1, 2, positions[2]),
    ]  # fmt: skip
    assert marks == [positions[1], positions[3]]
    _, records, block, late = native.core.collect(view, 0, 0, len(segment), positions[2], positions[3], 99)
    assert (records, len(block), late) == (4, 2, [positions[3]])


@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 5), max_size=80))
def test_order_is_stable(queues: list[int]) -> None:
    """Like Python's stable sort."""
    found = native.core.order_by_queue(column(queues, "I"))
    assert found.tolist() == sorted(range(len(queues)), key=queues.__getitem__)


def test_gather_copies_spans() -> None:
    """Back to back, in the order given."""
    source = memoryview(bytes(range(64)))
    out = bytearray(24)
    native.core.gather(source, column([40, 8], "q"), column([8, 16], "I"), memoryview(out))
    assert bytes(out) == bytes(source[40:48]) + bytes(source[8:24])


SOURCE = bytes(range(256)) * 40
SPAN = st.tuples(st.integers(0, 999), st.integers(1, 30))


@given(spans=st.lists(SPAN, max_size=40), repeats=st.integers(1, 10))
def test_any_spans(spans: list[tuple[int, int]], repeats: int) -> None:
    """Of a few distinct sizes or of many."""
    spans = spans * repeats
    starts = column([8 * start for start, _ in spans], "q")
    sizes = column([8 * size for _, size in spans], "q")
    out = bytearray(sizes.sum())
    gather(memoryview(SOURCE), starts, sizes, memoryview(out))
    pairs = zip(starts.tolist(), sizes.tolist(), strict=True)
    assert out == b"".join(SOURCE[start : start + size] for start, size in pairs)


def test_one_size_up_to_the_very_end() -> None:
    out = bytearray(8 * 20)
    starts = arange(0, 20) * 8 + (len(SOURCE) - 160)
    gather(memoryview(SOURCE), starts, full(20, 8, "q"), memoryview(out))
    assert out == SOURCE[-160:]


def test_a_span_outside_is_a_bug() -> None:
    with pytest.raises(ValueError, match="different structures"):
        gather(memoryview(SOURCE), full(9, len(SOURCE), "q"), full(9, 8, "q"), memoryview(bytearray(72)))


def test_entries_are_in_log_order_with_position_size_and_second() -> None:
    """A record with several keys gives several entries; one without keys gives none."""
    records = [
        {"keys": b"a b", "store_ms": 5999, "properties": [(b"UNIQ_KEY", b"id")]},
        {"keys": b""},
        {"keys": b"a  a", "store_ms": 7000, "topic": b"u"},
    ]
    data, positions = back_to_back(records, base=4096)
    chunk = native.core.make_key_chunk(200)
    assert chunk.take(data, 4096, 4096, 4096 + len(data)) == 4096 + len(data)
    hashes, found, sizes, seconds = (column.tolist() for column in chunk.columns())
    assert hashes == [key_hash(b"t", b"id"), key_hash(b"t", b"a"), key_hash(b"t", b"b"), key_hash(b"u", b"a")]
    assert found == [positions[0]] * 3 + [positions[2]]
    assert sizes == [positions[1] - positions[0]] * 3 + [4096 + len(data) - positions[2]]
    assert seconds == [5, 5, 5, 7]
    assert chunk.count == 4


def test_a_record_that_may_not_fit_is_left_for_the_next_chunk() -> None:
    """The position of the first record left out is returned; what was included stays."""
    data, positions = back_to_back([{"keys": b"k%d" % n} for n in range(3)])
    chunk = native.core.make_key_chunk(KEYS_PER_RECORD_MAX + 1)
    assert chunk.take(data, 0, 0, len(data)) == positions[2]
    assert chunk.take(memoryview(data), 0, positions[2], len(data)) == positions[2]
    assert [column.tolist() for column in chunk.columns()][1] == positions[:2]


def test_seconds_stay_in_their_range() -> None:
    """Times before 1970 and after 2106 are kept at the limits."""
    assert [store_second(ms) for ms in (-1, 0, 1999, 2**32 * 1000)] == [0, 0, 1, 2**32 - 1]
