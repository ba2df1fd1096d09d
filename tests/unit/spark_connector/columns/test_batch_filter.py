"""Rows of a batch pass a filter when records of their own would."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from remoting.protocol.bodies.pull_body import RowFilter
from spark_connector.columns.batches import wanted_rows

TIMES = pa.array([dt.datetime.fromtimestamp(n, dt.UTC) for n in (1, 2, 3)], pa.timestamp("us", tz="UTC"))
MAPS = pa.array([[("n", "5")], [("n", "9"), ("n", "1")], None], pa.map_(pa.string(), pa.string()))
ROWS = pa.RecordBatch.from_pydict(
    {
        "body": [b"a", b"b", b"c"],
        "tag": ["x", None, "y"],
        "key": ["k", "k", "l"],
        "properties": MAPS,
        "bornTimestamp": TIMES,
    }
)


@pytest.mark.parametrize(
    ("row_filter", "expected"),
    [
        (RowFilter(tags=("x", "y")), [True, False, True]),
        (RowFilter(keys=("k",)), [True, True, False]),
        (RowFilter(born_from_ms=2_000), [False, True, True]),
        (RowFilter(born_from_ms=2_000, born_until_ms=3_000), [False, True, False]),
        (RowFilter(sql="n = 5 OR TAGS = 'y'"), [True, False, True]),
        (RowFilter(sql="n = 1 AND KEYS = 'k' AND TAGS IS NULL"), [False, True, False]),
        (RowFilter(mqtt=("#",)), [False, False, False]),
    ],
)
def test_rows(row_filter: RowFilter, expected: list[bool]) -> None:
    assert wanted_rows(ROWS, 0, row_filter).tolist() == expected


def test_a_body_without_columns() -> None:
    bare = ROWS.select(["body"])
    assert wanted_rows(bare, 7, RowFilter(born_until_ms=8)).all()
    assert not wanted_rows(bare, 8, RowFilter(born_until_ms=8)).any()
    assert not wanted_rows(bare, 8, RowFilter(tags=("x",))).any()
    assert wanted_rows(bare, 8, RowFilter(sql="n IS NULL AND TAGS IS NULL")).all()


def test_a_row_within_the_millisecond_passes() -> None:
    born = pa.array([5_500], pa.timestamp("us", tz="UTC"))
    row = pa.RecordBatch.from_pydict({"body": [b"a"], "bornTimestamp": born})
    for span, expected in (((6, None), True), ((7, None), False), ((None, 6), True), ((None, 5), False)):
        assert wanted_rows(row, 0, RowFilter(born_from_ms=span[0], born_until_ms=span[1])).tolist() == [expected]
