"""The compiled twin of the read side accepts and refuses what the pure one does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store import hot
from broker.store.hot.contracts import Progress
from tests.sim.batches import Bench, bare, messages


@pytest.fixture(autouse=True)
def _both_twins(twin: str) -> None:
    if twin != "compiled":
        pytest.skip("compared once, where the compiled twin is in place")


@settings(deadline=None, max_examples=120)
@given(
    st.lists(st.tuples(st.lists(messages(), max_size=4), st.booleans()), max_size=4),
    st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=2),
    st.integers(0, 4),
)
def test_twins_agree_on_any_segment(appends: Any, damage: list[tuple[int, int]], epoch: int) -> None:
    """Whatever was written and whatever was done to it: the same end, the same reason, the same entries."""
    pure, compiled = hot.pure_core(), hot.compiled_core()
    bench = Bench(pure, segment=4096)
    data = bytearray(4096)
    for batch, atomic in appends:
        made = bench.encode([*batch, bare(b"state")], 1, atomic=atomic)
        for position, piece in made.pieces:
            data[position : position + len(piece)] = piece
    end = min(bench.position, 4096)
    clean = memoryview(bytes(data))
    for at, value in damage:
        data[at] = value
    start = Progress(0, 0, epoch, 0, 0, group_open=False)
    view = memoryview(data)
    assert pure.scan(view, 0, 4096, start) == compiled.scan(view, 0, 4096, start)
    ours, theirs = (core.collect(clean, 0, 0, end, end // 3, end // 2, 50) for core in (pure, compiled))
    assert (ours[:2], ours[2].columns(), ours[3]) == (theirs[:2], theirs[2].columns(), theirs[3])


def test_gather_refuses_what_lies_outside() -> None:
    """A span outside the source, an output of another size."""
    gather = hot.compiled_core().gather
    for starts, sizes, room in (([8], [16], 16), ([-8], [8], 8), ([0], [8], 16), ([0], [16], 8)):
        with pytest.raises(AssertionError):
            gather(memoryview(bytes(16)), np.array(starts), np.array(sizes), memoryview(bytearray(room)))
