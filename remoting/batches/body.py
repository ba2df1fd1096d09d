"""The body of a batch record: many messages as one Arrow IPC stream, compressed as a whole. Needs pyarrow.

    body     codec 0: stream            codec 1, 2: u64 bytes of the stream (little-endian), lz4 frame or zstd of it
    stream   schema message, one record batch message, perhaps the end mark
    columns  body binary | key string | tag string | bornTimestamp timestamp[us, UTC] | properties map<string, string>

In this order; all but `body` may be left out when no message has the value (the time: when all have the record's).
The columns have Spark's own layout, so that reading them costs no work per row. Arrow's compression of single buffers
is refused: it is slower, and its declared sizes are unchecked.

Invariant: `decode` returns only fully validated data; any other body raises CorruptRecord, without unpacking more than
RAW_BYTES_MAX. Thread rule: pure functions (and one memo of known schemas).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from remoting.batches import BatchRow
from remoting.protocol.errors import CorruptRecord, LocalMisuse
from remoting.protocol.records.record import BATCH_COUNT_MAX, CODEC_LZ4, CODEC_NONE, CODEC_ZSTD, Buffer

RAW_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of a stream before compression; a larger one is neither made nor unpacked."""
SCHEMAS_REMEMBERED_MAX = 64
"""Encoded schemas whose check is cached; beyond it all are dropped."""
TIME = pa.timestamp("us", tz="UTC")
PROPERTIES = pa.map_(pa.string(), pa.string())
COLUMNS: dict[str, pa.DataType] = {
    "body": pa.binary(), "key": pa.string(), "tag": pa.string(), "bornTimestamp": TIME, "properties": PROPERTIES,
}  # fmt: skip
REQUIRED = frozenset({"body", "bornTimestamp", "properties"})
"""Columns that must not have nulls if they are present."""

_CODECS = {CODEC_LZ4: pa.Codec("lz4"), CODEC_ZSTD: pa.Codec("zstd", compression_level=1)}
_RAW_SIZE = struct.Struct("<Q")
_MESSAGE = struct.Struct("<Ii")
_CONTINUATION = 0xFFFFFFFF
_END = _MESSAGE.pack(_CONTINUATION, 0)
_U16, _U32, _I32, _I64 = (struct.Struct(f"<{letter}") for letter in "HIiq")
_NO_FIELDS = (0, 0, 0, 0)
_PLACES = tuple(struct.Struct(f"<{count}H") for count in range(len(_NO_FIELDS) + 1))
_KIND_SCHEMA, _KIND_BATCH = 1, 3
_MICROSECONDS = 1000
_TIME_MS_MAX = 2**63 // 1000 - 1
_known_schemas: dict[bytes, pa.Schema] = {}


def encode(batch: pa.RecordBatch, codec: int) -> bytes:
    """Return the body of a batch whose columns are some of COLUMNS. LocalMisuse for others, or too large a batch."""
    if not 1 <= batch.num_rows <= BATCH_COUNT_MAX:
        raise LocalMisuse(f"a batch of {batch.num_rows} messages, 1 to {BATCH_COUNT_MAX} are possible")
    wrong = _wrong_schema(batch.schema) or _wrong_nulls(batch)
    if wrong:
        raise LocalMisuse(wrong)
    raw = b"".join((batch.schema.serialize(), batch.serialize()))
    if len(raw) > RAW_BYTES_MAX:
        raise LocalMisuse(f"a batch of {len(raw)} bytes before compression, the limit is {RAW_BYTES_MAX}")
    if codec == CODEC_NONE:
        return raw
    packer = _CODECS.get(codec)
    if packer is None:
        raise LocalMisuse(f"codec {codec} is not known")
    return b"".join((_RAW_SIZE.pack(len(raw)), packer.compress(raw)))


def decode(body: Buffer, codec: int, count: int) -> pa.RecordBatch:
    """Return the rows of a body with the columns it has; CorruptRecord names what is wrong with it."""
    stream = _unpacked(body, codec)
    schema, at = _schema(stream)
    end = _check_batch(stream, at, count)
    try:
        batch = pa.ipc.read_record_batch(stream.slice(at, end - at), schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise CorruptRecord(f"the body's record batch is malformed: {error}") from error
    wrong = _wrong_nulls(batch)
    if wrong or batch.num_rows != count:
        raise CorruptRecord(wrong or f"the body has {batch.num_rows} rows, the record says {count}")
    return batch


def from_rows(rows: Sequence[BatchRow]) -> pa.RecordBatch:
    """Return messages as a batch; columns that no message uses are left out. LocalMisuse for text that is not UTF-8."""
    columns: dict[str, pa.Array] = {"body": pa.array([row.body for row in rows], pa.binary())}
    for name, values in (("key", [row.key for row in rows]), ("tag", [row.tag for row in rows])):
        if any(values):
            columns[name] = _text(name, [value or None for value in values])
    if any(not 0 <= row.born_ms <= _TIME_MS_MAX for row in rows):
        raise LocalMisuse("a message was born before 1970 or too far in the future for a timestamp")
    columns["bornTimestamp"] = pa.array([row.born_ms * _MICROSECONDS for row in rows], pa.int64()).cast(TIME)
    if any(row.properties for row in rows):
        edges = [0]
        for row in rows:
            edges.append(edges[-1] + len(row.properties))
        pairs = list(chain.from_iterable(row.properties for row in rows))
        keys = _text("property", [key for key, _ in pairs])
        values = _text("property", [value for _, value in pairs])
        columns["properties"] = pa.MapArray.from_arrays(pa.array(edges, pa.int32()), keys, values)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def to_rows(batch: pa.RecordBatch, born_ms: int) -> list[BatchRow]:
    """Return the messages of a decoded batch (slice it first); `born_ms` is for a batch without times."""
    count = batch.num_rows
    found: dict[str, list[Any]] = {
        name: batch.column(name).to_pylist() for name in ("body", "properties") if name in batch.schema.names
    }
    for name in ("key", "tag"):
        has = name in batch.schema.names
        found[name] = batch.column(name).cast(pa.binary()).to_pylist() if has else [None] * count
    if "bornTimestamp" in batch.schema.names:
        found["born"] = [time // _MICROSECONDS for time in batch.column("bornTimestamp").cast(pa.int64()).to_pylist()]
    pairs = found.get("properties") or [()] * count
    times = found.get("born") or [born_ms] * count
    return [
        BatchRow(body, born, key or b"", tag or b"", tuple((k.encode(), (v or "").encode()) for k, v in properties))
        for body, born, key, tag, properties in zip(
            found["body"], times, found["key"], found["tag"], pairs, strict=True
        )
    ]


def _text(what: str, values: list[bytes | None] | list[bytes]) -> pa.Array:
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise LocalMisuse(f"{what} of a message is not UTF-8, which a batch needs: {error}") from error


def _unpacked(body: Buffer, codec: int) -> pa.Buffer:
    """Return the stream of a body, unpacked to exactly its declared size."""
    if codec == CODEC_NONE:
        return pa.py_buffer(body)
    packer = _CODECS.get(codec)
    if packer is None:
        raise CorruptRecord(f"the body is compressed by the unknown codec {codec}")
    if len(body) < _RAW_SIZE.size:
        raise CorruptRecord(f"a compressed body of {len(body)} bytes has no size")
    (size,) = _RAW_SIZE.unpack_from(body)
    if size > RAW_BYTES_MAX:
        raise CorruptRecord(f"the body declares {size} unpacked bytes, the limit is {RAW_BYTES_MAX}")
    try:
        return packer.decompress(pa.py_buffer(body).slice(_RAW_SIZE.size), size)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptRecord(f"the body cannot be unpacked: {error}") from error


def _schema(stream: pa.Buffer) -> tuple[pa.Schema, int]:
    """Return the stream's schema and its end; a cached encoding is not parsed again."""
    end = _message_end(stream, 0)
    spelling = stream[:end].to_pybytes()
    schema = _known_schemas.get(spelling)
    if schema is None:
        data = spelling[_MESSAGE.size :]
        table, fields, _ = _head(data, _KIND_SCHEMA)
        if fields[0] and any(data[table + fields[0] : table + fields[0] + _U16.size]):
            raise CorruptRecord("the body's schema is big-endian")
        try:
            schema = pa.ipc.read_schema(stream[:end])
            wrong = _wrong_schema(schema)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptRecord(f"the body's schema is malformed: {error}") from error
        if wrong:
            raise CorruptRecord(wrong)
        if len(_known_schemas) >= SCHEMAS_REMEMBERED_MAX:
            _known_schemas.clear()
        _known_schemas[spelling] = schema
    return schema, end


def _check_batch(stream: pa.Buffer, at: int, count: int) -> int:
    """Check the head of the record batch message at `at` and that nothing follows it; return where it ends."""
    meta_end = _message_end(stream, at)
    data = stream[at + _MESSAGE.size : meta_end].to_pybytes()
    table, fields, body_length = _head(data, _KIND_BATCH)
    rows = int.from_bytes(data[table + fields[0] : table + fields[0] + _I64.size], "little") if fields[0] else 0
    if rows != count:
        raise CorruptRecord(f"the body has {rows} rows, the record says {count}")
    if fields[3]:
        raise CorruptRecord("the buffers of the body's record batch are compressed one by one")
    end = meta_end + body_length
    rest = len(stream) - end
    if body_length < 0 or rest not in (0, len(_END)) or (rest and stream[end:].to_pybytes() != _END):
        raise CorruptRecord(f"the body's record batch ends at {end}, its stream at {len(stream)}")
    return end


def _message_end(stream: pa.Buffer, at: int) -> int:
    """Return the end of the metadata of the message at `at`."""
    if len(stream) < at + _MESSAGE.size:
        raise CorruptRecord(f"the body's stream of {len(stream)} bytes has no message at {at}")
    mark, size = _MESSAGE.unpack_from(stream, at)
    end = at + _MESSAGE.size + int(size)
    if mark != _CONTINUATION or size <= 0 or end > len(stream):
        raise CorruptRecord(f"the body's stream has no message at {at}")
    return end


def _head(data: bytes, kind: int) -> tuple[int, tuple[int, ...], int]:
    """Return (start of the header table of an IPC message, places of its first fields in it, length of the body).

    Parses only what is needed before Arrow reads the message, which then verifies the whole flatbuffer. A place is 0
    for a field that is left out.
    """
    try:
        (at,) = _U32.unpack_from(data)
        _version, kind_at, header_at, length_at = _fields(data, at)
        if not (kind_at and header_at) or data[at + kind_at] != kind:
            raise CorruptRecord("the body's stream is not one schema and one record batch")
        length = _I64.unpack_from(data, at + length_at)[0] if length_at else 0
        table = at + header_at + _U32.unpack_from(data, at + header_at)[0]
        return table, _fields(data, table), length
    except (struct.error, IndexError) as error:
        raise CorruptRecord("the head of a message in the body's stream points outside of it") from error


def _fields(data: bytes, at: int) -> tuple[int, ...]:
    """Return the places of the first four fields of the flatbuffer's table at `at`."""
    fields_at = at - _I32.unpack_from(data, at)[0]
    if fields_at < 0:
        raise CorruptRecord("the head of a message in the body's stream points outside of it")
    count = min(max(_U16.unpack_from(data, fields_at)[0] - 4 >> 1, 0), len(_NO_FIELDS))
    places: tuple[int, ...] = _PLACES[count].unpack_from(data, fields_at + 4)
    return places + _NO_FIELDS[count:]


def _wrong_schema(schema: pa.Schema) -> str | None:
    names = list(schema.names)
    if not names or names[0] != "body" or names != [name for name in COLUMNS if name in names]:
        return f"the columns of a batch are {', '.join(COLUMNS)} in this order and at least body, not {names}"
    for name, kind in COLUMNS.items():
        if name in names and schema.field(name).type != kind:
            return f"column {name} of a batch is {kind}, not {schema.field(name).type}"
    return None


def _wrong_nulls(batch: pa.RecordBatch) -> str | None:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in REQUIRED and column.null_count:
            return f"column {name} of a batch has nulls"
        if name == "properties" and (column.keys.null_count or column.items.null_count):
            return "a property of a batch has no name or no value"
    return None
