"""What a decoder hands back: a column per field and, by row, why a body is not what it should be.

Invariant: every column has one value per body, whatever the values are. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_connector.errors import Mismatch, shorten

MICROSECONDS_MIN, MICROSECONDS_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999: what Spark and Python can show."""


@dataclass(slots=True)
class Decoded:
    """One array per field, and by row the reasons of the bodies that do not fit."""

    columns: list[pa.Array]
    reasons: dict[int, str] = field(default_factory=dict)


def decode_rows(
    bodies: pa.Array, schema: pa.Schema, read: Callable[[bytes], list[Any]], refusal: Callable[[Exception], str]
) -> Decoded:
    """Columns of bodies that a library reads one by one.

    `read` gives a body's values in the order of the fields; `refusal` is the reason for what it raises but Mismatch.
    """
    reasons: dict[int, str] = {}
    nothing = [None] * len(schema)
    rows = []
    for row, body in enumerate(bodies.to_pylist()):
        try:
            rows.append(read(body))
        except Mismatch as mismatch:
            reasons[row] = str(mismatch)
            rows.append(nothing)
        except Exception as failure:  # noqa: BLE001 - how a library refuses bytes is not listed, and differs by version
            reasons[row] = shorten(refusal(failure))
            rows.append(nothing)
    return Decoded(columns_of_rows(rows, schema, reasons), reasons)


def columns_of_rows(rows: Sequence[Sequence[Any]], schema: pa.Schema, reasons: dict[int, str]) -> list[pa.Array]:
    """Turn a list of values per row, in the order of the fields, into a column per field.

    A value that its column cannot hold becomes null and a reason.
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return [column_of(values, one, reasons) for values, one in zip(columns, schema, strict=True)]


def column_of(values: Sequence[Any], one: pa.Field, reasons: dict[int, str]) -> pa.Array:
    """A column of some values; one that it cannot hold becomes null and a reason."""
    try:
        return pa.array(values, one.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return pa.array([_held(row, value, one, reasons) for row, value in enumerate(values)], one.type)


def _held(row: int, value: Any, one: pa.Field, reasons: dict[int, str]) -> Any:
    try:
        pa.array([value], one.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as failure:
        reasons.setdefault(row, shorten(f"{one.name}: {one.type} cannot hold it: {failure}"))
        return None
    return value


def reason_column(reasons: dict[int, str], rows: int) -> pa.Array:
    """The column `_corrupt`: null where nothing is wrong."""
    if not reasons:
        return pa.nulls(rows, pa.string())
    return pa.array([reasons.get(row) for row in range(rows)], pa.string())
