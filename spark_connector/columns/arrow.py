"""Checked records → Arrow columns, all rows of a column at once; columns that were not asked for cost nothing.

Variable-length columns are one Arrow binary array over the whole blob, with the spans as offsets and the bytes between
them as every second element, of which `take` picks the wanted ones: no Python object per value. Invariant: the batch's
schema is the one handed in, which is Spark's own Arrow form of the query's schema. Thread rule: pure functions over
buffers the caller keeps alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from remoting.protocol.bodies.pull_body import PulledRange
from remoting.protocol.records import properties, record
from spark_connector.columns import layout
from spark_connector.columns.layout import Bools, Ints, Records, parse_records
from spark_connector.options.schema import ALIASES, KAFKA_ALIASES
from spark_connector.queues import QueueKey

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_ROWS_MAX = 16_384
"""Rows per Arrow batch: 4k to 64k are equally fast, larger ones only cost memory."""
TIMESTAMP_TYPE = 1
"""Kafka's number for a time that the log took, not the publisher."""
PROPERTY_COLUMNS = {
    "clientId": record.CLIENT_ID_KEY,
    "contentType": properties.CONTENT_TYPE,
    "traceparent": b"traceparent",
}


def arrow_schema(schema: StructType) -> Any:
    """Spark's own Arrow form of a schema, which it compares for equality."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def decode(pulled: PulledRange, key: QueueKey, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the records of one pull as batches of `schema`; raises BrokenRecord naming queue and offset."""
    if layout.core is not None and pulled.count > layout.PIECE_ROWS:
        for piece in layout.pieces(pulled):
            yield from _decode_piece(piece, key, schema)
    else:
        yield from _decode_piece(pulled, key, schema)


def _decode_piece(pulled: PulledRange, key: QueueKey, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    records = parse_records(pulled, f"queue {key}")
    if not len(records):
        return
    yield from in_batches(_Columns(records, key).array, schema)


def in_batches(column: Callable[[str, pa.DataType], pa.Array], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the columns of a schema, which `column` makes by name and type, as batches that are not too large."""
    arrays = [column(name, type_) for name, type_ in zip(schema.names, schema.types, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    for begin in range(0, batch.num_rows, BATCH_ROWS_MAX):
        yield batch.slice(begin, BATCH_ROWS_MAX)


class _Spans:
    """Variable-length parts of a set of records, gathered from spans of their bytes: the pure twin."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._bytes = pa.py_buffer(records.data)

    def text(self, part: int, key: bytes = b"") -> pa.Array:
        """As `CompiledParts.text`."""
        return layout.as_text(self._gather(*self._records.span(part, key)))

    def binary(self, part: int) -> pa.Array:
        """As `CompiledParts.binary`."""
        return self._gather(*self._records.span(part))

    def properties(self, type_: pa.DataType) -> pa.Array:
        """All properties as a map."""
        pairs = self._records.pairs()
        keys = layout.as_text(self._gather(pairs.key_at, pairs.key_len, None))
        values = layout.as_text(self._gather(pairs.value_at, pairs.value_len, None))
        entries = pa.StructArray.from_arrays([keys, values], fields=[type_.key_field, type_.item_field])
        offsets = pa.py_buffer(pairs.first.astype(np.int32))
        return pa.Array.from_buffers(type_, len(self._records), [None, offsets], children=[entries])

    def headers(self, type_: pa.DataType) -> pa.Array:
        """All properties as Kafka's headers: repeated ones too, values as bytes, null where there are none."""
        pairs = self._records.pairs()
        keys = layout.as_text(self._gather(pairs.key_at, pairs.key_len, None))
        values = self._gather(pairs.value_at, pairs.value_len, None)
        return headers_of(keys, values, pairs.first, type_)

    def _gather(self, at: Ints, length: Ints, present: Bools | None) -> pa.Array:
        """Copy spans of the blob into one binary array; rows that are not `present` become null."""
        rows = len(at)
        if rows == 0:
            return pa.nulls(0, pa.binary())
        if present is not None and not present.any():
            return pa.nulls(rows, pa.binary())
        edges = np.empty(2 * rows, np.int32)
        edges[0::2] = at
        edges[1::2] = at + length
        whole = pa.Array.from_buffers(pa.binary(), 2 * rows - 1, [None, pa.py_buffer(edges), self._bytes])
        mask = None if present is None or present.all() else ~present
        return whole.take(layout.numbers(np.arange(0, 2 * rows, 2, dtype=np.int32), mask))


class _Columns:
    """The columns of one set of records, by their names, with the parts by the twin in use."""

    def __init__(self, records: Records, key: QueueKey) -> None:
        self._records = records
        self.key = key
        self.parts = _Spans(records) if layout.core is None else layout.CompiledParts(records)

    def array(self, name: str, type_: pa.DataType) -> pa.Array:
        """Return one column by its name; `type_` is what Spark wants it to be."""
        if name == "key" and type_ == pa.binary():
            return self.parts.binary(layout.KEYS)
        name = KAFKA_ALIASES.get(name) or ALIASES.get(name, name)
        if name in PROPERTY_COLUMNS:
            return self.parts.text(layout.PROPERTY, PROPERTY_COLUMNS[name])
        if name == "headers":
            return _Spans(self._records).headers(type_)
        maker: Callable[[_Columns], pa.Array] | None = _MAKERS.get(name)
        if maker is not None:
            return maker(self)
        assert name == "properties", name
        return self.parts.properties(type_)

    def queue_offset(self) -> pa.Array:
        """Offsets in the queue as an int64 column."""
        return layout.numbers(self._records.offsets)

    def position(self) -> pa.Array:
        """Where the records stand in their broker's log; asked for by decoders, never shown."""
        return layout.numbers(self._records.field("position"))

    def time(self, name: str) -> pa.Array:
        """A time field as microseconds in UTC."""
        return layout.numbers(self._records.field(name) * 1000).cast(pa.timestamp("us", tz="UTC"))

    def constant(self, value: str | int) -> pa.Array:
        """The same value in every row."""
        kind = pa.string() if isinstance(value, str) else pa.int32()
        return pa.repeat(layout.one(value, kind), len(self._records))

    def quality(self) -> pa.Array:
        """MQTT quality of service, null outside MQTT."""
        flags = self._records.head["flags"]
        return layout.numbers((flags & record.FLAG_QOS_MASK).astype(np.int32), ~self._records.is_mqtt())

    def retained(self) -> pa.Array:
        """MQTT retain flag, null outside MQTT."""
        flags = self._records.head["flags"]
        return layout.numbers((flags & record.FLAG_RETAIN).astype(bool), ~self._records.is_mqtt())


def headers_of(keys: pa.Array, values: pa.Array, first: Ints, type_: pa.DataType) -> pa.Array:
    """Lists of (key, value) whose edges are `first`; an empty list is null, as Kafka's source has it."""
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(type_.value_type))
    found = pa.ListArray.from_arrays(layout.numbers(first.astype(np.int32)), pairs, type=type_)
    return pc.if_else(layout.numbers(first[1:] > first[:-1]), found, layout.one(None, type_))


_MAKERS: dict[str, Callable[[Any], pa.Array]] = {
    "topic": lambda columns: columns.parts.text(layout.TOPIC),
    "mqttTopic": lambda columns: columns.parts.text(layout.MQTT_TOPIC),
    "queueId": lambda columns: columns.constant(columns.key.queue),
    "queueOffset": _Columns.queue_offset,
    "broker": lambda columns: columns.constant(columns.key.broker),
    "key": lambda columns: columns.parts.text(layout.KEYS),
    "tag": lambda columns: columns.parts.text(layout.TAGS),
    "body": lambda columns: columns.parts.binary(layout.BODY),
    "bornTimestamp": lambda columns: columns.time("born_ms"),
    "storeTimestamp": lambda columns: columns.time("store_ms"),
    "_position": _Columns.position,
    "timestampType": lambda columns: columns.constant(TIMESTAMP_TYPE),
    "qos": _Columns.quality,
    "retained": _Columns.retained,
}
