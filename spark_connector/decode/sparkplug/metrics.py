"""The metrics of many messages as one Arrow array: members are gathered flat, rows are offsets into them.

Invariant: as many rows as `end_row` was called; a metric that cannot be read in part is there with what can. Pure.

Values of Sparkplug metrics: the specification's data types → the typed members of a metric (section 6.4.16).

Small whole numbers travel in `int_value`, signed ones in two's complement; senders differ in whether they extend the
sign to 8, 16 or 32 bits and in whether `long_value` may hold a small number, so every form that has one meaning is
taken. DataSets, Templates and arrays become JSON text. Invariant: a value that is not of its type raises Mismatch.
Pure.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_connector.decode.decoded import MICROSECONDS_MAX, MICROSECONDS_MIN
from spark_connector.decode.sparkplug.payload import datatype_name
from spark_connector.errors import Mismatch

DEPTH_MAX = 16
"""Levels of templates inside templates and property sets inside property sets; what is deeper is a mismatch."""
LONG_BOUND = 1 << 63


class Value(NamedTuple):
    """The members of a metric that hold its value; all null for a metric without one."""

    long: int | None = None
    double: float | None = None
    boolean: bool | None = None
    text: str | None = None
    bytes: bytes | None = None
    time: int | None = None
    """Microseconds since 1970."""


NOTHING = Value()
Plain = Any
"""A value as JSON has it."""


def value_of(datatype: int, name: str, raw: Any) -> Value:
    """Return the value of one metric: its data type, the field of the `oneof` it came in, and what was in there."""
    read = _READERS.get(datatype)
    if read is None:
        raise Mismatch("a data type of a metric", f"number {datatype}")
    return read(name, raw)


def microseconds(milliseconds: int) -> int:
    """A Sparkplug time as Spark's."""
    made = milliseconds * 1000
    if not MICROSECONDS_MIN <= made <= MICROSECONDS_MAX:
        raise Mismatch("a time of the years 1 to 9999", f"{milliseconds} ms")
    return made


def plain_of(datatype: int, message: Any, depth: int = 0) -> Plain:
    """Return the value of a property, a parameter, a DataSet's cell or a template's metric, for JSON."""
    if depth > DEPTH_MAX:
        raise Mismatch(f"at most {DEPTH_MAX} levels", "more")
    name = message.WhichOneof("value")
    if name is None or getattr(message, "is_null", False):
        return None
    raw = getattr(message, name)
    if name == "propertyset_value":
        return property_map(raw, depth + 1)
    if name == "propertysets_value":
        return [property_map(one, depth + 1) for one in raw.propertyset]
    if name == "dataset_value":
        return dataset(raw)
    if name == "template_value":
        return template(raw, depth + 1)
    value = value_of(datatype, name, raw)
    return _first(value)


def _first(value: Value) -> Plain:
    if value.text is not None:
        return value.text
    if value.bytes is not None:
        return base64.b64encode(value.bytes).decode()
    if value.boolean is not None:
        return value.boolean
    if value.long is not None:
        return value.long
    return _finite(value.double)


def property_map(properties: Any, depth: int = 0) -> dict[str, Plain]:
    """The properties of a metric by name; keys and values are two lists of the same length."""
    if len(properties.keys) != len(properties.values):
        raise Mismatch("a value for each property", f"{len(properties.values)} for {len(properties.keys)}")
    pairs = zip(properties.keys, properties.values, strict=True)
    return {key: plain_of(value.type, value, depth) for key, value in pairs}


def dataset(message: Any) -> dict[str, Plain]:
    """A table: names and types of its columns, and its rows."""
    kinds = list(message.types)
    if len(kinds) != len(message.columns):
        raise Mismatch("a type for each column", f"{len(kinds)} for {len(message.columns)}")
    rows = []
    for row in message.rows:
        if len(row.elements) != len(kinds):
            raise Mismatch(f"{len(kinds)} cells in a row", str(len(row.elements)))
        rows.append([plain_of(kind, cell) for kind, cell in zip(kinds, row.elements, strict=True)])
    return {"columns": list(message.columns), "types": [datatype_name(kind) for kind in kinds], "rows": rows}


def template(message: Any, depth: int = 0) -> dict[str, Plain]:
    """A template with its metrics and parameters; members that are not set are left out."""
    if depth > DEPTH_MAX:
        raise Mismatch(f"at most {DEPTH_MAX} levels", "more")
    made: dict[str, Plain] = {}
    for name, field in (("version", "version"), ("templateRef", "template_ref"), ("isDefinition", "is_definition")):
        if message.HasField(field):
            made[name] = getattr(message, field)
    made["metrics"] = [
        {"name": one.name, "datatype": datatype_name(one.datatype), "value": plain_of(one.datatype, one, depth)}
        for one in message.metrics
    ]
    if message.parameters:
        made["parameters"] = [
            {"name": one.name, "type": datatype_name(one.type), "value": plain_of(one.type, one, depth)}
            for one in message.parameters
        ]
    return made


def to_json(plain: Plain) -> str:
    """JSON text, the same for the same value."""
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _finite(number: float | None) -> Plain:
    """JSON has no numbers that are none."""
    return number if number is None or math.isfinite(number) else str(number)


Read = Callable[[str, Any], Value]
WHOLES, REALS = ("int_value", "long_value"), ("float_value", "double_value")


def _whole(bits: int, *, signed: bool) -> Read:
    wanted = f"{'Int' if signed else 'UInt'}{bits}"

    def read(name: str, raw: Any) -> Value:
        if name not in WHOLES:
            raise Mismatch(wanted, name)
        number = _signed(raw, bits, 32 if name == "int_value" else 64) if signed else raw
        if number is None or number >= 1 << bits:
            raise Mismatch(wanted, f"the number {raw}")
        if number >= LONG_BOUND:
            return Value(double=float(number), text=str(number))
        return Value(long=number, double=float(number))

    return read


def _signed(raw: int, bits: int, width: int) -> int | None:
    """Two's complement of `bits`, whose sign may have been extended to the width of the field; None for neither."""
    half = 1 << (bits - 1)
    if raw < half:
        return raw
    if raw < 1 << bits:
        return raw - (1 << bits)
    if raw >= (1 << width) - half:
        return raw - (1 << width)
    # A negative 32-bit number in a field of 64 bits may have been extended to 32 bits only.
    return raw - (1 << 32) if bits < 32 < width and (1 << 32) - half <= raw < 1 << 32 else None


def _held(wanted: str, names: tuple[str, ...], make: Callable[[Any], Value]) -> Read:
    """A value that comes in one of these fields."""

    def read(name: str, raw: Any) -> Value:
        if name not in names:
            raise Mismatch(wanted, name)
        return make(raw)

    return read


def _packed(code: str) -> Read:
    """Little-endian numbers back to back."""
    size = struct.calcsize(code)

    def read(name: str, raw: Any) -> Value:
        if name != "bytes_value" or len(raw) % size:
            raise Mismatch(f"an array of items of {size} bytes", name if name != "bytes_value" else f"{len(raw)} bytes")
        items = struct.unpack(f"<{len(raw) // size}{code}", raw)
        return Value(text=to_json([_finite(item) for item in items]), bytes=raw)

    return read


def _booleans(name: str, raw: Any) -> Value:
    """A count of 32 bits and then bits, the first in the highest place of its byte."""
    count = int.from_bytes(raw[:4], "little") if name == "bytes_value" and len(raw) >= 4 else -1
    if count < 0 or len(raw) != 4 + -(-count // 8):
        raise Mismatch("an array of booleans", name)
    bits = [bool(raw[4 + index // 8] >> (7 - index % 8) & 1) for index in range(count)]
    return Value(text=to_json(bits), bytes=raw)


def _strings(name: str, raw: Any) -> Value:
    """Texts, each with a NUL behind it."""
    if name != "bytes_value" or (raw and raw[-1]):
        raise Mismatch("an array of texts", name)
    try:
        items = [part.decode() for part in raw.split(b"\0")[:-1]]
    except UnicodeDecodeError:
        raise Mismatch("an array of texts", "bytes that are not UTF-8") from None
    return Value(text=to_json(items), bytes=raw)


def _unknown(name: str, raw: Any) -> Value:
    """A value without a type: by the field that holds it, whole numbers as if they had no sign."""
    kinds = {
        "int_value": 7, "long_value": 8, "float_value": 9, "double_value": 10, "boolean_value": 11, "string_value": 12,
        "bytes_value": 17, "dataset_value": 16, "template_value": 19,
    }  # fmt: skip
    return _READERS[kinds[name]](name, raw)


_READERS: dict[int, Read] = {
    0: _unknown,
    **{1 + place: _whole(8 << place, signed=True) for place in range(4)},
    **{5 + place: _whole(8 << place, signed=False) for place in range(4)},
    9: _held("Float", REALS, lambda raw: Value(double=raw)),
    10: _held("Double", REALS, lambda raw: Value(double=raw)),
    11: _held("Boolean", ("boolean_value",), lambda raw: Value(boolean=raw)),
    13: _held("DateTime", WHOLES, lambda raw: Value(long=raw, time=microseconds(raw))),
    16: _held("a DataSet", ("dataset_value",), lambda raw: Value(text=to_json(dataset(raw)))),
    19: _held("a Template", ("template_value",), lambda raw: Value(text=to_json(template(raw)))),
    **dict.fromkeys((12, 14, 15), _held("text", ("string_value",), lambda raw: Value(text=raw))),
    **dict.fromkeys((17, 18), _held("bytes", ("bytes_value",), lambda raw: Value(bytes=raw))),
    **{22 + place: _packed(code) for place, code in enumerate("bhiqBHIQfd")},
    32: _booleans,
    33: _strings,
    34: _packed("q"),
}


METADATA_FIELDS = {
    "isMultiPart": "is_multi_part", "contentType": "content_type", "size": "size", "seq": "seq",
    "fileName": "file_name", "fileType": "file_type", "md5": "md5", "description": "description",
}  # fmt: skip


class Known(NamedTuple):
    """What certificates declare of a message's metrics, or why they declare nothing."""

    aliases: dict[int, tuple[str, int]]
    datatypes: dict[str, int]
    missing: str


class MetricRows:
    """Gathers metrics row by row."""

    def __init__(self) -> None:
        self._metrics: list[tuple[Any, ...]] = []
        self._edges = [0]
        self._absent: list[bool] = []

    def end_row(self, *, present: bool) -> None:
        """The metrics added since the last call are one row's; null where there was no payload."""
        self._edges.append(len(self._metrics))
        self._absent.append(not present)

    def add_all(self, payload: Any, known: Known, default_time: int | None) -> str:
        """Add the metrics of a payload; return the first thing that is wrong, empty when nothing is."""
        reason = ""
        for metric in payload.metrics:
            wrong = self._add(metric, known, default_time)
            reason = reason or wrong
        return reason

    def _add(self, metric: Any, known: Known, default_time: int | None) -> str:
        alias = metric.alias
        if not alias and not metric.HasField("alias"):
            alias = None
        name, datatype, reason = _identity(metric.name, alias, metric.datatype, known)
        value, wrong = _value(metric, datatype)
        at = default_time
        if metric.timestamp:
            at, late = _time(metric.timestamp)
            wrong = wrong or late
        properties = metadata = None
        if metric.HasField("properties") or metric.HasField("metadata"):
            properties, metadata, odd = _extras(metric)
            wrong = wrong or odd
        if alias is not None and alias >= LONG_BOUND:
            alias, wrong = None, f"alias {alias} is above {LONG_BOUND - 1}"
        flags = (metric.is_historical, metric.is_transient, metric.is_null)
        self._metrics.append((name, alias, at, datatype_name(datatype), *flags, *value, properties, metadata))
        return f"metric {name or alias}: {reason or wrong}" if reason or wrong else ""

    def array(self, type_: pa.DataType) -> pa.Array:
        """Everything gathered, as a list of structs per row."""
        inner = type_.value_type
        members = list(zip(*self._metrics, strict=True)) if self._metrics else [()] * inner.num_fields
        children = [pa.array(values, field.type) for values, field in zip(members, inner, strict=True)]
        structs = pa.StructArray.from_arrays(children, fields=list(inner))
        offsets = pa.array(np.array(self._edges, np.int32))
        mask = pa.array(self._absent, pa.bool_())
        return pa.ListArray.from_arrays(offsets, structs, type=type_, mask=mask)


def _identity(name: str, alias: int | None, datatype: int, known: Known) -> tuple[str | None, int, str]:
    """(name, data type, what is wrong): from the metric itself, else from the certificate."""
    if not name:
        if alias is None:
            return None, datatype, "neither name nor alias"
        declared = known.aliases.get(alias)
        if declared is None:
            return None, datatype, known.missing or f"alias {alias} is not in the birth certificate"
        return declared[0], datatype or declared[1], ""
    if datatype:
        return name, datatype, ""
    if name not in known.datatypes:
        return name, 0, known.missing or "its data type is neither here nor in the birth certificate"
    return name, known.datatypes[name], ""


def _value(metric: Any, datatype: int) -> tuple[Value, str]:
    if metric.is_null:
        return NOTHING, ""
    held = metric.WhichOneof("value")
    if held is None:
        return NOTHING, "it has no value and is not null"
    try:
        return value_of(datatype, held, getattr(metric, held)), ""
    except Mismatch as mismatch:
        return NOTHING, f"{mismatch.wanted} is needed, not {mismatch.found}"


def _time(milliseconds: int) -> tuple[int | None, str]:
    try:
        return microseconds(milliseconds), ""
    except Mismatch as mismatch:
        return None, f"timestamp: {mismatch.wanted} is needed, not {mismatch.found}"


def _extras(metric: Any) -> tuple[list[tuple[str, str | None]] | None, str | None, str]:
    """(properties, metadata, what is wrong); nested properties and anything that is no text are JSON."""
    metadata = None
    if metric.HasField("metadata"):
        message = metric.metadata
        metadata = to_json({n: getattr(message, f) for n, f in METADATA_FIELDS.items() if message.HasField(f)})
    if not metric.HasField("properties"):
        return None, metadata, ""
    try:
        pairs = property_map(metric.properties)
    except Mismatch as mismatch:
        return None, metadata, f"properties: {mismatch.wanted} is needed, not {mismatch.found}"
    texts = [(key, one if one is None or isinstance(one, str) else to_json(one)) for key, one in pairs.items()]
    return texts, metadata, ""
