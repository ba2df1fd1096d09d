"""One JSON value after the other, with Spark's rules."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_connector.columns.arrow import arrow_schema
from spark_connector.decode.ddl import parse_columns
from spark_connector.decode.json import values as json_inference
from spark_connector.decode.json.values import (
    converters_of,
    fits,
    infer_fields,
    keep,
    merge_bodies,
    parse_moment,
    parse_object,
    read_fields,
    read_kept,
)
from spark_connector.errors import OptionError
from spark_connector.options.read_write import ReadOptions
from spark_connector.reading.task import sample_bodies
from tests.unit.spark_connector.toy_broker import ToyBroker


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
def test_what_is_not_an_object(body: bytes, says: str) -> None:
    found, why = parse_object(body)
    assert found is None
    assert says in why


def test_digits_before_and_behind_the_point() -> None:
    assert fits(Decimal("0e9"), 1, 0)
    assert fits(Decimal("1E+2"), 3, 0)
    assert not fits(Decimal("1E+3"), 3, 0)
    assert not fits(Decimal("0.01"), 3, 1)


Options = Callable[..., ReadOptions]


@pytest.mark.parametrize(
    ("bodies", "says"),
    [
        (['{"b":1,"a":"x"}'], "a:string,b:bigint"),
        (['{"a":1}', '{"a":1.5}'], "a:double"),
        (['{"a":1}', '{"a":"x"}'], "a:string"),
        (['{"a":1}', '{"a":true}'], "a:string"),
        (['{"a":null}', '{"a":true}'], "a:boolean"),
        (['{"a":null}'], "a:string"),
        (['{"a":[]}', '{"a":[null,2]}'], "a:array<bigint>"),
        (['{"a":[1,"x"]}'], "a:array<string>"),
        (['{"a":{"x":1}}', '{"a":{"y":[{"z":false}]}}'], "a:struct<x:bigint,y:array<struct<z:boolean>>>"),
        (['{"a":{}}'], "a:string"),
        (['{"a":{"x":1}}', '{"a":1}'], "a:string"),
        (['{"a":9223372036854775808}'], "a:double"),
        (['{"a":"2026-01-01T00:00:00Z"}'], "a:string"),
        (["[1]", "x", ""], ""),
    ],
)
def test_types_widen(bodies: list[str], says: str) -> None:
    assert merge_bodies([body.encode() for body in bodies]).simpleString() == f"struct<{says}>"


def test_keys_that_are_data_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_inference, "FIELDS_MAX", 2)
    with pytest.raises(OptionError, match="an object of 3 fields"):
        merge_bodies([b'{"a":1,"b":1,"c":1}'])


def test_a_sample_of_a_broker(broker: ToyBroker, read_options: Options) -> None:
    assert sample_bodies(read_options(topic="t", decode="json", inferSchema="true")) == []
    broker.publish("t", [b'{"old":1}', *[b'{"n":%d}' % n for n in range(9)]], mqtt=False)
    options = read_options(topic="t", decode="json", inferSchema="true", inferSchemaRows="5")
    assert sample_bodies(options) == [b'{"n":%d}' % n for n in range(4, 9)]
    assert infer_fields(options, sample_bodies).simpleString() == "struct<n:bigint>"


def test_a_sample_of_a_filter(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("a/1", [b'{"x":1}'])
    broker.publish("a/2", [b'{"y":1}'])
    options = read_options(mqttFilter="a/+", decode="json", inferSchema="true")
    assert infer_fields(options, sample_bodies).names == ["x", "y"]
    broker.publish("b/1", [b"no object"])
    with pytest.raises(OptionError, match="no message read is a JSON object"):
        infer_fields(read_options(mqttFilter="b/1", decode="json", inferSchema="true"), sample_bodies)


def test_an_inferred_schema_is_kept(broker: ToyBroker, read_options: Options, tmp_path: Path) -> None:
    place = tmp_path / "new" / "schema.json"
    options = read_options(topic="t", decode="json", inferSchema="true", schemaLocation=f"file://{place}")
    with pytest.raises(OptionError, match="there is no folder"):
        infer_fields(options, sample_bodies)
    place.parent.mkdir()
    broker.publish("t", [b'{"n":1}'], mqtt=False)
    first = infer_fields(options, sample_bodies)
    broker.publish("t", [b'{"n":"other","m":1}'], mqtt=False)
    assert infer_fields(options, sample_bodies) == first
    assert keep(place, parse_columns("z int")) == first, "the first to write it counts"
    assert [one.name for one in place.parent.iterdir()] == ["schema.json"]
    place.write_text("{}")
    with pytest.raises(OptionError, match="cannot be read"):
        read_kept(place)
    with pytest.raises(OptionError, match="cannot be written"):
        keep(place / "below" / "x", first)
