"""The columns of check-points against a dict, with frozen copies, and their schedule and size."""

from __future__ import annotations

import gc
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.state.check_point_table import BLOCK, CheckPointTable, first_end

OWNERS = (b"a\0\0\0\0\1", b"b\0\0\0\0\2")


PAGE_BLOCKS = 4
"""So that pages are split and joined."""


def entry(at: int, pop_ms: int = 10, invisible_ms: int = 5) -> bytes:
    return bytes([at]) + pop_ms.to_bytes(8, "little") + invisible_ms.to_bytes(4, "little")


def key(owner: bytes, block: int) -> bytes:
    return owner + block.to_bytes(8)


keys = st.builds(key, st.sampled_from(OWNERS), st.integers(0, 25))
values = st.lists(st.integers(0, BLOCK - 1), min_size=1, max_size=4, unique=True).map(
    lambda places: b"".join(map(entry, places))
)
steps = st.lists(st.one_of(st.tuples(keys, values), keys, st.none()), max_size=150)


@given(steps)
def test_against_a_dict(steps) -> None:
    """Set, delete and freeze in any order: the table is a dict, and each frozen copy the dict of that time."""
    table, meant, copies = CheckPointTable(PAGE_BLOCKS), {}, []
    for number, step in enumerate(steps):
        if step is None:
            copies.append((table.freeze(), dict(meant)))
        elif isinstance(step, tuple):
            table.put(step[0], (step[1], number))
            meant[step[0]] = (step[1], number)
        else:
            table.discard(step)
            meant.pop(step, None)
        assert (list(table.items()), table.count) == (ascending(meant, table), len(meant))
    assert all(table.get(key(owner, n)) == meant.get(key(owner, n)) for owner in OWNERS for n in range(26))
    assert table.total == sum(len(value) for value, _ in meant.values()) // 13
    assert sum(map(table.in_flight, OWNERS)) == table.total
    for frozen, then in copies:
        assert (dict(frozen.items()), frozen.count) == (then, len(then))
    below = len(steps) // 2
    assert older(table, below) == {each for each, (_, position) in meant.items() if position < below}


def ascending(meant: dict, table: CheckPointTable) -> list:
    """What is meant, owner by owner as the table has them, in order of blocks."""
    owners = list(dict.fromkeys(each[:-8] for each, _ in table.items()))
    return sorted(meant.items(), key=lambda item: (owners.index(item[0][:-8]), item[0]))


def older(table: CheckPointTable, position: int) -> set[bytes]:
    return {each for _examined, found in table.older(position) for each, _entry in found}


@given(st.sets(st.integers(0, 60), min_size=1), st.lists(st.integers(0, 60)))
def test_what_is_old_is_found_while_pages_are_joined(blocks, released) -> None:
    """Nothing is missed that stays as it was, whatever is removed around it."""
    table = CheckPointTable(PAGE_BLOCKS)
    for block in blocks:
        table.put(key(OWNERS[0], block), (entry(0), 1))
    found, left = set(), iter(released)
    for _examined, some in table.older(2):
        found |= {each for each, _entry in some}
        for block in (next(left, None), next(left, None)):
            if block is not None:
                table.discard(key(OWNERS[0], block))
    assert found >= {each for each, _entry in table.items()}


def test_what_is_replaced_is_due_when_it_says_so() -> None:
    table = CheckPointTable(PAGE_BLOCKS)
    place = key(OWNERS[0], 3)
    table.put(place, (entry(1, 10, 90) + entry(2, 10, 50), 0))
    assert table.take_due(59, 9) == []
    table.put(place, (entry(1, 10, 90) + entry(2, 20, 30), 0))
    assert table.take_due(50, 9) == [(place, [2], 20)]
    table.put(place, (entry(1, 10, 90), 0))
    assert table.take_due(99, 9) == []
    assert table.take_due(100, 9) == [(place, [1], 10)]
    table.postpone(place, 200)
    table.postpone(key(OWNERS[1], 3), 200)
    assert table.take_due(199, 9) == []
    assert table.take_due(200, 9) == [(place, [1], 10)]
    table.discard(place)
    table.postpone(place, 1)
    assert table.take_due(2**40, 9) == []


def test_blocks_that_are_postponed_hold_up_no_others() -> None:
    """Although they come first in their page, and each pass takes no more than there are of them."""
    table = CheckPointTable(PAGE_BLOCKS)
    early, late = key(OWNERS[0], 1), key(OWNERS[0], 2)
    for place in (early, late):
        table.put(place, (entry(1, 0, 50), 0))
    assert table.take_due(50, 1) == [(early, [1], 0)]
    table.postpone(early, 60)
    assert table.take_due(50, 1) == [(late, [1], 0)]
    table.postpone(late, 70)
    assert table.take_due(59, 9) == []
    assert table.take_due(60, 9) == [(early, [1], 0)]
    table.postpone(early, 90)
    table.put(early, (entry(1, 0, 50) + entry(2, 0, 65), 1))
    assert table.take_due(65, 9) == [(early, [1, 2], 0)], "what is new in it is looked at in time"
    table.discard(early)
    assert table.take_due(70, 9) == [(late, [1], 0)]


def test_the_schedule_forgets_pages_that_are_gone() -> None:
    """Although their time would have come much later."""
    table = CheckPointTable()
    for number in range(10_000):
        table.put(key(OWNERS[0], number), (entry(0, number, 2**32 - 1), number))
        table.discard(key(OWNERS[0], number))
    assert len(table._schedule) < 200
    assert list(table.items()) == []


@pytest.mark.parametrize("pattern", ["together", "one by one", "left over", "far apart"])
def test_a_check_point_costs_few_bytes(pattern) -> None:
    """Whatever is in flight around it."""
    table, number, tail = CheckPointTable(), 200 * BLOCK, b""
    full = b"".join(map(entry, range(BLOCK)))
    if pattern == "together":
        for block in range(number // BLOCK):
            table.put(key(OWNERS[0], block), (full, 0))
    elif pattern == "one by one":
        for at in range(number):
            tail = tail * (at % BLOCK > 0) + entry(at % BLOCK, at)
            table.put(key(OWNERS[0], at // BLOCK), (tail, at))
    else:
        step = 1 if pattern == "left over" else 3
        for block in range(number * step):
            table.put(key(OWNERS[0], block), (full, block))
        for block in range(number * step):
            if block % step:
                table.discard(key(OWNERS[0], block))
            else:
                table.put(key(OWNERS[0], block), (entry(block % BLOCK, block), block))
    assert table.total == number
    assert size(table) / number < 90, pattern


def size(table: CheckPointTable) -> int:
    """The bytes of all objects that a table consists of."""
    seen: dict[int, object] = {}
    found: list[object] = [table._owners, table._schedule]
    while found:
        each = found.pop()
        if id(each) not in seen and not isinstance(each, type):
            seen[id(each)] = each
            found += gc.get_referents(each)
    return sum(map(sys.getsizeof, seen.values()))


def test_first_end() -> None:
    assert first_end(entry(31, 2**50, 2**32 - 1) + entry(0, 5, 6)) == 11
