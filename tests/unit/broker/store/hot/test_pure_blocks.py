"""Entries as arrays say what entries as lists say, and the ring does the same with them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from broker.store import hot
from broker.store.hot import pure_encoder
from broker.store.hot.pure_blocks import ArrayBlock, grouped, lists_of, make_block
from broker.store.store_message import StoreMessage
from tests.sim.batches import CAPACITY, QUEUES, Bench

spreads = st.lists(st.lists(st.lists(st.integers(0, QUEUES - 1), max_size=3), min_size=1, max_size=9), max_size=5)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_groups_bring_equal_queues_together_in_order(queues: list[int]) -> None:
    """Against sorting by (queue, place)."""
    block = grouped(np.array(queues, np.int64))
    assert block.order.tolist() == sorted(range(len(queues)), key=lambda at: (queues[at], at))
    assert block.each.tolist() == sorted(set(queues))
    assert [queues[at] for at in block.order[block.lasts]] == sorted(set(queues))


@given(spreads)
def test_the_ring_takes_both_alike(appends: list[list[list[int]]]) -> None:
    """Stored, confirmed and taken back, large batches by arrays and by lists leave the same memory."""
    arrays, lists = Bench(hot.pure_core()), Bench(hot.pure_core())
    arrays.segment = lists.segment = 1 << 20
    kept = pure_encoder.ARRAYS_MIN
    for append in appends:
        batch = [StoreMessage(tuple(queues), 5, 0, 3, 0, 1, 0, 0, 0, b"t", b"x") for queues in append]
        blocks = []
        for bench, arrays_min in ((arrays, 1), (lists, 1_000)):
            pure_encoder.ARRAYS_MIN = arrays_min
            try:
                made = bench.encode(batch)
            finally:
                pure_encoder.ARRAYS_MIN = kept
            blocks.append(made.entries)
            first = max(1, bench.number + len(made.entries) - CAPACITY)
            bench.ring.store(made.entries, first, bench.number)
            bench.number += len(made.entries)
        assert isinstance(blocks[0], ArrayBlock) == any(append)
        assert blocks[0].columns() == blocks[1].columns()
        assert arrays.slots.tolist() == lists.slots.tolist()
        assert arrays.ring.confirm([blocks[0]]) == lists.ring.confirm([blocks[1]])
        assert arrays.rows.tolist() == lists.rows.tolist()
    if appends and any(appends[-1]):
        arrays.ring.undo(blocks[0])
        lists.ring.undo(blocks[1])
        assert arrays.rows.tolist() == lists.rows.tolist()


def test_lists_of_a_block_and_its_parts() -> None:
    """A part of an array block is a block of lists."""
    block = make_block([1, 2, 3], [0, 0, 0], [0, 8, 16], [8, 8, 8], [5, 6, 7], [1, 2, 1])
    assert block.slice(1, 3).columns() == ([2, 3], [0, 0], [8, 16], [8, 8], [6, 7], [2, 1])
    assert (len(block), block.position(2), lists_of(block)[5]) == (3, 16, [1, 2, 1])
