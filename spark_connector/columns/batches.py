"""Batch records → Arrow columns, straight from the Arrow body: no work per row but offsets, nothing per value.

A pull may hold single records and batches in any order. Stretches of single records go the way they always go; a batch
is unpacked, validated and cut to the rows that were asked for, because a range may begin and end in the middle of one.
Small batches that follow each other become one Arrow batch, so that Spark is not fed by the spoonful.

Invariant: rows come in the order of the queue, each offset from the pull's first to the range's end exactly once; a
record that is not at the offset it should be at is an error. Thread rule: pure functions.

A filter over the rows of a batch: what a broker, which does not unpack batches, leaves for the reader to judge.

Invariant: a row passes here when a record of its own would pass `remoting.filtering.judge`. Thread rule: pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from remoting.batches import body
from remoting.filtering import expressions
from remoting.protocol.bodies.pull_body import PulledRange, RowFilter
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records import record
from remoting.protocol.records.record import RecordView
from spark_connector.columns.arrow import (
    BATCH_ROWS_MAX,
    PROPERTY_COLUMNS,
    TIMESTAMP_TYPE,
    decode,
    headers_of,
    in_batches,
)
from spark_connector.columns.layout import Bools, Ints, offsets_of, part_of
from spark_connector.errors import BrokenRecord
from spark_connector.options.schema import ALIASES, KAFKA_ALIASES
from spark_connector.queues import QueueKey, QueueRange

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
def _predicate(text: str) -> expressions.Predicate:
    return expressions.parse_sql92(text)


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


ROWS_TOGETHER_MIN = 1_024
"""Batches are gathered up to this many rows: below it Arrow's cost per batch exceeds that of the copy."""
CONSTANTS_MAX = 64
"""Constant columns kept ready: a task reads few queues, and each needs a handful."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of one batch record: the record, the queue offset of each row here, the rows themselves."""

    view: RecordView
    offsets: Ints
    rows: pa.RecordBatch


def decode_range(
    pulled: PulledRange, current: QueueRange, schema: pa.Schema, row_filter: RowFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one pull as batches of `schema`; BrokenRecord names queue and offset.

    With a filter the pull has passed it at the broker, but for the rows of batches, which it is applied to here.
    """
    key = current.key
    runs = _runs(pulled)
    if runs is None:
        yield from decode(pulled, key, schema)
        return
    at = pulled.first_offset
    given = None if pulled.offsets is None else offsets_of(pulled).tolist()
    pieces: list[_Piece] = []
    for first, last, is_batch in runs:
        if not is_batch:
            yield from _take(pieces, key, schema)
            until = last if given is not None else min(last, first + max(0, current.end - at))
            if first < until:
                yield from decode(part_of(pulled, first, until, at), key, schema)
            at += last - first
            continue
        for index in range(first, last):
            piece, at = _open(pulled, index, at if given is None else given[index], current, row_filter)
            if piece.rows.num_rows:
                if pieces and pieces[-1].rows.schema != piece.rows.schema:
                    yield from _take(pieces, key, schema)
                pieces.append(piece)
                if sum(one.rows.num_rows for one in pieces) >= ROWS_TOGETHER_MIN:
                    yield from _take(pieces, key, schema)
    yield from _take(pieces, key, schema)
    if given is None and at != pulled.next_offset:
        raise BrokenRecord(f"queue {key}: the records end at offset {at}, the pull ends at {pulled.next_offset}")


def _runs(pulled: PulledRange) -> list[tuple[int, int, bool]] | None:
    """(first, last, are batches) of the stretches of one kind; None when there is no batch, or no sound table."""
    starts = np.frombuffer(pulled.starts, "<u4").astype(np.int64)
    if not len(starts) or (starts & 7).any() or int(starts.max()) + record.HEADER_SIZE > len(pulled.blob):
        return None
    words = np.frombuffer(pulled.blob, "<u4", len(pulled.blob) // 4)
    batches = words[(starts >> 2) + 1] == record.BATCH
    if not batches.any():
        return None
    edges = [0, *(np.flatnonzero(batches[1:] != batches[:-1]) + 1).tolist(), len(starts)]
    return [(first, last, bool(batches[first])) for first, last in pairwise(edges)]


def _open(
    pulled: PulledRange, index: int, at: int, current: QueueRange, row_filter: RowFilter | None
) -> tuple[_Piece, int]:
    """The wanted rows of one batch record from offset `at` to the range's end, and the offset behind the record."""
    start = int.from_bytes(pulled.starts[4 * index : 4 * index + 4], "little")
    try:
        record.check_record(pulled.blob, start, None)
        view = RecordView(pulled.blob, start)
        base = next((offset for queue, offset in view.dispatch() if queue == current.queue_id), None)
        if base is None or not base <= at < base + view.count:
            raise BrokenRecord(f"queue {current.key}, offset {at}: the batch there begins at {base}")
        if record.body_format(view.flags) != record.FORMAT_ARROW:
            raise BrokenRecord(f"queue {current.key}, offset {at}: a body of format {record.body_format(view.flags)}")
        rows = body.decode(view.body, record.body_codec(view.flags), view.count)
    except CorruptRecord as error:
        raise BrokenRecord(f"queue {current.key}, offset {at}: {error}") from error
    stop = max(at, min(current.end, base + view.count))
    if stop - at != view.count:
        rows = rows.slice(at - base, stop - at)
    offsets = np.arange(at, stop, dtype=np.int64)
    if row_filter is not None:
        wanted = wanted_rows(rows, view.born_ms, row_filter)
        rows, offsets = rows.filter(pa.array(wanted)), offsets[wanted]
    return _Piece(view, offsets, rows), base + view.count


def _take(pieces: list[_Piece], key: QueueKey, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield what was gathered as one batch, in parts that are not too large, and forget it."""
    if not pieces:
        return
    columns = _BatchColumns(list(pieces), key)
    pieces.clear()
    yield from in_batches(columns.array, schema)


class _BatchColumns:
    """The source's columns over the rows of some batches of one queue."""

    def __init__(self, pieces: list[_Piece], key: QueueKey) -> None:
        self._pieces = pieces
        self._key = key
        rows = [piece.rows for piece in pieces]
        whole = rows[0] if len(rows) == 1 else pa.Table.from_batches(rows).combine_chunks().to_batches()[0]
        self._stored = dict(zip(whole.schema.names, whole.columns, strict=True))
        self._count: int = whole.num_rows

    def array(self, name: str, type_: pa.DataType) -> pa.Array:
        """Return one column by its name."""
        if name == "key" and type_ == pa.binary():
            return self.stored("key", pa.string()).cast(type_)
        name = KAFKA_ALIASES.get(name) or ALIASES.get(name, name)
        if name == "headers":
            return self.headers(type_)
        if name in PROPERTY_COLUMNS:
            return self._property(PROPERTY_COLUMNS[name].decode())
        maker = _MAKERS.get(name)
        return self.constant(None, type_) if maker is None else maker(self, type_)

    def stored(self, name: str, type_: pa.DataType) -> pa.Array:
        """A column as the producer wrote it, null where it wrote none."""
        return self._stored[name] if name in self._stored else self.constant(None, type_)

    def born(self, type_: pa.DataType) -> pa.Array:
        """When each message was born; without a column of times, when its batch was."""
        if "bornTimestamp" in self._stored:
            return self._stored["bornTimestamp"]
        return self._of_records([piece.view.born_ms * _MICROSECONDS for piece in self._pieces], type_)

    def stored_at(self, type_: pa.DataType) -> pa.Array:
        """When each message's batch was stored."""
        return self._of_records([piece.view.store_ms * _MICROSECONDS for piece in self._pieces], type_)

    def positions(self, type_: pa.DataType) -> pa.Array:
        """Where each message's batch stands in the log."""
        return self._of_records([piece.view.position for piece in self._pieces], type_)

    def offsets(self) -> pa.Array:
        """Offsets in the queue."""
        return _numbers(np.concatenate([piece.offsets for piece in self._pieces]), pa.int64())

    def constant(self, value: str | int | tuple[()] | None, type_: pa.DataType) -> pa.Array:
        """The same value in every row."""
        if self._count <= BATCH_ROWS_MAX:
            return _repeated(value, type_, self._count)
        return pa.repeat(pa.scalar(value, type_), self._count)

    def properties(self, type_: pa.DataType) -> pa.Array:
        """The properties, an empty map where there are none."""
        return self._stored["properties"] if "properties" in self._stored else self.constant((), type_)

    def headers(self, type_: pa.DataType) -> pa.Array:
        """The properties as Kafka's headers."""
        column = self._stored.get("properties")
        if column is None:
            return self.constant(None, type_)
        edges = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + self._count + 1]
        low, high = int(edges[0]), int(edges[-1])
        values = column.items.slice(low, high - low).cast(pa.binary())
        return headers_of(column.keys.slice(low, high - low), values, (edges - low).astype(np.int64), type_)

    @property
    def topic(self) -> str:
        """Topic of the queue."""
        return self._pieces[0].view.topic.decode("utf-8", "replace")

    @property
    def key(self) -> QueueKey:
        """The queue the records come from."""
        return self._key

    def _of_records(self, values: list[int], type_: pa.DataType) -> pa.Array:
        """A value of each record in each of its rows."""
        counts = [piece.rows.num_rows for piece in self._pieces]
        return _numbers(np.repeat(np.array(values, np.int64), counts), type_)

    def _property(self, name: str) -> pa.Array:
        """One property's value, null where there is none; of a repeated key the last one."""
        column = self._stored.get("properties")
        if column is None:
            return self.constant(None, pa.string())
        edges = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + self._count + 1]
        low, high = int(edges[0]), int(edges[-1])
        found = np.flatnonzero(pc.equal(column.keys.slice(low, high - low), name).to_numpy(zero_copy_only=False))
        if not len(found):
            return self.constant(None, pa.string())
        at = np.full(self._count, -1, np.int64)
        at[np.searchsorted(edges, found + low, side="right") - 1] = found
        return column.items.slice(low, high - low).take(pa.array(at, mask=at < 0))


_MAKERS: dict[str, Any] = {
    "topic": lambda columns, type_: columns.constant(columns.topic, type_),
    "queueId": lambda columns, type_: columns.constant(columns.key.queue, type_),
    "queueOffset": lambda columns, _: columns.offsets(),
    "broker": lambda columns, type_: columns.constant(columns.key.broker, type_),
    "key": lambda columns, type_: columns.stored("key", type_),
    "tag": lambda columns, type_: columns.stored("tag", type_),
    "body": lambda columns, type_: columns.stored("body", type_),
    "bornTimestamp": lambda columns, type_: columns.born(type_),
    "storeTimestamp": lambda columns, type_: columns.stored_at(type_),
    "properties": lambda columns, type_: columns.properties(type_),
    "timestampType": lambda columns, type_: columns.constant(TIMESTAMP_TYPE, type_),
    "_position": lambda columns, type_: columns.positions(type_),
}
"""Columns a batch has; the others (those of MQTT) are null."""


@lru_cache(CONSTANTS_MAX)
def _widest(value: str | int | tuple[()] | None, type_: pa.DataType) -> pa.Array:
    """A value in as many rows as an Arrow batch has."""
    return pa.repeat(pa.scalar(value, type_), BATCH_ROWS_MAX)


@lru_cache(CONSTANTS_MAX * 16)
def _repeated(value: str | int | tuple[()] | None, type_: pa.DataType, count: int) -> pa.Array:
    """A value in `count` rows: a piece of the widest such column, so it takes no memory of its own."""
    return _widest(value, type_).slice(0, count)


def _numbers(values: np.ndarray[Any, np.dtype[np.int64]], type_: pa.DataType) -> pa.Array:
    """Numbers as they lie in memory, as a column of 64-bit numbers or times."""
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])
