"""`inferSchema`: the fields of JSON bodies from a bounded sample of the newest messages, when a query is planned.

Types are widened as Spark widens them: whole numbers and fractions to double, anything else that disagrees to string
(which takes every JSON value as text). Timestamps stay strings, because a string that looks like a time in a thousand
messages need not in the next. What was found can be kept in a file, so that a query has the same columns after every
start; the first process to write it wins. The caller says where the sample comes from. Invariant: the same bodies give
the same fields, whatever their order. Thread rule: driver, one thread.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import types

from spark_connector.decode.json.values import parse_object
from spark_connector.errors import OptionError
from spark_connector.options.read_write import ReadOptions

FIELDS_MAX = 2_000
"""Fields of one object; bodies whose keys are data (ids, times) need a map and a schema by hand."""
_LONG_BOUND = 1 << 63


def infer_fields(options: ReadOptions, sample: Callable[[ReadOptions], Sequence[bytes]]) -> types.StructType:
    """Return the kept fields, or find them out and keep them; OptionError where there is nothing to look at."""
    place = None if options.schema_location is None else Path(options.schema_location)
    if place is not None and place.exists():
        return read_kept(place)
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
        place.parent.mkdir(parents=True, exist_ok=True)
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
