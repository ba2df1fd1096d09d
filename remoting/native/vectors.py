"""Columns of integers, the form of index entries, positions and masks, by the compiled twin or in plain Python.

`Column` and the functions that make and combine them; `reference.vectors` says what each does. Invariant: one class of
column per process, whichever twin of the rest is in use. Thread rule: chosen once, at import.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from remoting.native.choice import Choice, choose
from remoting.native.reference import vectors as reference


def _compiled() -> Any:
    from remoting.native.compiled import column_functions, vectors

    return SimpleNamespace(**vars(vectors), **{name: getattr(column_functions, name) for name in FUNCTIONS})


FUNCTIONS = (
    "argsort", "bincount", "cumsum", "diff", "isin", "maximum", "repeat", "spread", "unplaced", "within",
)  # fmt: skip
"""What is computed of columns, in a module of its own."""
choice: Choice[Any] = choose(_compiled, lambda: reference)
"""The twin in use, and the reason."""

if TYPE_CHECKING:
    from remoting.native.reference.vectors import (
        Column,
        arange,
        argsort,
        bincount,
        column,
        cumsum,
        diff,
        empty,
        full,
        isin,
        joined,
        maximum,
        nonzero,
        repeat,
        spread,
        unplaced,
        view,
        within,
    )
else:
    Column = choice.core.Column
    arange, argsort, bincount = choice.core.arange, choice.core.argsort, choice.core.bincount
    column, cumsum, diff = choice.core.column, choice.core.cumsum, choice.core.diff
    empty, full, isin, joined = choice.core.empty, choice.core.full, choice.core.isin, choice.core.joined
    maximum, nonzero, repeat = choice.core.maximum, choice.core.nonzero, choice.core.repeat
    spread, unplaced = choice.core.spread, choice.core.unplaced
    view, within = choice.core.view, choice.core.within

__all__ = [
    "Column",
    "arange",
    "argsort",
    "bincount",
    "column",
    "cumsum",
    "diff",
    "empty",
    "full",
    "isin",
    "joined",
    "maximum",
    "nonzero",
    "repeat",
    "spread",
    "unplaced",
    "view",
    "within",
]
