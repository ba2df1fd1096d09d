"""Rows → batch entries for a batch topic: Spark's Arrow columns become the body of a batch record, nothing per row.

One entry is one record of up to `rows_max` rows, compressed as a whole. Keys and tags are text there, a missing body is
an empty one, a property without a value has an empty one; all rows are born when they are encoded, which the record
says once. Invariant: every row is in exactly one entry, in order. Thread rule: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from remoting.batches import body
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records import image, record
from spark_connector.errors import OptionError
from spark_connector.writing.row_encoder import SHORT_MAX, EncodedRows

RAW_BYTES_MAX = 2 * 1024 * 1024
"""Bytes of rows in one record before compression; a larger row makes a larger record, up to the broker's limit."""
CODECS = {"none": record.CODEC_NONE, "lz4": record.CODEC_LZ4, "zstd": record.CODEC_ZSTD}


def encode_batches(columns: Mapping[str, pa.Array], topic: str, codec: str, rows_max: int, born_ms: int) -> EncodedRows:
    """Encode rows given as columns `body`, `key`, `tag`, `properties` and `queue`, those of each queue by themselves.

    Raises OptionError naming what fits no message.
    """
    entries, counts = [], []
    for queue, own in _by_queue(columns):
        rows = _rows(own)
        for begin in range(0, rows.num_rows, rows_max):
            for piece in _cut(rows.slice(begin, rows_max)):
                try:
                    packed = body.encode(piece, CODECS[codec])
                except LocalMisuse as error:
                    raise OptionError(str(error)) from error
                counts.append(piece.num_rows)
                entries.append(
                    image.encode_batch_image(
                        topic=topic.encode(),
                        queue_index=queue,
                        born_ms=born_ms,
                        body=packed,
                        count=piece.num_rows,
                        codec=CODECS[codec],
                    )
                )
    edges = np.concatenate([[0], np.cumsum([len(entry) for entry in entries])]).astype(np.int64)
    return EncodedRows(memoryview(b"".join(entries)), edges, np.array(counts, np.int64))


def _by_queue(columns: Mapping[str, pa.Array]) -> Iterator[tuple[int, Mapping[str, pa.Array]]]:
    """The rows of each queue, in their order."""
    if "queue" not in columns:
        yield image.QUEUE_INDEX_ANY, columns
        return
    queues = columns["queue"].to_numpy()
    present = np.unique(queues).tolist()
    for queue in present:
        mask = None if len(present) == 1 else pa.array(queues == queue)
        yield queue, columns if mask is None else {name: column.filter(mask) for name, column in columns.items()}


def _cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halve until the pieces are small enough."""
    if rows.num_rows < 2 or rows.nbytes <= RAW_BYTES_MAX:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _cut(rows.slice(0, half))
    yield from _cut(rows.slice(half))


def _rows(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """The columns a body has; those without a value are left out."""
    found = {"body": pc.fill_null(columns["body"].cast(pa.binary()), b"")}
    for name in ("key", "tag"):
        if name in columns and columns[name].null_count < len(columns[name]):
            found[name] = _text(name, columns[name])
    properties = _properties(columns["properties"]) if "properties" in columns else None
    if properties is not None:
        found["properties"] = properties
    return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))


def _text(name: str, column: pa.Array) -> pa.Array:
    """Text, whatever it came as."""
    try:
        text = column.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise OptionError(
            f"column {name!r} holds bytes that are not UTF-8, which a batch topic needs: {error}"
        ) from error
    _check_length(pc.max(pc.binary_length(text)).as_py() or 0, name)
    return text


def _properties(column: pa.Array) -> pa.Array | None:
    """The map without nulls and without the MQTT topic of rows that were read from one; None when nothing is left."""
    if column.null_count:
        column = pc.if_else(column.is_valid(), column, pa.scalar([], column.type))
    rows = len(column)
    edges = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + rows + 1]
    low, high = int(edges[0]), int(edges[-1])
    keys = column.keys.slice(low, high - low)
    values = column.items.slice(low, high - low)
    values = pc.fill_null(values if values.type == pa.string() else _text("headers", values), "")
    edges = edges - low
    kept = pc.not_equal(keys, record.MQTT_TOPIC_KEY.decode()).to_numpy(zero_copy_only=False)
    if not kept.any():
        return None
    if not kept.all():
        edges = np.concatenate([[0], np.cumsum(kept)])[edges]
        keys, values = keys.filter(pa.array(kept)), values.filter(pa.array(kept))
    sizes = pc.add(pc.binary_length(keys), pc.binary_length(values)).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    _check_length(int(np.max(ends[edges[1:]] - ends[edges[:-1]])), "properties")
    return pa.MapArray.from_arrays(pa.array(edges.astype(np.int32)), keys, values)


def _check_length(length: int, what: str) -> None:
    if length > SHORT_MAX:
        raise OptionError(f"{what} of {length} bytes in a row, {SHORT_MAX} fit")
