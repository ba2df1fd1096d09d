"""Rows to columns: a value that does not fit costs its own row only."""

from __future__ import annotations

import pyarrow as pa

from spark_connector.decode.decoded import columns_of_rows, reason_column

SCHEMA = pa.schema([("small", pa.int8()), ("text", pa.string())])


def test_rows_become_columns() -> None:
    reasons: dict[int, str] = {}
    small, text = columns_of_rows([[1, "a"], [300, "b"], [None, None]], SCHEMA, reasons)
    assert small.to_pylist() == [1, None, None]
    assert text.to_pylist() == ["a", "b", None]
    assert list(reasons) == [1]
    assert reasons[1].startswith("small: int8 cannot hold it")
    assert [len(column) for column in columns_of_rows([], SCHEMA, {})] == [0, 0]


def test_reasons_become_a_column() -> None:
    assert reason_column({}, 2).to_pylist() == [None, None]
    assert reason_column({1: "why"}, 2).to_pylist() == [None, "why"]
