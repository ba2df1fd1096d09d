"""Protobuf: a descriptor set → Spark's columns (on the driver, and again in the tasks), and bodies → columns.

The types are those of Spark's `from_protobuf`, wide enough for unsigned numbers: uint32 is a bigint, uint64 a
decimal(20,0), an enum its symbol, `google.protobuf.Timestamp` a timestamp, the wrappers their value, `Struct`, `Value`
and `ListValue` JSON text. Invariant: a message that holds itself is refused, because no column can.

Every body is parsed by protobuf's own runtime, its fields are picked by prepared readers. Fields with presence
(messages, `optional`, `oneof`, proto2) that are not set are null; the others have their default, as everywhere in
Protobuf. Unknown fields are ignored. Invariant: one value per body and column. Pure, but for the file that the option
names.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import types

from spark_connector.decode.decoded import MICROSECONDS_MAX, MICROSECONDS_MIN, Decoded, decode_rows
from spark_connector.errors import Mismatch, OptionError, need
from spark_connector.options.schema import nearest

TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
AS_JSON = frozenset({"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"})
_BY_NUMBER: dict[int, types.DataType] = {
    1: types.DoubleType(),
    2: types.FloatType(),
    3: types.LongType(),  # int64
    4: types.DecimalType(20, 0),  # uint64
    5: types.IntegerType(),  # int32
    6: types.DecimalType(20, 0),  # fixed64
    7: types.LongType(),  # fixed32
    8: types.BooleanType(),
    9: types.StringType(),
    12: types.BinaryType(),
    13: types.LongType(),  # uint32
    14: types.StringType(),  # enum
    15: types.IntegerType(),  # sfixed32
    16: types.LongType(),  # sfixed64
    17: types.IntegerType(),  # sint32
    18: types.LongType(),  # sint64
}
"""Field types as `FieldDescriptor.type` numbers them."""


def plan_protobuf(path: str, message_type: str) -> tuple[types.StructType, tuple[bytes, str]]:
    """Return the columns of a message and what the tasks need: the descriptor set and the message's name."""
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as failure:
        raise OptionError(f"option 'decodeSchema' = {path!r} is no file on the driver: {failure}") from None
    descriptor = find_message(raw, message_type, path).DESCRIPTOR
    return struct_of(descriptor, ()), (raw, message_type)


def find_message(raw: bytes, message_type: str, path: str = "") -> Any:
    """Return the class of a message in a descriptor set."""
    descriptors = need("google.protobuf.descriptor_pb2", "protobuf")
    pool = need("google.protobuf.descriptor_pool", "protobuf").DescriptorPool()
    message = need("google.protobuf.message", "protobuf")
    try:
        files = descriptors.FileDescriptorSet.FromString(raw)
        if not files.file:
            raise ValueError("it holds no files")
        for one in files.file:
            pool.Add(one)
        names = [name for one in files.file for name in _message_names(one.package, one.message_type)]
        if message_type not in names:
            raise OptionError(
                f"option 'messageType' = {message_type!r} is not in {path!r}{nearest(message_type, names)}"
            )
        found = pool.FindMessageTypeByName(message_type)
    except (message.DecodeError, TypeError, ValueError, KeyError) as failure:
        if isinstance(failure, OptionError):
            raise
        raise OptionError(
            f"option 'decodeSchema' = {path!r} is no complete descriptor set (protoc --include_imports "
            f"--descriptor_set_out): {failure}"
        ) from None
    return need("google.protobuf.message_factory", "protobuf").GetMessageClass(found)


def _message_names(prefix: str, messages: Any) -> list[str]:
    names = []
    for one in messages:
        name = f"{prefix}.{one.name}" if prefix else one.name
        names += [name, *_message_names(name, one.nested_type)]
    return names


def struct_of(descriptor: Any, path: tuple[str, ...]) -> types.StructType:
    """The columns of a message; OptionError for one that holds itself, or has none."""
    name = descriptor.full_name
    if name in path:
        raise OptionError(f"option 'messageType': {name} holds itself ({' → '.join((*path, name))}), no column can")
    fields = [types.StructField(one.name, type_of(one, (*path, name))) for one in descriptor.fields]
    if not fields:
        raise OptionError(f"option 'messageType': {name} has no fields, so there is no column to make of it")
    if len({field.name.lower() for field in fields}) != len(fields):
        raise OptionError(f"option 'messageType': two fields of {name} differ only in case, which columns cannot")
    return types.StructType(fields)


def type_of(field: Any, path: tuple[str, ...]) -> types.DataType:
    """The type of a field, with what repeats it."""
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return types.MapType(single_type(key, path), single_type(value, path))
    one = single_type(field, path)
    return types.ArrayType(one) if is_repeated(field) else one


def single_type(field: Any, path: tuple[str, ...]) -> types.DataType:
    """The type of one value of a field."""
    if field.message_type is None:
        return _BY_NUMBER[field.type]
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return types.TimestampType()
    if name == DURATION:
        return types.DayTimeIntervalType()
    if name in AS_JSON:
        return types.StringType()
    if name in WRAPPERS:
        return _BY_NUMBER[field.message_type.fields_by_name["value"].type]
    return struct_of(field.message_type, path)


def is_map(field: Any) -> bool:
    """Whether a field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def is_repeated(field: Any) -> bool:
    """Whether a field is a list (or a map)."""
    known = getattr(field, "is_repeated", None)
    return bool(known) if known is not None else field.label == field.LABEL_REPEATED


MICROSECONDS = 1_000_000
DURATION_SECONDS_MAX = 315_576_000_000
"""Ten thousand years, the bound that Protobuf itself gives a duration."""
_ENUM, _UINT64, _FIXED64 = 14, 4, 6

Read = Callable[[Any], Any]


class ProtobufDecoder:
    """Reads bodies as one type of message."""

    def __init__(self, schema: pa.Schema, detail: tuple[bytes, str]) -> None:
        self._message = find_message(*detail)
        self._schema = schema
        fields = self._message.DESCRIPTOR.fields_by_name
        self._readers = [reader_of(fields[name]) for name in schema.names]

    def decode(self, bodies: pa.Array, *_: object) -> Decoded:
        """Return the columns of some bodies (binary, without nulls)."""
        parse, readers = self._message.FromString, self._readers

        def values(body: bytes) -> list[Any]:
            found = parse(body)
            return [read(found) for read in readers]

        name = self._message.DESCRIPTOR.full_name
        return decode_rows(bodies, self._schema, values, lambda failure: f"not a {name}: {failure}")


def reader_of(field: Any) -> Read:
    """What takes one field out of a message."""
    get = attrgetter(field.name)
    if is_map(field):
        value = convert_of(field.message_type.fields_by_name["value"])
        if value is None:
            return lambda message: list(get(message).items())
        return lambda message: [(key, value(one)) for key, one in get(message).items()]
    convert = convert_of(field)
    if is_repeated(field):
        if convert is None:
            return lambda message: list(get(message))
        return lambda message: [convert(one) for one in get(message)]
    if not field.has_presence:
        return get if convert is None else lambda message: convert(get(message))
    name = field.name
    if convert is None:
        return lambda message: get(message) if message.HasField(name) else None
    return lambda message: convert(get(message)) if message.HasField(name) else None


def convert_of(field: Any) -> Read | None:
    """What makes a column's value of one value of a field; None where it is one already."""
    if field.message_type is not None:
        return _message_convert(field.message_type)
    if field.type == _ENUM:
        names = {one.number: one.name for one in reversed(field.enum_type.values)}
        return lambda number: names.get(number) or str(number)
    return Decimal if field.type in {_UINT64, _FIXED64} else None


def _message_convert(descriptor: Any) -> Read:
    name = descriptor.full_name
    if name == TIMESTAMP:
        return timestamp
    if name == DURATION:
        return duration
    if name in AS_JSON:
        to_json = need("google.protobuf.json_format", "protobuf").MessageToJson
        return lambda message: to_json(message, indent=None)
    if name in WRAPPERS:
        value = descriptor.fields_by_name["value"]
        inner = convert_of(value)
        return (lambda message: message.value) if inner is None else (lambda message: inner(message.value))
    readers = [(field.name, reader_of(field)) for field in descriptor.fields]
    return lambda message: {member: read(message) for member, read in readers}


def timestamp(message: Any) -> int:
    """Microseconds since 1970."""
    made: int = message.seconds * MICROSECONDS + message.nanos // 1000
    if not MICROSECONDS_MIN <= made <= MICROSECONDS_MAX:
        raise Mismatch("a timestamp of the years 1 to 9999", f"{message.seconds} seconds", "Timestamp")
    return made


def duration(message: Any) -> int:
    """A `google.protobuf.Duration` in microseconds. Raises Mismatch beyond ten thousand years."""
    if abs(message.seconds) > DURATION_SECONDS_MAX:
        raise Mismatch("a duration of less than ten thousand years", f"{message.seconds} seconds", "Duration")
    made: int = message.seconds * MICROSECONDS + int(message.nanos / 1000)
    return made
