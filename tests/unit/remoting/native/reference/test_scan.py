"""The read side of the twin in place: scanning, replaying, checking, copying, sorting."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.native import core as native
from remoting.native.contracts import Progress
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN
from tests.sim.batches import Bench, bare
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
    """Where valid bytes end, and why."""
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


def test_first_bad_wants_the_size_and_the_place() -> None:
    """A sound record of another size, or elsewhere, is not it."""
    segment, _ = log()
    view = memoryview(segment)
    positions, sizes = places(segment)
    assert native.core.first_bad(view, 0, positions, sizes) == -1
    assert native.core.first_bad(view, 0, [], []) == -1
    assert native.core.first_bad(view, 0, positions, [*sizes[:2], 8, sizes[3]]) == 2
    assert native.core.first_bad(view, 0, positions, [*sizes[:3], sizes[3] + 8]) == 3
    assert native.core.first_bad(view, 8, positions, sizes) == 0
    assert native.core.first_bad(view, 0, [len(segment)], [80]) == 0


def test_collect_in_pieces() -> None:
    """At most so many entries at a time; marks are what changes state; the starts are respected."""
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
    """Like numpy's stable argsort."""
    column = np.array(queues, "<u4")
    assert native.core.order_by_queue(column).tolist() == np.argsort(column, kind="stable").tolist()


def test_gather_copies_spans() -> None:
    """Back to back, in the order given."""
    source = memoryview(bytes(range(64)))
    out = bytearray(24)
    native.core.gather(source, np.array([40, 8]), np.array([8, 16]), memoryview(out))
    assert bytes(out) == bytes(source[40:48]) + bytes(source[8:24])
