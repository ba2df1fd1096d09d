"""JSON values → Python values of Arrow types, one at a time; and the fields of JSON bodies, for `inferSchema`.

Values: for bodies and types that Arrow's reader does not take. The rules are those of Spark's `from_json`: a string
column takes any value as its JSON text, numbers are not read from strings except `NaN` and the infinities, a number in
a timestamp column is seconds, or what `timestampUnit` says. Where Spark rounds a decimal this is a mismatch. Invariant:
whatever the fast way accepts is accepted here with the same value. Pure.

Inference: from a bounded sample of the newest messages, when a query is planned. Types are widened as Spark widens
them: whole numbers and fractions to double, anything else that disagrees to string (which takes every JSON value as
text). Timestamps stay strings, because a string that looks like a time in a thousand messages need not in the next. The
result can be kept in a file, so that a query has the same columns after every start; the first process to write it
wins. Invariant: the same bodies give the same fields, whatever their order. Thread rule: driver, one thread.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import types

from spark_connector.decode.decoded import MICROSECONDS_MAX, MICROSECONDS_MIN
from spark_connector.errors import Mismatch, OptionError, shorten
from spark_connector.options.option_table import UNITS, moment_form
from spark_connector.options.read_write import ReadOptions

PARTS_OF_MOMENT = (("year", 1970), ("month", 1), ("day", 1), ("hour", 0), ("minute", 0), ("second", 0))
"""Parts of a form, and what they are where it has none of them."""
NAMED_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d)(?::?(\d\d)(?::?(\d\d)(?:\.(\d{1,9}))?)?)?)?"
    r"\s?(?:(Z)|([+-])(\d\d):?(\d\d)?)?",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ROOMY = Context(prec=80)
_MICROSECOND = timedelta(microseconds=1)
EXPONENT_MAX = 400
"""Numbers with a larger exponent fit no type; made into digits they would fill the memory."""

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class MomentForm:
    """How moments are written: the unit of numbers (a key of UNITS), and the form of texts; "" is ISO 8601."""

    unit: str = "s"
    format: str = ""

    def of_number(self, value: int | Decimal) -> int:
        """Microseconds since 1970; fractions are cut off, as Spark cuts those of seconds, nanoseconds rounded down."""
        return int(value * 1_000_000 / UNITS[self.unit]) if isinstance(value, Decimal) else self._of_whole(value)

    def parse(self, text: str) -> int | None:
        """Microseconds since 1970 of a text; None if it is none."""
        return parse_as(self.format, text) if self.format else parse_moment(text)

    def _of_whole(self, value: int) -> int:
        per_s = UNITS[self.unit]
        if per_s <= 1_000_000:
            return value * (1_000_000 // per_s)
        return value // (per_s // 1_000_000)


USUAL = MomentForm()


def parse_object(body: bytes) -> tuple[dict[str, Any] | None, str]:
    """Return the object a body is, or None and why it is none."""
    if not body.strip(b" \t\r\n"):
        return None, "the body is empty"
    try:
        found = json.loads(body.decode("utf-8"), parse_float=_number, parse_constant=NAMED_NUMBERS.get)
    except UnicodeDecodeError as failure:
        return None, f"not UTF-8 at byte {failure.start}"
    except RecursionError:
        return None, "JSON nested too deeply"
    except (ValueError, InvalidOperation) as failure:
        return None, shorten(f"not JSON: {failure}")
    if not isinstance(found, dict):
        return None, f"JSON, but {name_of(found)} and no object"
    return found, ""


def _number(text: str) -> Decimal | float:
    number = Decimal(text)
    return number if abs(number.adjusted()) <= EXPONENT_MAX else float(text)


def read_fields(found: Mapping[str, Any], converters: Mapping[str, Convert]) -> tuple[list[Any], str]:
    """Return a value per field, null for what is absent or does not fit, and the first reason of the latter."""
    values: list[Any] = []
    reason = ""
    for name, convert in converters.items():
        value = found.get(name)
        if value is None:
            values.append(None)
            continue
        try:
            values.append(convert(value))
        except Mismatch as mismatch:
            values.append(None)
            reason = reason or str(mismatch.within(name))
    return values, reason


def converters_of(schema: pa.Schema, moments: MomentForm = USUAL) -> dict[str, Convert]:
    """Return what reads each field of a schema."""
    return {field.name: converter(field.type, moments) for field in schema}


@lru_cache(maxsize=1024)
def converter(type_: pa.DataType, moments: MomentForm = USUAL) -> Convert:
    """Return what reads a value of one Arrow type; it raises Mismatch."""
    for test, make in _MAKERS:
        if test(type_):
            return make(type_, moments)
    raise AssertionError(f"no reader for {type_}")


def name_of(value: Any) -> str:
    """What a JSON value is, for people."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float | Decimal):
        return f"the number {str(value)[:24]}"
    if isinstance(value, str):
        return f"the string {value[:24]!r}"
    return "an array" if isinstance(value, list) else "an object"


def _text(_: pa.DataType, __: MomentForm) -> Convert:
    def convert(value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value, default=float, separators=(",", ":"))
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise Mismatch("text", "half of a surrogate pair") from None
        return text

    return convert


def _integer(type_: pa.DataType, __: MomentForm) -> Convert:
    bound = 1 << (type_.bit_width - 1)

    def convert(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not -bound <= value < bound:
            raise Mismatch(f"a whole number of {type_.bit_width} bits", name_of(value))
        return value

    return convert


def _floating(_: pa.DataType, __: MomentForm) -> Convert:
    def convert(value: Any) -> float:
        if isinstance(value, str) and value in NAMED_NUMBERS:
            return NAMED_NUMBERS[value]
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise Mismatch("a number", name_of(value))
        try:
            number = float(value)
        except OverflowError:
            raise Mismatch("a number", "one too large") from None
        if math.isinf(number) and isinstance(value, Decimal):
            raise Mismatch("a number", "one too large")
        return number

    return convert


def _boolean(_: pa.DataType, __: MomentForm) -> Convert:
    def convert(value: Any) -> bool:
        if not isinstance(value, bool):
            raise Mismatch("true or false", name_of(value))
        return value

    return convert


def _decimal(type_: pa.DataType, __: MomentForm) -> Convert:
    wanted = f"decimal({type_.precision},{type_.scale})"
    unit = Decimal(1).scaleb(-type_.scale)

    def convert(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
            raise Mismatch(wanted, name_of(value))
        if isinstance(value, str) and not _DECIMAL.fullmatch(value):
            raise Mismatch(wanted, name_of(value))
        number = Decimal(value)
        if abs(number.adjusted()) > EXPONENT_MAX or not fits(number, type_.precision, type_.scale):
            raise Mismatch(wanted, name_of(value))
        return number.quantize(unit, context=_ROOMY)

    return convert


def fits(number: Decimal, precision: int, scale: int) -> bool:
    """Whether a decimal has no more digits than a type keeps, before and behind the point."""
    if not number:
        return True
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return -(exponent + zeros) <= scale and number.adjusted() < precision - scale


def _moment(type_: pa.DataType, moments: MomentForm) -> Convert:
    wanted = "a timestamp" if type_.tz else "a timestamp without a zone"

    def convert(value: Any) -> int:
        if isinstance(value, str):
            found = moments.parse(value)
        elif type_.tz and isinstance(value, int | Decimal) and not isinstance(value, bool):
            found = moments.of_number(value)
        else:
            found = None
        if found is None or not MICROSECONDS_MIN <= found <= MICROSECONDS_MAX:
            raise Mismatch(wanted, name_of(value))
        return found

    return convert


def parse_as(form: str, text: str) -> int | None:
    """Microseconds since 1970 of a text in the given form; without a zone it is in UTC. None if it is another one."""
    found = moment_form(form).fullmatch(text)
    if found is None:
        return None
    parts = found.groupdict()
    zone = parts.get("zone") or "Z"
    digits = zone.lstrip("+-").replace(":", "").ljust(4, "0")
    away = timedelta(0) if zone == "Z" else timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    numbers = [int(parts.get(name) or low) for name, low in PARTS_OF_MOMENT]
    try:
        at = datetime(*numbers, tzinfo=UTC)  # type: ignore[arg-type,misc]
    except ValueError:
        return None
    whole = (at - _EPOCH - (-away if zone.startswith("-") else away)) // _MICROSECOND
    return whole + int((parts.get("fraction") or "0").ljust(6, "0")[:6])


def parse_moment(text: str) -> int | None:
    """Return microseconds since 1970 of an ISO 8601 text; without a zone it is in UTC. None if it is none."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    day, hours, minutes, seconds, fraction, _, sign, zone_hours, zone_minutes = found.groups()
    if found.group(2) is None and found.end(1) != len(text):
        return None
    try:
        at = datetime.fromisoformat(day).replace(
            hour=int(hours or 0), minute=int(minutes or 0), second=int(seconds or 0), tzinfo=UTC
        )
    except ValueError:
        return None
    if int(zone_hours or 0) > 23 or int(zone_minutes or 0) > 59:
        return None
    zone = timedelta(hours=int(zone_hours or 0), minutes=int(zone_minutes or 0))
    whole = (at - _EPOCH - (-zone if sign == "-" else zone)) // _MICROSECOND
    return whole + int((fraction or "0").ljust(6, "0")[:6])


def _date(_: pa.DataType, __: MomentForm) -> Convert:
    def convert(value: Any) -> date:
        if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
            try:
                return date.fromisoformat(value)
            except ValueError:
                pass
        raise Mismatch("a date such as 2026-01-31", name_of(value))

    return convert


def _binary(_: pa.DataType, __: MomentForm) -> Convert:
    def convert(value: Any) -> bytes:
        if isinstance(value, str):
            try:
                return base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                pass
        raise Mismatch("bytes in base64", name_of(value))

    return convert


def _list(type_: pa.DataType, moments: MomentForm) -> Convert:
    item = converter(type_.value_type, moments)

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Mismatch("an array", name_of(value))
        made = []
        for index, one in enumerate(value):
            try:
                made.append(None if one is None else item(one))
            except Mismatch as mismatch:
                raise mismatch.within(f"[{index}]") from None
        return made

    return convert


def _struct(type_: pa.DataType, moments: MomentForm) -> Convert:
    parts = {field.name: converter(field.type, moments) for field in type_}

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Mismatch("an object", name_of(value))
        made = {}
        for name, part in parts.items():
            one = value.get(name)
            try:
                made[name] = None if one is None else part(one)
            except Mismatch as mismatch:
                raise mismatch.within(name) from None
        return made

    return convert


def _map(type_: pa.DataType, moments: MomentForm) -> Convert:
    key, item = converter(type_.key_type, moments), converter(type_.item_type, moments)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, dict):
            raise Mismatch("an object", name_of(value))
        made = []
        for name, one in value.items():
            try:
                made.append((key(name), None if one is None else item(one)))
            except Mismatch as mismatch:
                raise mismatch.within(name) from None
        return made

    return convert


_MAKERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, MomentForm], Convert]], ...] = (
    (pa.types.is_string, _text),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _floating),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_timestamp, _moment),
    (pa.types.is_date, _date),
    (pa.types.is_binary, _binary),
    (pa.types.is_map, _map),
    (pa.types.is_list, _list),
    (pa.types.is_struct, _struct),
)


FIELDS_MAX = 2_000
"""Fields of one object; bodies whose keys are data (ids, times) need a map and a schema by hand."""
_LONG_BOUND = 1 << 63


def infer_fields(options: ReadOptions, sample: Callable[[ReadOptions], Sequence[bytes]]) -> types.StructType:
    """Return the kept fields, or infer and keep them; OptionError where there are no bodies."""
    place = None if options.schema_location is None else Path(options.schema_location)
    if place is not None and place.exists():
        return read_kept(place)
    if place is not None and not place.parent.is_dir():
        raise OptionError(
            f"option 'schemaLocation' = {str(place)!r}: there is no folder {str(place.parent)!r} on the driver; make "
            "it, on a disk that outlives the driver"
        )
    found = merge_bodies(sample(options))
    if not found.fields:
        raise OptionError(
            "option 'inferSchema': no message read is a JSON object with fields; give the option 'decodeSchema', or "
            "start again when there are some"
        )
    return found if place is None else keep(place, found)


def merge_bodies(bodies: Iterable[bytes]) -> types.StructType:
    """Return the fields of all bodies that are JSON objects, sorted by name as Spark does."""
    merged: types.DataType | None = None
    for body in bodies:
        found, _ = parse_object(body)
        if found is not None:
            merged = widen(merged, type_of(found))
    whole = settle(merged) if merged is not None else None
    return whole if isinstance(whole, types.StructType) else types.StructType([])


def type_of(value: Any) -> types.DataType:
    """Return the type of one JSON value; null has a type that every other widens."""
    if value is None:
        return types.NullType()
    if isinstance(value, bool):
        return types.BooleanType()
    if isinstance(value, int):
        return types.LongType() if -_LONG_BOUND <= value < _LONG_BOUND else types.DoubleType()
    if isinstance(value, Decimal | float):
        return types.DoubleType()
    if isinstance(value, list):
        item: types.DataType = types.NullType()
        for one in value:
            item = widen(item, type_of(one))
        return types.ArrayType(item)
    if isinstance(value, dict):
        if len(value) > FIELDS_MAX:
            raise OptionError(
                f"option 'inferSchema': an object of {len(value)} fields, at most {FIELDS_MAX} become columns; give "
                "the option 'decodeSchema', with a map where keys are data"
            )
        return types.StructType([types.StructField(name, type_of(value[name])) for name in sorted(value)])
    return types.StringType()


def widen(one: types.DataType | None, other: types.DataType) -> types.DataType:
    """Return the narrowest type that takes both."""
    if one is None or isinstance(one, types.NullType) or one == other:
        return other
    if isinstance(other, types.NullType):
        return one
    if isinstance(one, types.StructType) and isinstance(other, types.StructType):
        merged = {field.name: field.dataType for field in one}
        for field in other:
            merged[field.name] = widen(merged.get(field.name), field.dataType)
        return types.StructType([types.StructField(name, merged[name]) for name in sorted(merged)])
    if isinstance(one, types.ArrayType) and isinstance(other, types.ArrayType):
        return types.ArrayType(widen(one.elementType, other.elementType))
    if {type(one), type(other)} == {types.LongType, types.DoubleType}:
        return types.DoubleType()
    return types.StringType()


def settle(type_: types.DataType) -> types.DataType:
    """Replace what was only ever null by string, and objects without fields, too."""
    if isinstance(type_, types.NullType):
        return types.StringType()
    if isinstance(type_, types.ArrayType):
        return types.ArrayType(settle(type_.elementType))
    if isinstance(type_, types.StructType):
        if not type_.fields:
            return types.StringType()
        return types.StructType([types.StructField(one.name, settle(one.dataType)) for one in type_])
    return type_


def read_kept(place: Path) -> types.StructType:
    """Return the fields in a file that `keep` wrote."""
    import json

    try:
        return types.StructType.fromJson(json.loads(place.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
        raise OptionError(f"option 'schemaLocation' = {str(place)!r} cannot be read: {failure!r}") from None


def keep(place: Path, found: types.StructType) -> types.StructType:
    """Write the fields into a file that is not there yet; return what is in it, another process may have been first."""
    try:
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=place.name)
        with os.fdopen(handle, "w") as file:
            file.write(found.json())
            file.flush()
            os.fsync(file.fileno())
        try:
            Path(place).hardlink_to(name)
        except FileExistsError:
            return read_kept(place)
        finally:
            Path(name).unlink()
    except OSError as failure:
        raise OptionError(f"option 'schemaLocation' = {str(place)!r} cannot be written: {failure}") from None
    return found
