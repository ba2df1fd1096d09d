"""JSON bodies → columns: all of them in one call of Arrow's reader, the few it refuses one by one.

Arrow's reader sees one stream of documents and knows nothing of rows. A body may go into the stream only if it cannot
be anything but whole documents there: it begins with `{`, ends with `}`, holds no NUL (which would end the stream) and
is UTF-8; between bodies stands a newline, which no string can contain. So each gives at least one document or an error,
and if there are as many documents as bodies, each gave exactly one. What fails is divided until the rest passes.

Invariant: one value per body and column, in order; what becomes of a body does not depend on its neighbours. Pure.

Which JSON bodies fit a schema, quickly: so that one that does not is not looked for by halves.

Arrow's reader refuses a whole stream for one value of the wrong type without naming it; msgspec judges one body at
a time and fast. The verdict only decides which way a body takes, never what becomes of it: what passes here may still
be refused by Arrow (a decimal, a time), and what does not pass may still be read one by one. Pure.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta
from numpy.typing import NDArray
from pyarrow import json as arrow_json

from spark_connector.decode.decoded import MICROSECONDS_MAX, MICROSECONDS_MIN, Decoded, columns_of_rows
from spark_connector.decode.json.values import USUAL, MomentForm, converters_of, parse_object, read_fields
from spark_connector.options.option_table import UNITS


class Sieve:
    """Judges bodies by the types of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._decoder = msgspec.json.Decoder(_object(list(schema)))

    def fitting(self, bodies: pa.Array) -> NDArray[np.bool_]:
        """Return which bodies are objects whose fields have the types of the schema."""
        return np.array([self._fits(body) for body in bodies.to_pylist()], bool)

    def _fits(self, body: bytes) -> bool:
        try:
            self._decoder.decode(body)
        except (msgspec.MsgspecError, RecursionError):
            return False
        return True


def _object(fields: list[pa.Field]) -> Any:
    """A struct with these fields; names that are no identifiers are encoded names of others."""
    members = [(f"f{index}", _value(field.type), None) for index, field in enumerate(fields)]
    names = {f"f{index}": field.name for index, field in enumerate(fields)}
    return msgspec.defstruct("Fields", members, rename=names, gc=False)


def _value(type_: pa.DataType) -> Any:
    """What msgspec takes for a type, null included; anything where it has no such type."""
    if pa.types.is_integer(type_):
        bound = 1 << (type_.bit_width - 1)
        # msgspec compares with 64-bit bounds only: the widest type needs none but its own.
        return Annotated[int, Meta(ge=-bound, le=bound - 1)] | None
    if pa.types.is_floating(type_):
        return float | None
    if pa.types.is_boolean(type_):
        return bool | None
    if pa.types.is_string(type_) or pa.types.is_timestamp(type_):
        return str | None
    if pa.types.is_list(type_):
        return list[_value(type_.value_type)] | None  # type: ignore[misc]
    if pa.types.is_struct(type_):
        return _object(list(type_)) | None
    return Any


MICROSECONDS = 1_000_000
PARTS = 16
"""Into how many parts a stretch that Arrow refused is divided."""
ALONE_MAX = 16
"""A refused stretch of at most this many bodies is read one by one: Arrow's call costs as much as reading them."""
SPACES_MAX = 8
"""White space looked through at either end of a body; with more of it the body is read by itself."""
_SPACE = np.zeros(256, bool)
_SPACE[[9, 10, 13, 32]] = True
_LOOSE_NUMBER = re.compile(rb"[:,\[\s][-+]?(?:Inf|NaN)")
"""Numbers that are not JSON: Arrow takes more of them than Spark does."""

Rows = NDArray[np.int64]


class JsonDecoder:
    """Reads bodies as objects with the fields of a schema; other fields are ignored."""

    def __init__(self, schema: pa.Schema, unit: str | None = None, form: str | None = None) -> None:
        """`unit` of numbers and `form` of texts in timestamp columns; None for the usual ones.

        With a unit, Arrow's reader takes the numbers of such columns as whole ones, and texts are read one by one.
        """
        self._schema = schema
        self._moments = MomentForm(unit or USUAL.unit, form or USUAL.format)
        self._converters = converters_of(schema, self._moments)
        self._counted = {
            one.name for one in schema if unit is not None and pa.types.is_timestamp(one.type) and one.type.tz
        }
        read = pa.schema([pa.field(one.name, pa.int64()) if one.name in self._counted else one for one in schema])
        is_usual = unit is None and form is None
        self._by_arrow = all(is_read_by_arrow(one.type) and (is_usual or not holds_moment(one.type)) for one in read)
        self._holds_decimals = any(holds_decimal(one.type) for one in schema)
        self._sieve = Sieve(read)
        self._options = arrow_json.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore")

    def decode(self, bodies: pa.Array, *_: object) -> Decoded:
        """Return the columns of some bodies (binary, without nulls)."""
        plain = find_plain(bodies) if self._by_arrow and len(self._schema) else np.zeros(len(bodies), bool)
        tables: list[pa.Table] = []
        order: list[Rows] = []
        odd = [np.flatnonzero(~plain)]
        for rows, table in self._read_most(bodies, np.flatnonzero(plain)):
            if table is None:
                odd.append(rows)
            else:
                tables.append(table)
                order.append(rows)
        reasons: dict[int, str] = {}
        alone = np.concatenate(odd)
        if len(alone) or not tables:
            tables.append(self._read_one_by_one(bodies, alone, reasons))
            order.append(alone)
        return Decoded(self._put_together(tables, order), reasons)

    def _put_together(self, tables: list[pa.Table], order: list[Rows]) -> list[pa.Array]:
        whole = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        places = np.concatenate(order)
        if len(places) > 1 and (np.diff(places) < 0).any():
            whole = whole.take(pa.array(np.argsort(places)))
        return [_one_array(column) for column in whole.columns]

    def _read_most(self, bodies: pa.Array, rows: Rows) -> list[tuple[Rows, pa.Table | None]]:
        """All rows at once; if Arrow refuses that, those with values of wrong types are put aside first."""
        if len(rows) <= ALONE_MAX:
            return self._read(bodies, rows)
        chosen = bodies if len(rows) == len(bodies) else bodies.take(pa.array(rows))
        table = self._read_at_once(chosen)
        if table is not None:
            return [(rows, table)]
        fitting = self._sieve.fitting(chosen)
        return [*self._read(bodies, rows[fitting]), (rows[~fitting], None)]

    def _read(self, bodies: pa.Array, rows: Rows) -> list[tuple[Rows, pa.Table | None]]:
        """Stretches of rows with what Arrow read of them, None where it must be done one by one."""
        if not len(rows):
            return []
        table = self._read_at_once(bodies if len(rows) == len(bodies) else bodies.take(pa.array(rows)))
        if table is not None:
            return [(rows, table)]
        if len(rows) <= ALONE_MAX:
            return [(rows, None)]
        return [done for part in np.array_split(rows, PARTS) for done in self._read(bodies, part)]

    def _read_at_once(self, bodies: pa.Array) -> pa.Table | None:
        """All bodies in one stream, one block; None when any of them is refused or is several documents."""
        apart = pc.binary_join_element_wise(bodies, pa.scalar(b"", pa.binary()), pa.scalar(b"\n", pa.binary()))
        stream = apart.buffers()[2]
        reading = arrow_json.ReadOptions(use_threads=False, block_size=len(stream) + 1)
        try:
            table = arrow_json.read_json(pa.BufferReader(stream), reading, self._options)
            if self._holds_decimals:
                # Arrow's reader lets a decimal have more digits than its type.
                table.validate(full=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        return self._timed(table) if table.num_rows == len(bodies) else None

    def _timed(self, table: pa.Table) -> pa.Table | None:
        """The table with moments instead of the numbers that count them; None where one is too far away."""
        for name in self._counted:
            at = table.schema.get_field_index(name)
            numbers = table.column(at)
            span = pc.min_max(numbers)
            low, high = span["min"].as_py(), span["max"].as_py()
            if low is not None and not (self._is_near(low) and self._is_near(high)):
                return None
            per_s = UNITS[self._moments.unit]
            if per_s <= MICROSECONDS:
                made = pc.multiply(numbers, MICROSECONDS // per_s)
            else:  # rounded down, as the slower way does
                rest = pc.subtract(numbers, pc.multiply(pc.divide(numbers, 1_000), 1_000))
                made = pc.subtract(pc.divide(numbers, 1_000), pc.less(rest, 0).cast(pa.int64()))
            field = self._schema.field(name)
            table = table.set_column(at, field, made.cast(field.type))
        return table

    def _is_near(self, number: int) -> bool:
        return MICROSECONDS_MIN <= self._moments.of_number(number) <= MICROSECONDS_MAX

    def _read_one_by_one(self, bodies: pa.Array, rows: Rows, reasons: dict[int, str]) -> pa.Table:
        nothing = [None] * len(self._converters)
        values = []
        for row in rows.tolist():
            found, reason = parse_object(bodies[row].as_py())
            fields = nothing
            if found is not None:
                fields, reason = read_fields(found, self._converters)
            if reason:
                reasons[row] = reason
            values.append(fields)
        return pa.Table.from_arrays(columns_of_rows(values, self._schema, {}), schema=self._schema)


def is_read_by_arrow(type_: pa.DataType) -> bool:
    """Whether Arrow's reader makes of JSON what Spark makes of it."""
    if pa.types.is_list(type_):
        return is_read_by_arrow(type_.value_type)
    if pa.types.is_struct(type_):
        return all(is_read_by_arrow(one.type) for one in type_)
    return not (pa.types.is_map(type_) or pa.types.is_binary(type_) or pa.types.is_date(type_))


def holds_moment(type_: pa.DataType) -> bool:
    """Whether there is a timestamp anywhere in a type."""
    inner = [type_.field(index).type for index in range(type_.num_fields)]
    return pa.types.is_timestamp(type_) or any(holds_moment(one) for one in inner)


def holds_decimal(type_: pa.DataType) -> bool:
    """Whether there is a decimal anywhere in a type."""
    inner = [type_.field(index).type for index in range(type_.num_fields)]
    return pa.types.is_decimal(type_) or any(holds_decimal(one) for one in inner)


def find_plain(bodies: pa.Array) -> NDArray[np.bool_]:
    """Which bodies can be put into one stream, see the module's text."""
    count = len(bodies)
    edges = np.frombuffer(bodies.buffers()[1], np.int32)[bodies.offset : bodies.offset + count + 1]
    held = bodies.buffers()[2]
    data = np.frombuffer(held, np.uint8)[: edges[-1]] if held is not None else np.zeros(0, np.uint8)
    if not len(data):
        return np.zeros(count, bool)
    begin, end = edges[:-1].astype(np.int64), edges[1:].astype(np.int64) - 1
    full = begin <= end
    for _ in range(SPACES_MAX):
        before = full & _SPACE[data[np.where(full, begin, 0)]]
        behind = full & _SPACE[data[np.where(full, end, 0)]]
        if not before.any() and not behind.any():
            break
        begin += before
        end -= behind
        full = begin <= end
    begin, end = np.where(full, begin, 0), np.where(full, end, 0)
    plain: NDArray[np.bool_] = full & (data[begin] == ord("{")) & (data[end] == ord("}"))
    _refuse(plain, edges, np.flatnonzero(data[edges[0] :] == 0) + edges[0])
    _refuse_loose_numbers(plain, edges, data)
    try:
        bodies.cast(pa.string())
    except pa.ArrowInvalid:
        plain &= np.array([_is_text(body) for body in bodies.to_pylist()], bool)
    return plain


def _refuse_loose_numbers(plain: NDArray[np.bool_], edges: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
    view = data[edges[0] :].tobytes()
    if b"Inf" in view or b"NaN" in view:
        found = [one.start() + int(edges[0]) for one in _LOOSE_NUMBER.finditer(view)]
        _refuse(plain, edges, np.array(found, np.int64))


def _refuse(plain: NDArray[np.bool_], edges: NDArray[np.int32], places: NDArray[np.int64]) -> None:
    """Take out the bodies that hold one of these bytes."""
    if len(places):
        plain[np.searchsorted(edges, places, side="right") - 1] = False


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    made = column.combine_chunks()
    return made.chunk(0) if isinstance(made, pa.ChunkedArray) else made
