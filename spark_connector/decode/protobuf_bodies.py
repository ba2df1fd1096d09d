"""Protobuf bodies → columns: every body is parsed by protobuf's own runtime, its fields are picked by prepared readers.

Fields with presence (messages, `optional`, `oneof`, proto2) that are not set are null; the others have their default,
as everywhere in Protobuf. Unknown fields are not looked at. Invariant: one value per body and column. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from operator import attrgetter
from typing import Any

import pyarrow as pa

from spark_connector.decode.decoded import MICROSECONDS_MAX, MICROSECONDS_MIN, Decoded, columns_of_rows
from spark_connector.decode.errors import Mismatch, shorten
from spark_connector.decode.libraries import need
from spark_connector.decode.protobuf_schema import (
    AS_JSON,
    DURATION,
    TIMESTAMP,
    WRAPPERS,
    find_message,
    is_map,
    is_repeated,
)

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
        reasons: dict[int, str] = {}
        parse, readers = self._message.FromString, self._readers
        nothing = [None] * len(readers)
        rows = []
        for row, body in enumerate(bodies.to_pylist()):
            try:
                found = parse(body)
                rows.append([read(found) for read in readers])
            except Mismatch as mismatch:
                reasons[row] = str(mismatch)
                rows.append(nothing)
            except Exception as failure:  # noqa: BLE001 - how the library refuses bytes differs between its versions
                reasons[row] = shorten(f"not a {self._message.DESCRIPTOR.full_name}: {failure}")
                rows.append(nothing)
        return Decoded(columns_of_rows(rows, self._schema, reasons), reasons)


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
