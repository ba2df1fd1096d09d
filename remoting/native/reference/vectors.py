"""The reference of the columns: integers of one width in memory of their own, in a map or in a buffer.

A column behaves like an array of one dimension: slices share its memory, arithmetic gives an i64 column, a comparison a
*mask* of bytes 0 and 1, which chooses rows when it is used as an index; a column of numbers used so takes these rows.
Invariant: number for number what the compiled twin does, except that it refuses sums beyond 64 bits, which the other
wraps around. Thread rule: any thread; whoever writes into a column that others see agrees on that with them.
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, compress, pairwise
from itertools import repeat as endless
from typing import Any, TypeAlias, overload

WIDTHS = {"B": 1, "H": 2, "I": 4, "q": 8, "Q": 8}
"""Bytes of an item of each kind: u8 (masks), u16, u32, i64, u64, in the byte order of the machine."""
MASK = "B"
Operand: TypeAlias = "Column | int"
Buffer: TypeAlias = Any
"""An object that exposes contiguous bytes."""


class Column:
    """Integers of one kind; `view` is a memoryview with that format and one dimension."""

    __slots__ = ("_view", "kind")

    def __init__(self, view: memoryview) -> None:
        assert view.format in WIDTHS, view.format
        self._view = view
        self.kind: str = view.format

    def __len__(self) -> int:
        return len(self._view)

    def __iter__(self) -> Iterator[int]:
        return iter(self._view)

    def __repr__(self) -> str:
        return f"Column({self.kind!r}, {self.tolist()})"

    # -- whole columns

    @property
    def data(self) -> memoryview:
        """The bytes of a column without gaps."""
        return self._view.cast("B")

    def tolist(self) -> list[int]:
        """Return the numbers."""
        return self._view.tolist()

    def tobytes(self) -> bytes:
        """Return a copy of the bytes."""
        return self._view.tobytes()

    def astype(self, kind: str) -> Column:
        """Return the numbers as another kind, always a copy; each must fit."""
        return column(self._view.tolist(), kind)

    # -- items

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice | Column) -> Column: ...
    def __getitem__(self, key: int | slice | Column) -> int | Column:
        view = self._view
        if isinstance(key, Column):
            numbers = key.tolist()
            if key.kind == MASK:
                assert len(numbers) == len(view), (len(numbers), len(view))
                return column(compress(view, numbers), self.kind)
            return column([view[number] for number in numbers], self.kind)
        if isinstance(key, slice):
            return Column(view[key])
        return int(view[key])

    def __setitem__(self, key: int | slice | Column, value: int | Sequence[int] | Column) -> None:
        view = self._view
        rows: Iterable[int]
        if isinstance(key, slice):
            rows = range(*key.indices(len(view)))
        elif isinstance(key, Column):
            rows = compress(range(len(view)), key.tolist()) if key.kind == MASK else key.tolist()
        else:
            assert isinstance(value, int)
            view[key] = value
            return
        if isinstance(value, int):
            for row in rows:
                view[row] = value
        else:
            for row, number in zip(rows, value, strict=True):
                view[row] = number

    # -- arithmetic and comparisons

    def __add__(self, other: Operand) -> Column:
        return _combine(operator.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: Operand) -> Column:
        return _combine(operator.sub, self, other)

    def __rsub__(self, other: int) -> Column:
        return column([other - number for number in self._view], "q")

    def __mul__(self, other: Operand) -> Column:
        return _combine(operator.mul, self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> Column:
        return _combine(operator.floordiv, self, other)

    def __mod__(self, other: int) -> Column:
        return _combine(operator.mod, self, other)

    def __rshift__(self, other: int) -> Column:
        return _combine(operator.rshift, self, other)

    def __lshift__(self, other: int) -> Column:
        return _combine(operator.lshift, self, other)

    def __and__(self, other: Operand) -> Column:
        return _combine(operator.and_, self, other, _joint(self, other))

    def __or__(self, other: Operand) -> Column:
        return _combine(operator.or_, self, other, _joint(self, other))

    def __invert__(self) -> Column:
        assert self.kind == MASK, self.kind
        return column([1 - number for number in self._view], MASK)

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        assert isinstance(other, Column | int)
        return _combine(operator.eq, self, other, MASK)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        assert isinstance(other, Column | int)
        return _combine(operator.ne, self, other, MASK)

    def __lt__(self, other: Operand) -> Column:
        return _combine(operator.lt, self, other, MASK)

    def __le__(self, other: Operand) -> Column:
        return _combine(operator.le, self, other, MASK)

    def __gt__(self, other: Operand) -> Column:
        return _combine(operator.gt, self, other, MASK)

    def __ge__(self, other: Operand) -> Column:
        return _combine(operator.ge, self, other, MASK)

    __hash__ = None  # type: ignore[assignment]

    # -- what is in it

    def sum(self) -> int:
        """Add the numbers up, 0 for an empty column."""
        return sum(self._view)

    def max(self) -> int:
        """Return the largest number of a column that is not empty."""
        return int(max(self._view))

    def min(self) -> int:
        """Return the smallest number of a column that is not empty."""
        return int(min(self._view))

    def all(self) -> bool:
        """Whether no number is 0."""
        return all(self._view)

    def any(self) -> bool:
        """Whether a number is not 0."""
        return any(self._view)

    def argmin(self) -> int:
        """Return the first row of the smallest number."""
        return self._view.tolist().index(min(self._view))

    def searchsorted(self, number: int, side: str = "left") -> int:
        """Return the row before which `number` belongs in a rising column; `right`: behind equal ones."""
        return (bisect_left if side == "left" else bisect_right)(self._view, number)


def _joint(left: Column, right: Operand) -> str:
    """Two masks make a mask."""
    return MASK if isinstance(right, Column) and left.kind == right.kind == MASK else "q"


def _combine(what: Callable[[int, int], int], left: Column, right: Operand, kind: str = "q") -> Column:
    if isinstance(right, int):
        return column(map(what, left, endless(right)), kind)
    assert len(left) == len(right), (len(left), len(right))
    return column(map(what, left, right), kind)


# -- making columns


def column(numbers: Iterable[int], kind: str) -> Column:
    """Return a column of these numbers."""
    return Column(memoryview(array(kind, numbers)))


def empty(count: int, kind: str) -> Column:
    """Return a column of so many numbers that are to be set."""
    return Column(memoryview(array(kind, bytes(WIDTHS[kind] * count))))


def full(count: int, number: int, kind: str) -> Column:
    """Return the same number, so many times."""
    return Column(memoryview(array(kind, [number]) * count))


def arange(first: int, end: int) -> Column:
    """Return the numbers [first, end) as i64."""
    return column(range(first, end), "q")


def view(buffer: Buffer, kind: Any, count: int, at: int = 0, step: int = 0) -> Column:
    """Return `count` numbers of a buffer as they stand there, from byte `at` on.

    `step` is the distance in bytes between two of them, by default their width, of which both must be multiples
    when there are gaps.
    """
    width = WIDTHS[kind]
    assert count >= 0, count
    flat = memoryview(buffer).cast("B")
    if not step or step == width:
        assert 0 <= at <= len(flat) - width * count, (at, len(flat), count)
        return Column(flat[at : at + width * count].cast(kind))
    assert not step % width, (step, width)
    assert count == 0 or 0 <= at <= len(flat) - step * (count - 1) - width, (at, len(flat), count)
    whole = flat[at : at + (len(flat) - at) // width * width].cast(kind)
    return Column(whole[: step // width * count : step // width])


def joined(columns: Sequence[Column]) -> Column:
    """Return the columns, of one kind, one behind the other; at least one."""
    made = array(columns[0].kind)
    for one in columns:
        made.frombytes(one.astype(made.typecode).data)
    return Column(memoryview(made))


# -- what is computed


def nonzero(mask: Column) -> Column:
    """Return the rows that are not 0, as i64."""
    return column([row for row, number in enumerate(mask) if number], "q")


def repeat(numbers: Column, counts: Column) -> Column:
    """Return each number as often as the other column says, as the same kind."""
    made = array(numbers.kind)
    for number, count in zip(numbers, counts, strict=True):
        made.extend(endless(number, count))
    return Column(memoryview(made))


def cumsum(numbers: Column) -> Column:
    """Return the running sums as i64."""
    return column(accumulate(numbers), "q")


def diff(numbers: Column) -> Column:
    """Return by how much each number differs from the one before it, as i64."""
    known = numbers.tolist()
    return column([following - number for number, following in pairwise(known)], "q")


def bincount(numbers: Column) -> Column:
    """Return how often each number from 0 on is there, up to the largest, as i64."""
    found = [0] * (numbers.max() + 1 if len(numbers) else 0)
    for number in numbers:
        found[number] += 1
    return column(found, "q")


def argsort(numbers: Column) -> Column:
    """Return the rows in the order of their numbers, equal ones as they stand, as i64."""
    known = numbers.tolist()
    return column(sorted(range(len(known)), key=known.__getitem__), "q")


def isin(numbers: Column, wanted: Collection[int]) -> Column:
    """Return the mask of those that are among the wanted ones."""
    known = frozenset(wanted)
    return column([number in known for number in numbers], MASK)


def maximum(left: Column, right: Operand) -> Column:
    """Return the larger one of each pair as i64."""
    return _combine(max, left, right)


def within(numbers: Column, low: int, high: int) -> Column:
    """Return the mask of the numbers in [low, high)."""
    return column([low <= number < high for number in numbers], MASK)


def spread(homes: Column) -> Column:
    """Return a place for each of the rising homes, as i64: its home, or behind the place before it."""
    return column(accumulate(homes, lambda before, home: max(before + 1, home)), "q")


def unplaced(words: Buffer, base: int, positions: Column, sizes: Column) -> int:
    """Return the first row without a header of that size and position, -1 when there is none.

    The records, at multiples of 8 in a segment that begins at the position `base`, begin with their size, u32, and
    have their position, i64, in the third word. One that would lie outside is not there.
    """
    flat = memoryview(words).cast("B")
    known = flat[: len(flat) & ~7].cast("Q")
    for row, (position, size) in enumerate(zip(positions, sizes, strict=True)):
        at = (position - base) // 8
        if not 0 <= at < len(known) - 2 or known[at] & 0xFFFF_FFFF != size or known[at + 2] != position:
            return row
    return -1
