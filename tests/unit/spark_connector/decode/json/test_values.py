"""One JSON value after the other, with Spark's rules."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_connector.columns.arrow import arrow_schema
from spark_connector.decode.ddl import parse_columns
from spark_connector.decode.json.values import converters_of, fits, parse_moment, parse_object, read_fields


def read(type_: str, json: str) -> tuple[Any, str]:
    """One field of a type."""
    schema = arrow_schema(parse_columns(f"f {type_}"))
    found, why = parse_object(b'{"f":%s}' % json.encode())
    assert found is not None, why
    values, why = read_fields(found, converters_of(schema))
    return pa.array(values, schema.field("f").type)[0].as_py(), why


@pytest.mark.parametrize(
    ("type_", "json", "value"),
    [
        ("string", '"a"', "a"),
        ("string", "1.5", "1.5"),
        ("string", '{"a":[1,2.0,null]}', '{"a":[1,2.0,null]}'),
        ("bigint", "-9223372036854775808", -(2**63)),
        ("double", "1", 1.0),
        ("double", '"Infinity"', float("inf")),
        ("float", "0.5", 0.5),
        ("boolean", "true", True),
        ("decimal(5,2)", "1.230", Decimal("1.23")),
        ("decimal(5,2)", '"7"', Decimal("7.00")),
        ("decimal(38,0)", "99999999999999999999999999999999999999", Decimal("9" * 38)),
        ("timestamp_ntz", '"2026-01-31T10:00"', dt.datetime(2026, 1, 31, 10)),  # noqa: DTZ001 - it has no zone
        ("date", '"2024-02-29"', dt.date(2024, 2, 29)),
        ("binary", '"YWI="', b"ab"),
        ("array<int>", "[1,null]", [1, None]),
        ("map<string,array<double>>", '{"a":[1],"b":null}', [("a", [1.0]), ("b", None)]),
        ("struct<a:int,b:struct<c:string>>", '{"b":{"c":"x"},"z":1}', {"a": None, "b": {"c": "x"}}),
        ("int", "null", None),
    ],
)
def test_what_fits(type_: str, json: str, value: Any) -> None:
    assert read(type_, json) == (value, "")


@pytest.mark.parametrize(
    ("type_", "json", "says"),
    [
        ("tinyint", "128", "f: a whole number of 8 bits is needed, not the number 128"),
        ("int", "1.0", "f: a whole number of 32 bits is needed, not the number 1.0"),
        ("int", "true", "not a boolean"),
        ("bigint", '"1"', "not the string '1'"),
        ("double", '"1"', "a number is needed"),
        ("double", "1e400", "one too large"),
        ("double", "1" * 400, "one too large"),
        ("boolean", "0", "true or false"),
        ("decimal(3,2)", "12.5", "decimal(3,2)"),
        ("decimal(3,2)", "1.234", "decimal(3,2)"),
        ("decimal(3,2)", '"1_0"', "decimal(3,2)"),
        ("decimal(3,2)", "1e999999999", "decimal(3,2)"),
        ("timestamp", '"today"', "a timestamp"),
        ("timestamp", "1e15", "a timestamp"),
        ("timestamp_ntz", "5", "without a zone"),
        ("date", '"2023-02-29"', "a date"),
        ("binary", '"a"', "base64"),
        ("array<int>", '[1,{"a":2}]', "f[1]: a whole number of 32 bits is needed, not an object"),
        ("array<int>", "{}", "an array"),
        ("struct<a:array<int>>", '{"a":[null,"x"]}', "f.a[1]: a whole"),
        ("struct<a:int>", "[]", "not an array"),
        ("map<string,int>", '{"k":"v"}', "f.k: a whole"),
        ("map<string,int>", "1", "an object"),
        ("string", '"\\ud800"', "surrogate"),
    ],
)
def test_what_does_not(type_: str, json: str, says: str) -> None:
    value, why = read(type_, json)
    assert value is None
    assert says in why


def test_seconds_are_a_timestamp() -> None:
    at = dt.datetime(2026, 1, 1, 0, 0, 0, 500_000, tzinfo=dt.UTC)
    assert read("timestamp", "1767225600.5") == (at, "")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01", 0),
        ("1970-01-01 00:00:01Z", 1),
        ("1970-01-01T00:00:00.123456789", 0.123456),
        ("1970-01-01T01:00+01:00", 0),
        ("1970-01-01T00:00-0030", 1800),
        ("1970-13-01", None),
        ("1970-01-01Z", None),
        ("1970-01-01T24:00", None),
        ("1970-01-01T00:00+24:00", None),
        ("+1970-01-01", None),
    ],
)
def test_moments(text: str, seconds: float | None) -> None:
    assert parse_moment(text) == (None if seconds is None else int(seconds * 1_000_000))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b" \n", "empty"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b"{", "not JSON"),
        (b"{} {}", "not JSON"),
        (b"null", "null and no object"),
        (b"[1]", "an array"),
        (b'"a"', "the string"),
        (b"[" * 200_000, "JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
def test_what_is_no_object(body: bytes, says: str) -> None:
    found, why = parse_object(body)
    assert found is None
    assert says in why


def test_digits_before_and_behind_the_point() -> None:
    assert fits(Decimal("0e9"), 1, 0)
    assert fits(Decimal("1E+2"), 3, 0)
    assert not fits(Decimal("1E+3"), 3, 0)
    assert not fits(Decimal("0.01"), 3, 1)
