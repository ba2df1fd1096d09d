"""A filter over the rows of a batch: what a broker, which does not unpack batches, leaves for the reader to judge.

Invariant: a row passes here when a record of its own would pass `remoting.filtering.judge`. Thread rule: pure.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from remoting.filtering import sql92
from remoting.protocol.bodies.filtered_body import RowFilter
from spark_connector.columns.layout import Bools, Ints

_PREDICATES_MAX = 16
_MICROSECONDS = 1_000


def wanted_rows(rows: pa.RecordBatch, born_ms: int, row_filter: RowFilter) -> Bools:
    """Which rows of a batch's body pass; `born_ms` is the batch's, for bodies without a column of times."""
    found: Bools = np.full(rows.num_rows, not row_filter.mqtt)
    for name, texts in (("tag", row_filter.tags), ("key", row_filter.keys)):
        if texts:
            found &= _is_in(rows, name, texts)
    if row_filter.born_from_ms is not None or row_filter.born_until_ms is not None:
        # Rows have microseconds, the filter has not: one within the same millisecond passes.
        born = _born_us(rows, born_ms)
        if row_filter.born_from_ms is not None:
            found &= born > (row_filter.born_from_ms - 1) * _MICROSECONDS
        if row_filter.born_until_ms is not None:
            found &= born < row_filter.born_until_ms * _MICROSECONDS
    if row_filter.sql and found.any():
        found &= _by_sql(rows, row_filter.sql)
    return found


def _is_in(rows: pa.RecordBatch, name: str, texts: tuple[str, ...]) -> Bools:
    """Rows whose text is one of some."""
    if name not in rows.schema.names:
        return np.zeros(rows.num_rows, bool)
    column = rows.column(name)
    return np.asarray(pc.is_in(column, value_set=pa.array(texts, column.type)), bool)


def _born_us(rows: pa.RecordBatch, born_ms: int) -> Ints:
    if "bornTimestamp" not in rows.schema.names:
        return np.full(rows.num_rows, born_ms * _MICROSECONDS, np.int64)
    born: Ints = rows.column("bornTimestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
    return born


@lru_cache(_PREDICATES_MAX)
def _predicate(text: str) -> sql92.Predicate:
    return sql92.parse(text)


def _by_sql(rows: pa.RecordBatch, text: str) -> Bools:
    """Rows whose properties make the expression true, one after the other."""
    predicate = _predicate(text)
    columns = {
        name: rows.column(name).to_pylist() for name in ("properties", "tag", "key") if name in rows.schema.names
    }
    found = np.zeros(rows.num_rows, bool)
    for row in range(rows.num_rows):
        properties = dict(columns["properties"][row] or ()) if "properties" in columns else {}
        for name, column in (("TAGS", "tag"), ("KEYS", "key")):
            if column in columns and columns[column][row]:
                properties[name] = columns[column][row]
        found[row] = predicate(properties.get) is True
    return found
