"""The compiled twin of the write side gives what the pure one gives, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.errors import StoreError
from remoting.native import core as native
from remoting.native.contracts import slot_column
from remoting.protocol.errors import LightMQError
from tests.sim.batches import CAPACITY, QUEUES, Bench, bare, messages, seen

steps = st.lists(
    st.tuples(st.lists(messages(), max_size=6), st.lists(st.binary(max_size=40), max_size=2), st.booleans()), max_size=6
)


@pytest.fixture(autouse=True)
def _both_twins(twin: str) -> None:
    if twin != "compiled":
        pytest.skip("compared once, where the compiled twin is in place")


def outcome(bench: Bench, *step: Any) -> Any:
    """The outcome of an append: the batch, or the refusal."""
    batch, controls, atomic = step
    try:
        made = bench.encode([*batch, *map(bare, controls)], atomic=atomic)
    except (StoreError, LightMQError) as error:
        return type(error), str(error)
    count = len(made.entries)
    if count > CAPACITY:
        bench.ring.undo(made.entries)
    else:
        first = max(1, bench.number + count - CAPACITY)
        bench.ring.store(made.entries, first, bench.number)
        bench.number += count
    return seen(made)


@settings(deadline=None, max_examples=120)
@given(steps)
def test_twins_agree_on_batches_and_the_ring(appends: list[Any]) -> None:
    """Records, offsets, entries, refusals, and the memory of the index tail."""
    pure, compiled = Bench(native.pure_core()), Bench(native.compiled_core())
    for step in appends:
        assert outcome(pure, *step) == outcome(compiled, *step)
        assert pure.rows.tolist() == compiled.rows.tolist()
        assert pure.queues.tolist() == compiled.queues.tolist()
        assert pure.slots.tolist() == compiled.slots.tolist()
    first = max(1, pure.number - CAPACITY)
    for queue in range(QUEUES):
        live = [offset for row, offset in _live(pure, first) if row == queue]
        for offset in live:
            ours = pure.ring.find(queue, offset, 3, first, pure.number)
            theirs = compiled.ring.find(queue, offset, 3, first, pure.number)
            assert [column.tolist() for column in ours[:4]] == [column.tolist() for column in theirs[:4]]
            assert ours[4] == theirs[4]
    middle = (first + pure.number) // 2
    for bench in (pure, compiled):
        bench.ring.release(middle, bench.number)
    assert pure.rows.tolist() == compiled.rows.tolist()


def _live(bench: Bench, first: int) -> list[tuple[int, int]]:
    offsets = slot_column(bench.slots, "offset")
    slots = [number % CAPACITY for number in range(first, bench.number)]
    return [(bench.queues[slot], offsets[slot]) for slot in slots]
