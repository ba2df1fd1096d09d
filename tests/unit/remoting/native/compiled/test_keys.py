"""The compiled twin of the key index's memory takes in what the pure one does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.native import core as native
from tests.sim.keyed import back_to_back, fields


@pytest.fixture(autouse=True)
def _both_twins(twin: str) -> None:
    if twin != "compiled":
        pytest.skip("compared once, where the compiled twin is in place")


@settings(deadline=None, max_examples=150)
@given(st.lists(fields(), max_size=6), st.integers(64, 200))
def test_twins_agree_on_any_records(records: list[dict[str, Any]], capacity: int) -> None:
    """The same entries, and the same record is the first that does not fit."""
    data, _ = back_to_back(records, base=800)
    seen = []
    for core in (native.pure_core(), native.compiled_core()):
        chunk = core.make_key_chunk(capacity)
        stopped = chunk.take(data, 800, 800, 800 + len(data))
        seen.append((stopped, chunk.count, chunk.capacity, [column.tolist() for column in chunk.columns()]))
    assert seen[0] == seen[1]


def test_what_lies_outside_is_refused() -> None:
    """Positions before the buffer or behind its end."""
    chunk = native.compiled_core().make_key_chunk(64)
    for base, position, end in ((8, 0, 8), (0, 0, 100)):
        with pytest.raises(AssertionError):
            chunk.take(bytes(80), base, position, end)
