"""The twin of columns that a process uses, and that all of its functions are that twin's."""

from __future__ import annotations

from remoting.native import vectors
from remoting.native.reference import vectors as reference


def test_a_process_has_one_class_of_columns() -> None:
    """What one function makes another takes, whichever twin was chosen."""
    made = vectors.column([3, 1, 2], "q")
    assert type(made) is vectors.Column
    assert type(vectors.cumsum(made)) is vectors.Column
    assert list(vectors.cumsum(made)) == [3, 4, 6]
    assert list(made[vectors.argsort(made)]) == [1, 2, 3]
    pure = vectors.choice.name == "pure"
    assert (vectors.Column is reference.Column) == pure
    assert bool(vectors.choice.reason) == pure
