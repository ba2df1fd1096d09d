"""Columns: both twins give the same numbers for everything that is done with them, and refuse the same."""

from __future__ import annotations

import operator
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.native import vectors
from remoting.native.reference import vectors as reference

NUMBERS = st.lists(st.integers(-(2**40), 2**40) | st.integers(-3, 3), max_size=30)
SMALL = st.lists(st.integers(0, 9), max_size=30)
OPERATIONS = (
    operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.eq, operator.ne, operator.lt,
    operator.le, operator.gt, operator.ge,
)  # fmt: skip
BY_ONE = (operator.floordiv, operator.mod, operator.rshift, operator.lshift)


@pytest.fixture(scope="module")
def twins() -> list[Any]:
    """The pure twin, and the one in use."""
    return [reference, vectors]


def on_both(twins: list[Any], what: Any) -> list[Any]:
    """What a function makes with each twin, the same in both."""
    one, two = (what(twin) for twin in twins)
    assert (one.kind, one.tolist()) == (two.kind, two.tolist())
    return one.tolist()  # type: ignore[no-any-return]


@given(NUMBERS, st.data())
def test_pairs_are_combined_as_python_does(twins: list[Any], left: list[int], data: st.DataObject) -> None:
    """With a column and with one number, on either side."""
    right = data.draw(st.lists(st.integers(-9, 9), min_size=len(left), max_size=len(left)))
    one, by = data.draw(st.integers(-9, 9)), data.draw(st.integers(1, 20))
    for do in OPERATIONS:
        pairs = on_both(twins, lambda twin, do=do: do(twin.column(left, "q"), twin.column(right, "q")))
        assert pairs == [do(*pair) for pair in zip(left, right, strict=True)]
        assert on_both(twins, lambda twin, do=do: do(twin.column(left, "q"), one)) == [do(each, one) for each in left]
    for do in BY_ONE:
        assert on_both(twins, lambda twin, do=do: do(twin.column(left, "q"), by)) == [do(each, by) for each in left]
    assert on_both(twins, lambda twin: one - twin.column(left, "q")) == [one - each for each in left]
    assert on_both(twins, lambda twin: twin.maximum(twin.column(left, "q"), one)) == [max(each, one) for each in left]
    assert on_both(twins, lambda twin: ~(twin.column(left, "q") > one)) == [each <= one for each in left]


@given(NUMBERS, st.slices(30), st.lists(st.integers(0, 29), max_size=9))
def test_rows_are_chosen_and_set_as_in_a_list(
    twins: list[Any], numbers: list[int], part: slice, rows: list[int]
) -> None:
    """By slices in any direction, by rows, by a mask; slices share the memory."""
    rows = [row for row in rows if row < len(numbers)]
    mask = [number > 0 for number in numbers]
    assert on_both(twins, lambda twin: twin.column(numbers, "q")[part]) == numbers[part]
    assert on_both(twins, lambda twin: twin.column(numbers, "q")[twin.column(rows, "q")]) == [
        numbers[at] for at in rows
    ]
    assert on_both(twins, lambda twin: twin.column(numbers, "q")[twin.column(mask, "B")]) == [
        n for n in numbers if n > 0
    ]
    assert on_both(twins, lambda twin: twin.nonzero(twin.column(mask, "B"))) == [
        at for at, is_in in enumerate(mask) if is_in
    ]

    def changed(twin: Any) -> Any:
        whole = twin.column(numbers, "q")
        whole[part][:] = 7
        whole[twin.column(rows, "q")] = twin.column([5] * len(rows), "q")
        whole[twin.column(mask, "B")] = -1
        return whole

    expected = list(numbers)
    for at in range(*part.indices(len(numbers))):
        expected[at] = 7
    for at in rows:
        expected[at] = 5
    assert on_both(twins, changed) == [-1 if is_in else number for is_in, number in zip(mask, expected, strict=True)]


@given(SMALL, NUMBERS)
def test_what_is_computed(twins: list[Any], small: list[int], numbers: list[int]) -> None:
    """Sums, counts, orders, places."""
    rising = sorted(small)
    on_both(twins, lambda twin: twin.cumsum(twin.column(numbers, "q")))
    on_both(twins, lambda twin: twin.diff(twin.column(small, "I")))
    on_both(twins, lambda twin: twin.bincount(twin.column(small, "B")))
    on_both(twins, lambda twin: twin.repeat(twin.column(small, "I"), twin.column(rising, "H")))
    on_both(twins, lambda twin: twin.joined([twin.column(numbers, "q"), twin.arange(3, 6), twin.full(2, 4, "q")]))
    order = on_both(twins, lambda twin: twin.argsort(twin.column(small, "I")))
    assert order == sorted(range(len(small)), key=small.__getitem__)
    assert on_both(twins, lambda twin: twin.isin(twin.column(small, "I"), {2, 3})) == [each in {2, 3} for each in small]
    assert on_both(twins, lambda twin: twin.within(twin.column(small, "I"), 2, 5)) == [2 <= each < 5 for each in small]
    places = on_both(twins, lambda twin: twin.spread(twin.column(rising, "I")))
    assert len(set(places)) == len(places)
    assert all(place >= home for place, home in zip(places, rising, strict=True))
    for twin in twins:
        known = twin.column(rising, "I")
        assert (known.sum(), known.any(), known.all()) == (sum(small), any(small), all(small))
        assert [known.searchsorted(4), known.searchsorted(4, "right")] == [
            sum(each < 4 for each in small), sum(each <= 4 for each in small),
        ]  # fmt: skip
        if small:
            assert (known.min(), known.max()) == (min(small), max(small))
            assert twin.column(small, "I").argmin() == small.index(min(small))


def test_numbers_where_they_stand_in_a_buffer(twins: list[Any]) -> None:
    """Of every kind, with gaps, shared with the buffer; never beyond its end."""
    memory = bytearray(range(64))
    for twin in twins:
        for kind in "BHIqQ":
            count = 64 // array(kind).itemsize
            assert twin.view(memory, kind, count).tolist() == memoryview(bytes(memory)).cast(kind).tolist()  # type: ignore[call-overload]
        spaced = twin.view(memory, "I", 4, 4, 16)
        assert spaced.tolist() == [memoryview(memory).cast("I")[at] for at in (1, 5, 9, 13)]
        spaced[1] = 7
        assert memoryview(memory).cast("I")[5] == 7
        assert spaced.astype("q").data.nbytes == 32
        for count, at, step in ((17, 0, 0), (1, 61, 0), (5, 0, 16), (4, 16, 16), (-1, 0, 0), (1, -4, 0)):
            with pytest.raises(AssertionError):
                twin.view(memory, "I", count, at, step)
        with pytest.raises((TypeError, BufferError)):
            twin.view(bytes(8), "q", 1)[0] = 1


@pytest.mark.parametrize("number", [-1, 2**32])
def test_what_does_not_fit_is_refused(twins: list[Any], number: int) -> None:
    """When a column is made, converted or set, in either twin."""
    for twin in twins:
        narrow = twin.empty(2, "I")
        with pytest.raises(OverflowError):
            twin.column([number], "I")
        with pytest.raises(OverflowError):
            twin.column([number], "q").astype("I")
        with pytest.raises((OverflowError, ValueError)):
            narrow[0] = number
        with pytest.raises(IndexError):
            narrow[2]
        with pytest.raises(IndexError):
            narrow[twin.column([5], "q")]
        assert twin.column([2**64 - 1], "Q").tolist() == [2**64 - 1]
        assert (twin.column([2**64 - 1], "Q") >> 32).tolist() == [2**32 - 1]


def test_a_record_that_is_not_where_the_index_says(twins: list[Any]) -> None:
    """The first of them: another size, another position, outside the segment."""
    base, words = 1 << 40, array("q", bytes(160))
    for at, size in ((0, 24), (24, 40), (64, 96)):
        words[at // 8], words[at // 8 + 2] = size, base + at
    for twin in twins:
        for positions, sizes, wrong in (
            ([0, 24, 64], [24, 40, 96], -1), ([0, 24, 64], [24, 48, 96], 1), ([0, 32], [24, 40], 1),
            ([-8], [8], 0), ([152], [24], 0), ([0, 1 << 20], [24, 8], 1), ([], [], -1),
        ):  # fmt: skip
            places = twin.column([base + at for at in positions], "q")
            assert twin.unplaced(words, base, places, twin.column(sizes, "I")) == wrong


def test_one_class_of_column_is_in_use() -> None:
    """The compiled one where it was built."""
    chosen = vectors.choice.core
    assert isinstance(vectors.empty(1, "q"), chosen.Column)
    assert vectors.Column is chosen.Column
    assert isinstance(reference, ModuleType)
