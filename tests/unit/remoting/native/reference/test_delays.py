"""What waits for its time: both twins count, order and restore alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.placed import Placed
from remoting.native import core as native
from remoting.native import vectors
from remoting.native.contracts import SPAN_S, Core, Waiting
from remoting.native.vectors import Column
from remoting.protocol.records.image import encode_image

ENDLESS = (2**62, 0)


@pytest.fixture(params=["pure", "compiled"])
def core(request: pytest.FixtureRequest) -> Core:
    if request.param == "pure":
        return native.pure_core()
    if native.choice.name != "compiled":
        pytest.skip(f"no compiled twin: {native.choice.reason}")
    return native.compiled_core()


def column(*numbers: int) -> Column:
    return vectors.column(numbers, "q")


def lists(taken: Waiting) -> list[list[int]]:
    return [one.tolist() for one in taken]


def test_a_span_counts_by_second(core: Core) -> None:
    span = core.make_span((3, 4))
    span.add(7, 2)
    span.add(9, 2)
    span.add(9, -1)
    assert span.queues == (3, 4)
    assert [span.count(second) for second in (6, 7, 9)] == [0, 2, 1]
    assert span.fullest() == (7, 2)
    assert core.make_span(()).fullest() == (0, 0)
    with pytest.raises((AssertionError, IndexError)):
        span.add(SPAN_S, 1)


def test_messages_leave_in_order_of_time_then_of_arrival(core: Core) -> None:
    """Those below the floor, up to the mark and from the limit on are not taken in."""
    heap = core.make_due_heap()
    heap.add(5, column(30, 10, 10, 20, 50, 40), column(1, 2, 3, 4, 5, 6), 6, (10, 6), (50, 0))
    assert (len(heap), heap.first()) == (3, (10, 7))
    taken = heap.take(2, 0, (-1, -1), ENDLESS)
    assert lists(taken) == [[10, 20], [7, 8], [3, 4]]
    dues, offsets, positions = taken
    heap.put_back((dues[1:], offsets[1:], positions[1:]))
    assert lists(heap.take(9, 0, (-1, -1), (40, 10))) == [[20], [8], [4]]
    assert lists(heap.take(9, 0, (-1, -1), ENDLESS)) == [[40], [10], [6]]
    assert lists(heap.take(9, 0, (-1, -1), ENDLESS)) == [[], [], []]
    assert heap.first() is None
    heap.add(0, column(1, 2), column(0, 0), 0, (-1, -1), ENDLESS)
    assert heap.take(9, 1, (-1, -1), ENDLESS)[1].tolist() == [1], "below the floor by now"
    heap.add(0, column(1, 2), column(0, 0), 0, (-1, -1), ENDLESS)
    assert heap.take(9, 0, (1, 0), ENDLESS)[1].tolist() == [1], "passed by now"
    heap.add(0, column(1), column(0), 0, (-1, -1), ENDLESS)
    heap.clear()
    assert len(heap) == 0


def test_the_later_part_can_be_dropped(core: Core) -> None:
    heap = core.make_due_heap()
    heap.add(0, column(*range(100, 0, -1)), column(*range(100)), 0, (-1, -1), ENDLESS)
    assert heap.keep(40) == (41, 59)
    assert heap.take(99, 0, (-1, -1), ENDLESS)[0].tolist() == list(range(1, 41))


STEPS = st.lists(
    st.tuples(st.lists(st.integers(0, 20), max_size=30), st.integers(0, 9), st.integers(0, 25)), max_size=9
)


@given(STEPS)
def test_both_twins_agree(steps: list[tuple[list[int], int, int]]) -> None:
    """Whatever is added and taken in between."""
    if native.choice.name != "compiled":
        pytest.skip(f"no compiled twin: {native.choice.reason}")
    one, two = native.pure_core().make_due_heap(), native.compiled_core().make_due_heap()
    offset = 0
    for dues, count, limit in steps:
        for heap in (one, two):
            heap.add(offset, column(*dues), column(*range(len(dues))), 3, (2, 4), ENDLESS)
        offset += len(dues)
        assert (len(one), one.first()) == (len(two), two.first())
        assert lists(one.take(count, 0, (-1, -1), (limit, 5))) == lists(two.take(count, 0, (-1, -1), (limit, 5)))


def test_staged_records_are_restored_by_position(bench, core: Core) -> None:
    """In the order asked for, up to the bytes, to damage and to what is no staged message."""
    images = [encode_image(flags=3, queue_index=2, born_ms=1, topic=b"t", body=bytes(40 * n)) for n in range(1, 5)]
    queue = bench.store.queues.open(b"hidden")
    bench.store.append(Placed(core.hidden(b"".join(images), 7), [(queue,)] * 4), Placed(images[0], [(queue,)]))
    bench.settle()
    positions = column(*bench.store.reading.positions(queue, 0, 5))
    segment = bytearray(bench.store._log.segment_at(0).view)
    files = [(0, memoryview(segment))]
    order = positions[column(3, 0, 2, 1)]
    assert core.staged_images(order, files, 1 << 20) == (images[3] + images[0] + images[2] + images[1], 4)
    assert core.staged_images(order, files, len(images[3]) + len(images[0]) + 40) == (images[3] + images[0], 2)
    assert core.staged_images(order, files, 1) == (images[3], 1)
    assert core.staged_images(positions, files, 1 << 20)[1] == 4, "the last one is not staged"
    assert core.staged_images(positions[:0], files, 1) == (b"", 0)
    assert core.staged_images(positions + 8, files, 1 << 20) == (b"", 0)
    assert core.staged_images(column(1 << 40), files, 1) == core.staged_images(positions, [], 1) == (b"", 0)
    segment[int(positions[2]) + 100] ^= 1
    assert core.staged_images(positions, files, 1 << 20) == (images[0] + images[1], 2)
    assert core.staged_images(positions, [(0, memoryview(segment)[: int(positions[1]) + 90])], 1 << 20)[1] == 1
