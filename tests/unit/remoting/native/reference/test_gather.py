"""Gathered spans are what slices would have been, whatever their sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.native.reference.gather import gather

SOURCE = bytes(range(256)) * 40
SPAN = st.tuples(st.integers(0, 999), st.integers(1, 30))


@given(spans=st.lists(SPAN, max_size=40), repeats=st.integers(1, 10))
def test_any_spans(spans: list[tuple[int, int]], repeats: int) -> None:
    """Few distinct sizes go by assignment, many by slices; both give the same bytes."""
    spans = spans * repeats
    starts = np.array([8 * start for start, _ in spans], np.int64)
    sizes = np.array([8 * size for _, size in spans], np.int64)
    out = bytearray(int(sizes.sum()))
    gather(memoryview(SOURCE), starts, sizes, memoryview(out))
    pairs = zip(starts.tolist(), sizes.tolist(), strict=True)
    assert out == b"".join(SOURCE[start : start + size] for start, size in pairs)


def test_one_size_up_to_the_very_end() -> None:
    out = bytearray(8 * 20)
    starts = np.arange(len(SOURCE) - 160, len(SOURCE), 8)
    gather(memoryview(SOURCE), starts, np.full(20, 8), memoryview(out))
    assert out == SOURCE[-160:]


def test_a_span_outside_is_our_own_bug() -> None:
    with pytest.raises(IndexError):
        gather(memoryview(SOURCE), np.full(9, len(SOURCE)), np.full(9, 8), memoryview(bytearray(72)))
