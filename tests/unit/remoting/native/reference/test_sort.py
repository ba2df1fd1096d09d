"""Entries of a ring become a run, on the twin in place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remoting.native import core as native
from remoting.native.contracts import RunData
from tests.sim.index_entries import ring_of

Entry = tuple[int, int, int]
KINDS = {
    "queues": "<u4", "first_offsets": "<i8", "next_offsets": "<i8", "starts": "<u4", "positions": "<i8",
    "sizes": "<u4", "tags": "<u4", "offsets": "<i8",
}  # fmt: skip
QUEUES = st.integers(0, 5) | st.integers(2040, 2060) | st.sampled_from([2**22 - 1, 2**22, 2**22 + 2048, 2**32 - 1])
ENTRIES = st.lists(
    st.tuples(QUEUES, st.sampled_from([1, 1, 1, 2, 65_536]), st.sampled_from([0, 8, 2**32 - 8])), max_size=60
)


def columns_of(entries: list[Entry]) -> tuple[list[int], list[int], list[int], list[int], list[int], list[int]]:
    """(queue, count, size) in log order; offsets follow each other, position and tag tell the entries apart."""
    nexts: dict[int, int] = {}
    offsets = []
    for queue, count, _ in entries:
        offsets.append(nexts.get(queue, queue % 3))
        nexts[queue] = offsets[-1] + count
    n = len(entries)
    return (
        [queue for queue, _, _ in entries], offsets, list(range(2**40, 2**40 + n)), [size for _, _, size in entries],
        list(range(n)), [count for _, count, _ in entries],
    )  # fmt: skip


def values_of(data: RunData) -> dict[str, list[int] | None]:
    """All columns, after a look at their kinds."""
    found: dict[str, list[int] | None] = {}
    for name, kind in KINDS.items():
        column = getattr(data, name)
        assert column is None or (column.dtype == kind and column.flags.c_contiguous), name
        found[name] = None if column is None else column.tolist()
    return found


@given(ENTRIES, st.integers(0, 9), st.integers(1, 200))
@example([], 0, 1)
def test_sorted_by_queue_in_log_order(entries: list[Entry], spare: int, first: int) -> None:
    """Wherever in the ring they begin, holes (size 0) and batches too; offsets that only count up are left out."""
    columns = columns_of(entries)
    qid, slots = ring_of(*columns, capacity=max(len(entries) + spare, 1), first=first)
    found = values_of(native.core.sort_entries(qid, slots, first, first + len(entries)))
    rows = sorted(zip(*columns, strict=True), key=lambda row: row[0])  # stable
    queues = sorted({row[0] for row in rows})
    by_queue = [[row for row in rows if row[0] == queue] for queue in queues]
    dense = all(part[-1][1] + part[-1][5] - part[0][1] == len(part) for part in by_queue)
    assert found == {
        "queues": queues,
        "first_offsets": [part[0][1] for part in by_queue],
        "next_offsets": [part[-1][1] + part[-1][5] for part in by_queue],
        "starts": np.cumsum([0, *map(len, by_queue)]).tolist(),
        "positions": [row[2] for row in rows],
        "sizes": [row[3] for row in rows],
        "tags": [row[4] for row in rows],
        "offsets": None if dense else [row[1] for row in rows],
    }


@pytest.mark.parametrize("queues", [4, 3_000, 5_000_000])
def test_many_entries(queues: int) -> None:
    """More than a digit holds, a million apart; against numpy's stable sort."""
    n = 50_000
    qid = (np.arange(n) * 7919 % queues * (4_000_000_000 // queues)).astype("<u4")
    columns = (qid, np.zeros(n), np.arange(n), np.full(n, 8), np.arange(n), np.ones(n))
    found = native.core.sort_entries(*ring_of(*columns), 0, n)
    order = np.argsort(qid, kind="stable")
    assert (found.positions == order).all()
    assert (found.queues == np.unique(qid)).all()
    assert (np.repeat(found.queues, np.diff(found.starts)) == qid[order]).all()
