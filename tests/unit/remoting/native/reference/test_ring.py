"""The ring of the twin in place: storing, finding, claiming, confirming, releasing, taking back."""

from __future__ import annotations

from remoting.native import core as native
from remoting.native.contracts import CONFIRMED, FLUSHED, NEXT
from tests.sim.batches import CAPACITY, QUEUES, Bench
from tests.support.images import placed

message = placed


def test_undo_store_and_find() -> None:
    """What was taken back is given out again; what is stored is found by chain and by search."""
    bench = Bench(native.core)
    bench.ring.undo(bench.encode([message((0, 0, 3))]).entries)
    assert not bench.rows.any()
    count = 1
    for _ in range(CAPACITY - 4):
        entries = bench.encode([message((count % 2,))]).entries
        bench.ring.store(entries, 1, count)
        count += 1
    for offset, wanted in ((0, 5), (29, 9), (3, 0), (12, 1)):
        offsets, positions, sizes, tags, end = bench.ring.find(1, offset, wanted, 1, count)
        expected = bench.slots["position"][1:count:2][offset : offset + wanted].tolist()
        assert positions.tolist() == expected
        assert (offsets.tolist(), end) == (list(range(offset, end)), offset + len(expected))
        assert (len(sizes), len(tags)) == (len(expected), len(expected))


def test_claim_stops_at_the_first_entry_that_is_not_next() -> None:
    """A gap, a queue beyond the limit."""
    bench = Bench(native.core)
    entries = native.core.make_block([0, 0, 1, 0], [0, 1, 5, 2], [0] * 4, [8] * 4, [0] * 4, [1] * 4)
    assert bench.ring.claim(entries, 0, QUEUES) == 2
    assert bench.rows[0, NEXT] == 2
    assert bench.ring.claim(entries, 3, 0) == 3
    assert bench.ring.claim(entries, 3, QUEUES) == 4


def test_confirm_names_each_queue_once() -> None:
    """Over several blocks, in the order of their last entries; what does not move is not named."""
    bench = Bench(native.core)
    blocks = [
        native.core.make_block(q, o, o, o, o, [1] * len(q)) for q, o in (([1, 2, 1], [0, 0, 1]), ([2], [1]), ([], []))
    ]
    assert bench.ring.confirm(blocks) == [1, 2]
    assert bench.rows[:4, CONFIRMED].tolist() == [0, 2, 2, 0]
    assert bench.ring.confirm(blocks[1:]) == []


def test_release_names_the_first_offset_that_is_left() -> None:
    """Only where the chain led below it; the others were named when they were stored."""
    bench = Bench(native.core)
    made = bench.encode([message((queue,)) for queue in (0, 1, 0, 2, 0)])
    bench.ring.store(made.entries, 1, 1)
    assert bench.rows[:3, FLUSHED].tolist() == [0, 0, 0]
    bench.ring.release(3, 6)
    assert bench.rows[:3, FLUSHED].tolist() == [1, 0, 0]
