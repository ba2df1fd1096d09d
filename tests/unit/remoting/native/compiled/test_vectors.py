"""What only compiled columns can do: lend their memory to others, and refuse that where it would be wrong."""

from __future__ import annotations

import pytest

from remoting.native import vectors
from remoting.native.choice import why_pure

if why_pure():
    pytest.skip(f"no compiled twin: {why_pure()}", allow_module_level=True)

from remoting.native.compiled import column_functions
from remoting.native.compiled import vectors as compiled

LONG = 20_000
"""Numbers: the loops run without the interpreter's lock."""


def test_others_read_and_write_the_same_memory() -> None:
    """By the buffer protocol, with the kind as its format; columns with gaps too, where the reader can take them."""
    column = compiled.column([1, 2, 3, 4], "I")
    with memoryview(column) as lent:
        assert (lent.format, lent.tolist(), lent.readonly) == ("I", [1, 2, 3, 4], False)
        lent[1] = 9
    assert column.tolist() == [1, 9, 3, 4]
    assert memoryview(column[::2]).tolist() == [1, 3]
    with pytest.raises(TypeError):
        bytes(column[::2].data)
    assert memoryview(compiled.view(bytes(8), "q", 1)).readonly


def test_the_memory_lives_as_long_as_a_column_of_it() -> None:
    """A slice of a column of a buffer that nobody else refers to."""
    rest = compiled.view(bytearray(range(64)), "B", 64)[60:]
    assert rest.tolist() == [60, 61, 62, 63]


def test_long_columns() -> None:
    """The same numbers as short ones give."""
    numbers = compiled.arange(0, LONG)
    odd = compiled.nonzero(numbers % 2 == 1)
    assert odd.tolist() == list(range(1, LONG, 2))
    assert (numbers[odd] + 1).tolist() == list(range(2, LONG + 1, 2))
    assert numbers.astype("I").astype("q").tolist() == list(range(LONG))
    assert column_functions.cumsum(numbers)[-1] == LONG * (LONG - 1) // 2
    with pytest.raises(OverflowError):
        (numbers - 1).astype("I")


def test_it_is_the_one_in_use() -> None:
    """Where it was built from the present sources."""
    assert vectors.Column is compiled.Column
