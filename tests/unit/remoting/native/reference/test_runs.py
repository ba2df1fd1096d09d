"""The look-up over runs, on the twin in place."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remoting.native import core as native
from remoting.native.contracts import RunData
from remoting.native.vectors import arange, column, diff, full, repeat
from tests.sim.index_entries import ring_of

Entry = tuple[int, int, int]
KINDS = {
    "queues": "I", "first_offsets": "q", "next_offsets": "q", "starts": "I", "positions": "q",
    "sizes": "I", "tags": "I", "offsets": "q",
}  # fmt: skip
QUEUES = st.integers(0, 5) | st.integers(2040, 2060) | st.sampled_from([2**22 - 1, 2**22, 2**22 + 2048, 2**32 - 1])
ENTRIES = st.lists(
    st.tuples(QUEUES, st.sampled_from([1, 1, 1, 2, 65_536]), st.sampled_from([0, 8, 2**32 - 8])), max_size=60
)


def columns_of(entries: list[Entry]) -> tuple[list[int], list[int], list[int], list[int], list[int], list[int]]:
    """(queue, count, size) in log order; offsets are consecutive, position and tag distinguish the entries."""
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
    """All columns, after a check of their types."""
    found: dict[str, list[int] | None] = {}
    for name, kind in KINDS.items():
        numbers = getattr(data, name)
        assert numbers is None or (numbers.kind == kind and len(numbers.data) == len(numbers.tobytes())), name
        found[name] = None if numbers is None else numbers.tolist()
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
        "starts": list(accumulate(map(len, by_queue), initial=0)),
        "positions": [row[2] for row in rows],
        "sizes": [row[3] for row in rows],
        "tags": [row[4] for row in rows],
        "offsets": None if dense else [row[1] for row in rows],
    }


@pytest.mark.parametrize("queues", [4, 3_000, 5_000_000])
def test_many_entries(queues: int) -> None:
    """More than fits into one digit, a million values apart; against Python's stable sort."""
    n = 50_000
    qid = [at * 7919 % queues * (4_000_000_000 // queues) for at in range(n)]
    columns = (qid, [0] * n, range(n), [8] * n, range(n), [1] * n)
    found = native.core.sort_entries(*ring_of(*columns), 0, n)
    order = sorted(range(n), key=qid.__getitem__)
    assert found.positions.tolist() == order
    assert found.queues.tolist() == sorted(set(qid))
    assert repeat(found.queues, diff(found.starts)).tolist() == sorted(qid)


@dataclass
class Columns:
    """A run of (queue, offsets of its entries, offset after them) per queue; positions and tags count the entries."""

    queues: Any
    first_offsets: Any
    next_offsets: Any
    starts: Any
    positions: Any
    sizes: Any
    tags: Any
    offsets: Any = None


def run_of(*parts: tuple[int, list[int], int], at: int = 0, counts: bool = False) -> Columns:
    """A run; with `counts` it has the column of offsets."""
    total = sum(len(offsets) for _, offsets, _ in parts)
    flat = [offset for _, offsets, _ in parts for offset in offsets]
    return Columns(
        column([queue for queue, _, _ in parts], "I"), column([offsets[0] for _, offsets, _ in parts], "q"),
        column([end for _, _, end in parts], "q"),
        column(accumulate((len(offsets) for _, offsets, _ in parts), initial=0), "I"),
        arange(at, at + total), full(total, 8, "I"), column(range(total), "I"),
        column(flat, "q") if counts else None,
    )  # fmt: skip


def test_continues_from_run_to_run() -> None:
    """Counted and plain runs, a queue missing in one of them, an offset inside a batch."""
    runs = [
        run_of((1, [0, 1, 2], 3), (5, [7], 8), at=100),
        run_of((5, [8], 9), at=200),
        run_of((1, [3, 10, 11], 15), at=300, counts=True),
    ]
    table = native.core.make_run_table(runs)
    offsets, positions, sizes, tags, end = table.find(1, 1, 11)
    assert (offsets.tolist(), positions.tolist(), end) == ([1, 2, 3, 10], [101, 102, 300, 301], 11)
    assert (sizes.tolist(), tags.tolist()) == ([8] * 4, [1, 2, 0, 1])
    assert [column.tolist() for column in table.find(1, 9, 10)[:2]] == [[3], [300]]
    assert table.find(1, 14, 99)[4] == 15
    for nothing in (table.find(1, 15, 99), table.find(2, 0, 9), table.find(9, 0, 9), table.find(1, 2, 2)):
        assert [len(column) for column in nothing[:4]] == [0, 0, 0, 0]
    assert table.find(5, 7, 9)[1].tolist() == [103, 200]
    assert native.core.make_run_table([]).find(1, 4, 9)[4] == 4


def test_first_at_a_position() -> None:
    """The oldest entry that has not expired, in whichever run it is."""
    table = native.core.make_run_table([run_of((1, [0, 1], 2), at=100), run_of((1, [2, 9], 12), at=200, counts=True)])
    assert [table.first_at(1, begin) for begin in (0, 100, 101, 102, 201, 202)] == [0, 0, 1, 2, 9, -1]
    assert table.first_at(2, 0) == -1


def merged(*runs: Columns) -> dict[str, Any]:
    """The columns of the merge, as lists."""
    data = native.core.make_run_table(runs).merge()
    return {name: None if (column := getattr(data, name)) is None else column.tolist() for name in data.__slots__}


def test_merge_joins_the_pieces_of_a_queue() -> None:
    """Long and short pieces, queues at either end; plain runs give a plain one."""
    many = list(range(40))
    found = merged(
        run_of((1, [0, 1], 2), (5, many, 40), at=100),
        run_of((0, [3], 4), (5, [40], 41), (2**32 - 1, [7], 8), at=200),
        run_of((5, [41, 42], 43), at=300),
    )
    assert found["queues"] == [0, 1, 5, 2**32 - 1]
    assert found["starts"] == [0, 1, 3, 46, 47]
    assert (found["first_offsets"], found["next_offsets"]) == ([3, 0, 0, 7], [4, 2, 43, 8])
    assert found["positions"] == [200, 100, 101, *range(102, 142), 201, 300, 301, 202]
    assert found["tags"] == [0, 0, 1, *range(2, 42), 1, 0, 1, 2]
    assert (found["sizes"], found["offsets"]) == ([8] * 47, None)


def test_merge_keeps_offsets_where_they_do_not_count_up() -> None:
    """With a batch in one of the runs, and with a gap between two plain ones."""
    batches = merged(run_of((1, [0, 1], 2), (2, [9], 10)), run_of((1, [2, 5], 9), counts=True))
    assert (batches["offsets"], batches["next_offsets"]) == ([0, 1, 2, 5, 9], [9, 10])
    gap = merged(run_of((1, [0, 1], 2)), run_of((1, [6], 7)))
    assert (gap["offsets"], gap["first_offsets"], gap["next_offsets"]) == ([0, 1, 6], [0], [7])
