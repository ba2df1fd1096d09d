"""Avro schemas: their Spark types, and what is refused before anything is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_connector.decode.avro import build, list_of_pairs, plan_avro
from spark_connector.errors import OptionError


def record(**fields: Any) -> str:
    """A record of these fields, as text."""
    made = [{"name": name, "type": type_} for name, type_ in fields.items()]
    return json.dumps({"type": "record", "name": "r.Reading", "fields": made})


@pytest.mark.parametrize(
    ("type_", "says"),
    [
        ("int", "int"),
        (["null", "string"], "string"),
        (["int", "long"], "bigint"),
        (["null", "float", "double"], "double"),
        (["null", "int", "string"], "struct<member0:int,member1:string>"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "fixed", "name": "F", "size": 4}, "binary"),
        ({"type": "array", "items": {"type": "map", "values": "bytes"}}, "array<map<string,binary>>"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "timestamp_ntz"),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "int", "logicalType": "time-millis"}, "int"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal(9,2)"),
        ({"type": "record", "name": "S", "fields": [{"name": "x", "type": "boolean"}]}, "struct<x:boolean>"),
        ("null", "void"),
    ],
)
def test_types(type_: Any, says: str) -> None:
    fields, _ = plan_avro(record(f=type_))
    assert fields.simpleString() == f"struct<f:{says}>"


def test_a_name_used_twice() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    fields, _ = plan_avro(record(a=enum, b="r.E", c={"type": "array", "items": "r.E"}))
    assert fields.simpleString() == "struct<a:string,b:string,c:array<string>>"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"type":"rec"}', "no Avro schema"),
        ("{", "no Avro schema"),
        ('"int"', "must be a record"),
        ("/nowhere/schema.avsc", "neither an Avro schema's JSON nor a file"),
        (record(a={"type": "array", "items": "null"}), "items without bytes"),
        (record(a={"type": "array", "items": {"type": "record", "name": "E", "fields": []}}), "items without bytes"),
        (record(a=["null", "r.Reading"]), "'r.Reading' holds itself"),
        (record(a="int", A="int"), "differ only in case"),
        (record(a={"type": "bytes", "logicalType": "decimal", "precision": 60}), "not possible"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        plan_avro(text)


def test_a_schema_in_a_file(tmp_path: Path) -> None:
    place = tmp_path / "reading.avsc"
    place.write_text(record(a="int"))
    fields, text = plan_avro(str(place))
    assert fields.names == ["a"]
    assert json.loads(text)["name"] == "r.Reading"


def test_nesting_is_bounded() -> None:
    deep: Any = "int"
    for _ in range(40):
        deep = {"type": "array", "items": deep}
    with pytest.raises(OptionError, match="deeper than 32"):
        build(deep)


def test_maps_are_pairs() -> None:
    assert list_of_pairs({"a": 1}) == [("a", 1)]
