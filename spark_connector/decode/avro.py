"""An Avro schema → Spark's columns, and how to read its values: decided on the driver, made again in the tasks.

The types are those of Spark's `from_avro`: a union with null is the other type, one of numbers the wider, any other a
struct with a member per branch; times of day stay numbers. Bodies are read with a schema of our own that has the same
binary form: without logical types (their values are made here, with the limits of the columns), enums as their numbers,
and every branch of a union as a record around it, which names the branch. Invariant: a schema that is accepted
cannot make a body of n bytes into more than n items. Pure, but for the file that the option names.

Avro bodies → columns: one record of the planned schema per body, without a container around it.

A body that begins with the mark of Avro's single-object encoding and this schema's own fingerprint is read behind them.
fastavro reads one record at a time; its negative indices of unions count from the end, as Python's do, which only
damaged bodies have. Invariant: one value per body and column; a body is read to its last byte or not at all. Pure.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import types

from spark_connector.decode.decoded import MICROSECONDS_MAX, MICROSECONDS_MIN, Decoded, decode_rows
from spark_connector.errors import Mismatch, OptionError, need

DEPTH_MAX = 32
DECIMAL_DIGITS_MAX = 38
_ROOMY = Context(prec=80)
_PRIMITIVES: dict[str, types.DataType] = {
    "null": types.NullType(),
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "bytes": types.BinaryType(),
    "string": types.StringType(),
}
_MICROSECONDS = {"millis": 1000, "micros": 1}
_NUMBERS = ({"int", "long"}, {"float", "double"})

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Node:
    """One type of a schema: how it is read, what Spark calls it, what is done with its values (None: nothing)."""

    reading: Any
    type: types.DataType
    convert: Convert | None
    bytes_min: int
    """Bytes that a value has at least."""


def plan_avro(text: str) -> tuple[types.StructType, str]:
    """Return the columns of a schema given as JSON or as a path, and its text for the tasks."""
    raw = _load(text)
    fastavro = need("fastavro", "avro")
    try:
        fastavro.parse_schema(json.loads(raw))
        expanded = need("fastavro.schema", "avro").expand_schema(json.loads(raw))
    except Exception as failure:  # noqa: BLE001 - its errors have no common parent
        raise _refuse(f"it is no Avro schema: {failure}") from None
    node = build(expanded)
    if not isinstance(node.type, types.StructType) or expanded["type"] != "record":
        raise _refuse(f"a body must be a record, not {node.type.simpleString()}")
    return node.type, raw


def build(schema: Any) -> Node:
    """Return how to read an expanded schema; OptionError for what has no columns."""
    return _Builder().node(schema, 0)


def _load(text: str) -> str:
    if text.lstrip()[:1] in {"{", "[", '"'}:
        return text
    try:
        return Path(text).read_text()
    except (OSError, ValueError) as failure:
        raise OptionError(
            f"option 'decodeSchema' = {text!r} is neither an Avro schema's JSON nor a file on the driver: {failure}"
        ) from None


def _refuse(why: str) -> OptionError:
    return OptionError(f"option 'decodeSchema': {why}")


class _Builder:
    """Gives every record a name of its own, because names do not matter to the binary form."""

    def __init__(self) -> None:
        self._names: Iterator[int] = itertools.count()

    def node(self, schema: Any, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise _refuse(f"nested deeper than {DEPTH_MAX} levels")
        if isinstance(schema, list):
            return self._union(schema, depth)
        if isinstance(schema, str):
            schema = {"type": schema}
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.node(kind, depth)
        if kind in {"record", "error"}:
            return self._record(schema, depth)
        if kind in {"array", "map"}:
            return self._collection(kind, schema, depth)
        if kind == "enum":
            return Node("int", types.StringType(), _symbol(schema["symbols"]), 1)
        if kind != "fixed" and kind not in _PRIMITIVES:
            raise _refuse(f"the type {kind!r} holds itself, which no column can")
        return self._simple(kind, schema)

    def _name(self) -> str:
        return f"R{next(self._names)}"

    def _simple(self, kind: str, schema: dict[str, Any]) -> Node:
        reading: Any = kind
        bytes_min = 0 if kind == "null" else {"float": 4, "double": 8}.get(kind, 1)
        if kind == "fixed":
            reading = {"type": "fixed", "name": self._name(), "size": schema["size"]}
            bytes_min = schema["size"]
        spark, convert = _logical(kind, schema)
        return Node(reading, spark, convert, bytes_min)

    def _record(self, schema: dict[str, Any], depth: int) -> Node:
        nodes = {field["name"]: self.node(field["type"], depth + 1) for field in schema["fields"]}
        reading = {
            "type": "record",
            "name": self._name(),
            "fields": [{"name": name, "type": node.reading} for name, node in nodes.items()],
        }
        if len({name.lower() for name in nodes}) != len(nodes):
            raise _refuse("two fields of one record differ only in case, which columns cannot")
        spark = types.StructType([types.StructField(name, node.type) for name, node in nodes.items()])
        converts = [(name, node.convert) for name, node in nodes.items() if node.convert is not None]
        return Node(reading, spark, _members(converts), sum(node.bytes_min for node in nodes.values()))

    def _collection(self, kind: str, schema: dict[str, Any], depth: int) -> Node:
        if kind == "map":
            value = self.node(schema["values"], depth + 1)
            made = types.MapType(types.StringType(), value.type)
            return Node({"type": "map", "values": value.reading}, made, _values(value.convert), 1)
        item = self.node(schema["items"], depth + 1)
        if not item.bytes_min:
            raise _refuse("an array of items without bytes: a few bytes could claim any number of them")
        made_array = types.ArrayType(item.type)
        return Node({"type": "array", "items": item.reading}, made_array, _items(item.convert), 1)

    def _union(self, schema: list[Any], depth: int) -> Node:
        nodes = [self.node(one, depth + 1) for one in schema]
        branches = [node for node in nodes if not isinstance(node.type, types.NullType)]
        if len(branches) == 1:
            one = branches[0]
            return Node([node.reading for node in nodes], one.type, _optional(one.convert), 1)
        if not branches:
            return Node([node.reading for node in nodes], types.NullType(), None, 1)
        for numbers in _NUMBERS:
            if {str(node.reading) for node in branches} <= numbers and all(node.convert is None for node in branches):
                wide = types.LongType() if "long" in numbers else types.DoubleType()
                return Node([node.reading for node in nodes], wide, None, 1)
        return self._struct_of_branches(nodes, branches)

    def _struct_of_branches(self, nodes: list[Node], branches: list[Node]) -> Node:
        members = [f"member{index}" for index in range(len(branches))]
        wrapped = {
            id(node): {"type": "record", "name": self._name(), "fields": [{"name": member, "type": node.reading}]}
            for member, node in zip(members, branches, strict=True)
        }
        spark = types.StructType(
            [types.StructField(member, node.type) for member, node in zip(members, branches, strict=True)]
        )
        converts = [(m, node.convert) for m, node in zip(members, branches, strict=True) if node.convert is not None]
        return Node([wrapped.get(id(node), node.reading) for node in nodes], spark, _optional(_members(converts)), 1)


def _logical(kind: str, schema: dict[str, Any]) -> tuple[types.DataType, Convert | None]:
    """The Spark type of a simple type and its logical type, and what makes its values."""
    logical = schema.get("logicalType", "")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        if not 1 <= precision <= DECIMAL_DIGITS_MAX or not 0 <= scale <= precision:
            raise _refuse(f"decimal({precision},{scale}) is not possible: 1 to {DECIMAL_DIGITS_MAX} digits")
        return types.DecimalType(precision, scale), _decimal(precision, scale)
    if logical == "date" and kind == "int":
        return types.DateType(), _bounded("a date", 1, MICROSECONDS_MIN // 86_400_000_000, 2_932_896)
    family, _, unit = logical.rpartition("-")
    if kind == "long" and unit in _MICROSECONDS and family in {"timestamp", "local-timestamp"}:
        spark = types.TimestampType() if family == "timestamp" else types.TimestampNTZType()
        return spark, _bounded("a timestamp", _MICROSECONDS[unit], MICROSECONDS_MIN, MICROSECONDS_MAX)
    return (types.BinaryType() if kind == "fixed" else _PRIMITIVES[kind]), None


def _bounded(wanted: str, factor: int, low: int, high: int) -> Convert:
    def convert(value: int) -> int:
        made = value * factor
        if not low <= made <= high:
            raise Mismatch(f"{wanted} of the years 1 to 9999", str(value))
        return made

    return convert


def _decimal(precision: int, scale: int) -> Convert:
    bound = 10**precision

    def convert(value: bytes) -> Decimal:
        unscaled = int.from_bytes(value, "big", signed=True)
        if not -bound < unscaled < bound:
            raise Mismatch(f"decimal({precision},{scale})", f"{len(value)} bytes of digits")
        return Decimal(unscaled).scaleb(-scale, context=_ROOMY)

    return convert


def _symbol(symbols: list[str]) -> Convert:
    def convert(value: int) -> str:
        if not 0 <= value < len(symbols):
            raise Mismatch(f"one of {len(symbols)} symbols", f"number {value}")
        return symbols[value]

    return convert


def _optional(inner: Convert | None) -> Convert | None:
    if inner is None:
        return None
    return lambda value: None if value is None else inner(value)


def _members(converts: list[tuple[str, Convert]]) -> Convert | None:
    if not converts:
        return None

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        for name, inner in converts:
            if name in value:
                try:
                    value[name] = inner(value[name])
                except Mismatch as mismatch:
                    raise mismatch.within(name) from None
        return value

    return convert


def _items(inner: Convert | None) -> Convert | None:
    return None if inner is None else lambda value: [inner(one) for one in value]


def _values(inner: Convert | None) -> Convert | None:
    if inner is None:
        return list_of_pairs
    return lambda value: [(key, inner(one)) for key, one in value.items()]


def list_of_pairs(value: dict[str, Any]) -> list[tuple[str, Any]]:
    """A map as Arrow takes it."""
    return list(value.items())


SINGLE_OBJECT = b"\xc3\x01"
"""First bytes of Avro's single-object encoding; 8 bytes of fingerprint follow."""


class _MoreBytes(Exception):
    """Bytes follow the record."""


WHY: tuple[tuple[type[Exception], str], ...] = (
    (_MoreBytes, "bytes follow the record"),
    (EOFError, "the body ends inside of it"),
    (UnicodeDecodeError, "a text is not UTF-8"),
    (IndexError, "the body ends inside of a number, or names a branch or symbol that the schema does not have"),
    (OverflowError, "a length or a number is too large"),
    (MemoryError, "a length or a number is too large"),
)
"""What fastavro raises → a reason: few and fixed texts, by which rows can be grouped."""


def _why(failure: Exception) -> str:
    return next((text for kind, text in WHY if isinstance(failure, kind)), "its bytes cannot be read")


class AvroDecoder:
    """Reads bodies with one schema."""

    def __init__(self, schema: pa.Schema, text: str) -> None:
        self._fastavro = need("fastavro", "avro")
        tools = need("fastavro.schema", "avro")
        node = build(tools.expand_schema(json.loads(text)))
        self._schema = schema
        self._names: list[str] = schema.names
        self._reading = self._fastavro.parse_schema(node.reading)
        self._convert = node.convert
        canonical = tools.to_parsing_canonical_form(json.loads(text))
        self._mark = SINGLE_OBJECT + bytes.fromhex(tools.fingerprint(canonical, "CRC-64-AVRO"))

    def decode(self, bodies: pa.Array, *_: object) -> Decoded:
        """Return the columns of some bodies (binary, without nulls)."""
        return decode_rows(
            bodies,
            self._schema,
            self._read,
            lambda failure: f"not a record of this schema: {_why(failure)}",
        )

    def _read(self, body: bytes) -> list[Any]:
        stream = io.BytesIO(body)
        if body.startswith(self._mark):
            stream.seek(len(self._mark))
        found = self._fastavro.schemaless_reader(stream, self._reading)
        if stream.tell() != len(body):
            raise _MoreBytes
        made: dict[str, Any] = found if self._convert is None else self._convert(found)
        return [made[name] for name in self._names]
