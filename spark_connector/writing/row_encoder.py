"""Rows → record images or batch records, a whole Arrow batch at once: no Python object per row.

Images: the layout is `remoting.protocol.records.image`. Every part (header, lengths table, texts, properties, zeros,
body) becomes one Arrow binary column; joining them row by row is one kernel, and the data buffer of its result is the
request body. Invariant: the bytes are those of `encode_image` for the same row.

Properties of a message that have a column of their own in a sink: the delay, the MQTT content type, the trace context.

    column        property of an MQTT row    property of a row of a RocketMQ topic
    delay         delay-ms                   TIMER_DELAY_MS
    contentType   mqttContentType            mqttContentType
    traceparent   traceparent                traceparent

Invariant: where a column (or an option) has a value, the map `properties` has none of the same, so no message has two
of them; null and a delay of 0 count as no value.

Batch topics: one entry is one record of up to `rows_max` rows, compressed as a whole. Keys and tags are text there, a
missing body is an empty one, a property without a value has an empty one; all rows are born when they are encoded,
which the record holds once. Invariant: every row is in exactly one entry, in order. Thread rule: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from remoting.batches import body
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records import image, names, properties, record
from remoting.tracing.context import TRACEPARENT
from spark_connector.columns.layout import byte_strings, in_numpy, numbers, one
from spark_connector.errors import OptionError
from spark_connector.options.option_table import check_mqtt_topic, check_written_topic

Flags = np.ndarray[Any, np.dtype[np.bool_]]

MQTT_DELAY, QUEUE_DELAY = b"delay-ms", b"TIMER_DELAY_MS"
DELAY_KEYS = (MQTT_DELAY, QUEUE_DELAY, b"TIMER_DELAY_SEC", b"TIMER_DELIVER_MS", b"DELAY")
"""Every property by which a message can ask to be delivered later."""
DELAY_MS_MAX = 10**15 - 1
"""More digits no broker reads; what it allows is its own setting, days rather than years."""
EMPTY = one(b"", pa.binary())

Pair = tuple[pa.Array, pa.Array]
"""(keys, values) of one property; both are empty in the rows that do not have it."""


def own_pairs(columns: Mapping[str, pa.Array], is_mqtt: Flags, delay_ms: int) -> tuple[list[Pair], tuple[bytes, ...]]:
    """The properties that columns give, and the keys which the map of properties must not repeat.

    `delay_ms` is for rows without a value of their own. Raises OptionError naming column and value.
    """
    pairs: list[Pair] = []
    taken: tuple[bytes, ...] = ()
    if "delay" in columns or delay_ms:
        pairs += _delays(columns, is_mqtt, delay_ms)
        taken += DELAY_KEYS
    if "contentType" in columns:
        value = by_distinct(_binary(columns["contentType"]), properties.quoted)
        pairs.append(_where(pc.is_valid(value), properties.CONTENT_TYPE, pc.fill_null(value, EMPTY)))
        taken += (properties.CONTENT_TYPE,)
    if "traceparent" in columns:
        value = _binary(columns["traceparent"])
        pairs.append(_where(pc.is_valid(value), TRACEPARENT, pc.fill_null(value, EMPTY)))
        taken += (TRACEPARENT,)
    return pairs, taken


def by_distinct(column: pa.Array, change: Callable[[bytes], bytes]) -> pa.Array:
    """Apply a function to each distinct value; nulls stay null."""
    encoded = column.dictionary_encode()
    changed = byte_strings([change(value) for value in encoded.dictionary.to_pylist()])
    return changed.take(encoded.indices)


def _delays(columns: Mapping[str, pa.Array], is_mqtt: Flags, delay_ms: int) -> list[Pair]:
    delays = np.full(len(is_mqtt), delay_ms, np.int64)
    if "delay" in columns:
        delays = in_numpy(pc.fill_null(columns["delay"].cast(pa.int64()), one(delay_ms, pa.int64())))
        wrong = delays[(delays < 0) | (delays > DELAY_MS_MAX)]
        if len(wrong):
            raise OptionError(f"column 'delay' holds {int(wrong[0])}: milliseconds of 0 or more are needed")
    text = numbers(delays).cast(pa.string()).cast(pa.binary())
    found = []
    for key, flags in ((MQTT_DELAY, is_mqtt), (QUEUE_DELAY, ~is_mqtt)):
        wished = flags & (delays > 0)
        if wished.any():
            found.append(_where(numbers(wished), key, text))
    return found


def _where(present: pa.Array, key: bytes, values: pa.Array) -> Pair:
    return pc.if_else(present, one(key, pa.binary()), EMPTY), pc.if_else(present, values, EMPTY)


HEADER = np.dtype(
    [
        ("size", "<u4"), ("magic", "<u4"), ("packet_id", "<u4"), ("queue_index", "<u4"), ("position", "<u8"),
        ("born_ms", "<i8"), ("store_ms", "<i8"), ("body_len", "<u4"), ("body_off", "<u4"), ("flags", "<u4"),
        ("count", "<u4"), ("n_dispatch", "<u2"), ("n_props", "<u2"), ("topic_len", "<u2"), ("keys_len", "<u2"),
        ("tags_len", "<u2"), ("props_len", "<u2"), ("tag_hash", "<u4"), ("producer_seq", "<u8"),
    ]
)  # fmt: skip
assert HEADER.itemsize == record.HEADER_SIZE
SKIPPED_WORDS = 5
"""Size, packet id and queue, position, times: the words of 8 bytes before the lengths of an image's parts."""
SHORT_MAX = 0xFFFF
"""Longest text or property: its length field has 16 bits."""
KEY_SHOWN_MAX = 40
"""Characters of a key in an error."""
BODY_BYTES_MAX = 15 * 1024 * 1024
"""Longest body that fits a request; what a broker takes is its own setting (4 MiB), refused by it in words."""


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Images back to back; image i is data[edges[i]:edges[i + 1]] and holds counts[i] rows (None: one each)."""

    data: memoryview
    edges: np.ndarray[Any, np.dtype[np.int64]]
    counts: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self.edges) - 1

    def rows(self, begin: int, end: int) -> int:
        """Rows in the images `begin` to `end`."""
        return end - begin if self.counts is None else int(self.counts[begin:end].sum())


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a row gets that has no column for it."""

    qos: int
    retain: bool
    born_ms: int
    delay_ms: int = 0


def encode_rows(
    columns: Mapping[str, pa.Array], rows: int, defaults: Defaults, labels: Mapping[str, str] | None = None
) -> EncodedRows:
    """Encode rows given as columns `topic`, `mqttTopic`, `key`, `tag`, `properties`, `contentType`, `traceparent`,
    `delay` (ms), `body`, `qos`, `retain`, `queue` (its number, QUEUE_INDEX_ANY for whichever).

    All but `body` and one of the topics may be missing; `labels` has the user's name of a column, where that is
    something else. Raises OptionError naming the column and value that is wrong.
    """
    if rows == 0:
        return EncodedRows(memoryview(b""), np.zeros(1, np.int64))
    nothing = pa.repeat(EMPTY, rows)
    mqtt = _binary(columns["mqttTopic"]) if "mqttTopic" in columns else pa.nulls(rows, pa.binary())
    is_mqtt = pc.is_valid(mqtt)
    plain = _binary(columns["topic"]) if "topic" in columns else pa.nulls(rows, pa.binary())
    parent = by_distinct(mqtt, _parent_of)
    elsewhere = by_distinct(pc.if_else(is_mqtt, one(None, pa.binary()), plain), _plain_of)
    topic = pc.if_else(is_mqtt, parent, elsewhere)
    if topic.null_count:
        raise OptionError(_without_topic(columns, topic))
    key, tag, body = (_filled(columns[name]) if name in columns else nothing for name in ("key", "tag", "body"))
    flag = in_numpy(is_mqtt)
    own = pc.if_else(is_mqtt, one(record.MQTT_TOPIC_KEY, pa.binary()), EMPTY), pc.fill_null(mqtt, EMPTY)
    more, taken = own_pairs(columns, flag, defaults.delay_ms)
    singles = [_single(*pair) for pair in (own, *more)]
    has_pairs = "properties" in columns
    dropped = (record.MQTT_TOPIC_KEY, *taken)
    table, pairs, counts = _pairs(columns["properties"], dropped) if has_pairs else (nothing, nothing, _zeros(rows))
    texts = [part for keys, values, _table in singles for part in (keys, values)]
    meta = (*(single[2] for single in singles), table, topic, key, tag, *texts, pairs)
    head = np.zeros(rows, HEADER)
    head["magic"], head["count"] = record.MESSAGE, 1
    head["flags"] = _flags(columns, flag, defaults)
    head["queue_index"] = columns["queue"].to_numpy() if "queue" in columns else image.QUEUE_INDEX_ANY
    head["born_ms"] = defaults.born_ms
    head["n_props"] = counts + sum((_lengths(single[0]) > 0).astype(np.int64) for single in singles)
    calls = {name: name for name in ("topic", "key", "tag", "body")} | dict(labels or {})
    for field, name, part in (("topic_len", "topic", topic), ("keys_len", "key", key), ("tags_len", "tag", tag)):
        head[field] = _fitting(_lengths(part), calls[name], key, SHORT_MAX)
    properties = sum((_lengths(part) for part in texts), _lengths(pairs))
    head["props_len"] = _fitting(
        properties, calls.get("headers", calls.get("properties", "properties")), key, SHORT_MAX
    )
    head["body_len"] = _fitting(_lengths(body), calls["body"], key, BODY_BYTES_MAX)
    meta_end = HEADER.itemsize + sum((_lengths(part) for part in meta), _zeros(rows))
    head["body_off"] = (meta_end + 7) & ~7
    body_end = head["body_off"] + _lengths(body)
    head["size"] = (body_end + 7) & ~7
    joined = pc.binary_join_element_wise(
        _fixed(head), *meta, _zeros_behind(meta_end), body, _zeros_behind(body_end), EMPTY
    )
    edges = np.zeros(rows + 1, np.int64)
    np.cumsum(head["size"].astype(np.int64), out=edges[1:])
    start = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset]
    return EncodedRows(memoryview(joined.buffers()[2])[start : start + int(edges[-1])], edges)


def _binary(column: pa.Array) -> pa.Array:
    """Text or bytes as bytes."""
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _filled(column: pa.Array) -> pa.Array:
    return pc.fill_null(_binary(column), EMPTY)


def _lengths(part: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    found: np.ndarray[Any, np.dtype[np.int64]] = in_numpy(pc.binary_length(part)).astype(np.int64)
    return found


def _zeros(rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.zeros(rows, np.int64)


def _zeros_behind(ends: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
    """The zeros from each end to the next multiple of 8."""
    sizes = -ends & 7
    return _rows_like(np.zeros(int(sizes.sum()), np.uint8), np.concatenate([[0], np.cumsum(sizes)]))


def _short(lengths: np.ndarray[Any, np.dtype[np.int64]], what: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Check that the lengths of properties fit their 16-bit field."""
    if len(lengths) and int(np.max(lengths)) > SHORT_MAX:
        raise OptionError(f"{what} of {int(np.max(lengths))} bytes in a row, {SHORT_MAX} fit")
    return lengths


def _fitting(
    lengths: np.ndarray[Any, np.dtype[np.int64]], column: str, key: pa.Array, most: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Check that no row has more bytes of a column than fit; a row is named by its key."""
    size = int(np.max(lengths)) if len(lengths) else 0
    if size > most:
        text = key[int(np.argmax(lengths))].as_py().decode("utf-8", "replace")
        shown = text if len(text) <= KEY_SHOWN_MAX else text[:KEY_SHOWN_MAX] + "…"
        whose = f"the row with key {shown!r}" if text else "a row"
        raise OptionError(f"column {column!r} holds {size} bytes in {whose}, {most} fit")
    return lengths


def _fixed(head: np.ndarray[Any, Any]) -> pa.Array:
    """Fixed-size headers as a binary column."""
    return _rows_like(head.view(np.uint8), np.arange(len(head) + 1) * head.itemsize)


def _rows_of(data: np.ndarray[Any, Any], present: np.ndarray[Any, Any], size: int) -> pa.Array:
    """A binary column with the next `size` bytes of `data` in each present row, nothing in the others."""
    return _rows_like(data.view(np.uint8), np.concatenate([[0], np.cumsum(present * size)]))


def _single(keys: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """(keys, values, lengths table) of one property; rows whose key is empty do not have it."""
    present = _lengths(keys) > 0
    lengths = np.stack([_short(_lengths(keys), "topic"), _short(_lengths(values), "property value")], axis=1)
    table = np.ascontiguousarray(lengths[present].astype("<u2"))
    return keys, values, _rows_of(table, present, 4)


def _without_topic(columns: Mapping[str, pa.Array], topic: pa.Array) -> str:
    """The error text for rows that name no topic."""
    given = [repr(name) for name in ("mqttTopic", "topic") if name in columns]
    reason = f"column {given[0]} is null" if len(given) == 1 else f"the columns {' and '.join(given)} are both null"
    return f"a row has neither an MQTT topic nor a topic: {reason} in {topic.null_count} of {len(topic)} rows"


def _pairs(
    column: pa.Array, dropped: Sequence[bytes]
) -> tuple[pa.Array, pa.Array, np.ndarray[Any, np.dtype[np.int64]]]:
    """(lengths table, key-value bytes, number of pairs) of each row of a map column."""
    rows = len(column)
    edges = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + rows + 1].astype(np.int64)
    counts = edges[1:] - edges[:-1]
    if column.null_count:
        valid = in_numpy(column.is_valid())
        if counts[~valid].any():
            column = pc.if_else(column.is_valid(), column, pa.scalar([], column.type))
            return _pairs(column, dropped)
    keys, values = _filled(column.keys), _filled(column.items)
    shift = int(edges[0])
    keys, values = keys.slice(shift, int(edges[-1]) - shift), values.slice(shift, int(edges[-1]) - shift)
    edges -= shift
    kept = _none_of(keys, dropped)
    if pc.any(pc.invert(kept)).as_py():
        # Rows that were read from a topic carry it as a property; where they go now depends on the columns alone.
        edges = np.concatenate([[0], np.cumsum(in_numpy(kept))])[edges]
        keys, values = keys.filter(kept), values.filter(kept)
    lengths = np.stack([_short(_lengths(keys), "property key"), _short(_lengths(values), "property value")], axis=1)
    table = _rows_like(lengths.astype("<u2").view(np.uint8).ravel(), 4 * edges)
    joined = pc.binary_join_element_wise(keys, values, EMPTY)
    ends = np.concatenate([[0], np.cumsum(lengths.sum(axis=1))])
    start = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset] if len(joined) else 0
    data = np.frombuffer(joined.buffers()[2], np.uint8)[start:] if len(joined) and joined.buffers()[2] else _zeros(0)
    return table, _rows_like(data.view(np.uint8), ends[edges]), edges[1:] - edges[:-1]


def _none_of(keys: pa.Array, dropped: Sequence[bytes]) -> pa.Array:
    if len(dropped) == 1:
        return pc.not_equal(keys, one(dropped[0], pa.binary()))
    return pc.invert(pc.is_in(keys, value_set=byte_strings(dropped)))


def _rows_like(data: np.ndarray[Any, Any], edges: np.ndarray[Any, Any]) -> pa.Array:
    """A binary column over `data` with the given edges."""
    buffers = [None, pa.py_buffer(edges.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(edges) - 1, buffers)


def _flags(columns: Mapping[str, pa.Array], is_mqtt: np.ndarray[Any, Any], defaults: Defaults) -> np.ndarray[Any, Any]:
    """Low byte of the record flags: QoS, retain and MQTT bits of MQTT rows."""
    quality = np.full(len(is_mqtt), defaults.qos, np.int64)
    if "qos" in columns:
        quality = in_numpy(pc.fill_null(columns["qos"].cast(pa.int64()), one(defaults.qos, pa.int64())))
        wrong = quality[(quality < 0) | (quality > 2)]
        if len(wrong):
            raise OptionError(f"column 'qos' holds {int(wrong[0])}: 0, 1 or 2 is needed")
    retain = np.full(len(is_mqtt), defaults.retain)
    if "retain" in columns:
        retain = pc.fill_null(columns["retain"], defaults.retain).to_numpy(zero_copy_only=False)
    flags = quality | np.where(retain, record.FLAG_RETAIN, 0) | record.FLAG_MQTT
    return np.where(is_mqtt, flags, 0).astype(np.uint8)


def _parent_of(mqtt_topic: bytes) -> bytes:
    wrong = check_mqtt_topic(mqtt_topic)
    if wrong:
        raise OptionError(f"MQTT topic {mqtt_topic.decode(errors='replace')!r}: {wrong}")
    return names.parent_topic(mqtt_topic)


def _plain_of(topic: bytes) -> bytes:
    wrong = check_written_topic(topic.decode(errors="replace"))
    if wrong:
        raise OptionError(f"topic {wrong}")
    return topic


COMPARED_HEAD = 2 * SKIPPED_WORDS + 4
"""Numbers of 32 bits before the parts of a row that is compared."""
RAW_BYTES_MAX = 2 * 1024 * 1024
"""Bytes of rows in one record before compression; a larger row makes a larger record, up to the broker's limit."""
CODECS = {"none": record.CODEC_NONE, "lz4": record.CODEC_LZ4, "zstd": record.CODEC_ZSTD}


def encode_batches(columns: Mapping[str, pa.Array], topic: str, codec: str, rows_max: int, born_ms: int) -> EncodedRows:
    """Encode rows given as columns `body`, `key`, `tag`, `properties`, `contentType`, `traceparent` and `queue`, those
    of each queue by themselves.

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


def compared_rows(columns: Mapping[str, pa.Array], rows: int) -> EncodedRows:
    """Rows of a batch topic for `digests`: behind the words that it skips, the lengths of all parts and the parts.

    An image would hold the same, at twice the cost of a batch record.
    """
    nothing = pa.repeat(EMPTY, rows)
    key, tag, body = (_filled(columns[name]) if name in columns else nothing for name in ("key", "tag", "body"))
    more, _ = own_pairs(columns, np.zeros(rows, np.bool_), 0)
    singles = [_single(*pair) for pair in more]
    table, names_of, values, counts = nothing, nothing, nothing, _zeros(rows)
    if "properties" in columns:
        table, names_of, values, counts = _side_by_side(columns["properties"])
    head = np.zeros((rows, COMPARED_HEAD), "<u4")
    lengths = (_lengths(body), _lengths(key), _lengths(tag), counts)
    head[:, -len(lengths) :] = np.stack(lengths, axis=1)
    own = [part for keys, texts, sizes in singles for part in (sizes, keys, texts)]
    parts = [part for part in (table, names_of, values, key, tag, body, *own) if part is not nothing]
    ends = sum((_lengths(part) for part in parts), _zeros(rows)) + 4 * COMPARED_HEAD
    joined = pc.binary_join_element_wise(_fixed_rows(head), *parts, _zeros_behind(ends), EMPTY)
    edges = np.zeros(rows + 1, np.int64)
    np.cumsum((ends + 7) & ~7, out=edges[1:])
    start = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset]
    return EncodedRows(memoryview(joined.buffers()[2])[start : start + int(edges[-1])], edges)


def _side_by_side(column: pa.MapArray) -> tuple[pa.Array, pa.Array, pa.Array, np.ndarray[Any, np.dtype[np.int64]]]:
    """(lengths, keys, values, number of pairs) of each row of a map column: the bytes as they lie, without copies."""
    rows = len(column)
    if column.null_count:
        column = pc.if_else(column.is_valid(), column, pa.scalar([], column.type))
    edges = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + rows + 1].astype(np.int64)
    first, count = int(edges[0]), int(edges[-1] - edges[0])
    found, sizes = [], []
    for side in (column.keys, column.items):
        texts = _filled(side.slice(first, count))
        ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + count + 1]
        held = [None, pa.py_buffer(ends[edges - first]), texts.buffers()[2]]
        found.append(pa.Array.from_buffers(pa.binary(), rows, held))
        sizes.append(np.diff(ends))
    lengths = np.ascontiguousarray(np.stack(sizes, axis=1).astype("<u4")).view(np.uint8).ravel()
    return _rows_like(lengths, 8 * (edges - first)), found[0], found[1], np.diff(edges)


def _fixed_rows(head: np.ndarray[Any, Any]) -> pa.Array:
    return _rows_like(head.view(np.uint8).ravel(), np.arange(len(head) + 1) * head.shape[1] * head.itemsize)


def _by_queue(columns: Mapping[str, pa.Array]) -> Iterator[tuple[int, Mapping[str, pa.Array]]]:
    """The rows of each queue, in their order."""
    if "queue" not in columns:
        yield image.QUEUE_INDEX_ANY, columns
        return
    queues = columns["queue"].to_numpy()
    present = np.unique(queues).tolist()
    for queue in present:
        mask = None if len(present) == 1 else numbers(queues == queue)
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
    more, taken = own_pairs(columns, np.zeros(len(found["body"]), np.bool_), 0)
    properties = _properties(columns["properties"], taken) if "properties" in columns else None
    for pair in more:
        properties = _with_pair(properties, pair)
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


def _properties(column: pa.Array, taken: Sequence[bytes]) -> pa.Array | None:
    """The map without nulls, without the MQTT topic of rows that were read from one and without the keys `taken`.

    None when nothing is left.
    """
    if column.null_count:
        column = pc.if_else(column.is_valid(), column, pa.scalar([], column.type))
    rows = len(column)
    edges = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + rows + 1]
    low, high = int(edges[0]), int(edges[-1])
    keys = column.keys.slice(low, high - low)
    values = column.items.slice(low, high - low)
    values = pc.fill_null(values if values.type == pa.string() else _text("headers", values), "")
    edges = edges - low
    kept = _none_of(keys.cast(pa.binary()), (record.MQTT_TOPIC_KEY, *taken)).to_numpy(zero_copy_only=False)
    if not kept.any():
        return None
    if not kept.all():
        edges = np.concatenate([[0], np.cumsum(kept)])[edges]
        keys, values = keys.filter(numbers(kept)), values.filter(numbers(kept))
    return _map(edges, keys, values)


def _with_pair(column: pa.Array | None, pair: Pair) -> pa.Array | None:
    """The map with one more property behind the others, in the rows that have it; None without any property."""
    present = _lengths(pair[0]) > 0
    if not present.any():
        return column
    own = [_text("properties", part.filter(numbers(present))) for part in pair]
    if column is None:
        return _map(np.concatenate([[0], np.cumsum(present)]), own[0], own[1])
    edges = np.frombuffer(column.buffers()[1], np.int32)[: len(column) + 1]
    old = len(column.keys)
    order = pa.array(np.insert(np.arange(old), edges[1:][present], old + np.arange(len(own[0]))))
    keys, values = (
        pa.concat_arrays([theirs, ours]).take(order)
        for theirs, ours in zip((column.keys, column.items), own, strict=True)
    )
    return _map(edges + np.concatenate([[0], np.cumsum(present)]), keys, values)


def _map(edges: np.ndarray[Any, Any], keys: pa.Array, values: pa.Array) -> pa.Array:
    """Properties by row, none of them longer than fits."""
    sizes = pc.add(pc.binary_length(keys), pc.binary_length(values)).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    _check_length(int(np.max(ends[edges[1:]] - ends[edges[:-1]])), "properties")
    return pa.MapArray.from_arrays(numbers(edges.astype(np.int32)), keys, values)


def _check_length(length: int, what: str) -> None:
    if length > SHORT_MAX:
        raise OptionError(f"{what} of {length} bytes in a row, {SHORT_MAX} fit")
