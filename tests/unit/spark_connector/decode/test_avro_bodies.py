"""Avro bodies, made by fastavro and by hand; any bytes give one row each."""

from __future__ import annotations

import datetime as dt
import io
import json
import random
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import fingerprint, to_parsing_canonical_form
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_connector.columns.arrow import arrow_schema
from spark_connector.decode.avro import WHY, AvroDecoder, plan_avro

AT = dt.datetime(2026, 1, 31, 10, 20, 30, 123_000, tzinfo=dt.UTC)
INNER = ["null", "State"]
SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "celsius", "type": ["null", "double"]},
        {"name": "n", "type": ["int", "long"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "raw", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "any", "type": ["null", "int", "string", "State"]},
        {"name": "parts", "type": {"type": "map", "values": {"type": "array", "items": "State"}}},
        {
            "name": "inner",
            "type": {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", "State"]}]},
        },
    ],
}
VALUE: dict[str, Any] = {
    "device": "sensor-1",
    "celsius": 21.5,
    "n": 2**40,
    "state": "OFF",
    "at": AT,
    "local": None,
    "day": dt.date(2026, 1, 31),
    "cost": Decimal("-12.34"),
    "raw": b"abcd",
    "any": ("State", "ON"),
    "parts": {"a": ["ON", "OFF"], "b": []},
    "inner": {"x": None},
}


def encode(value: Any, schema: Any = SCHEMA) -> bytes:
    """A body as a device makes it."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return stream.getvalue()


def decoder(schema: Any = SCHEMA) -> AvroDecoder:
    """A decoder as a task makes it."""
    fields, text = plan_avro(json.dumps(schema))
    return AvroDecoder(arrow_schema(fields), text)


def test_every_type() -> None:
    decoded = decoder().decode(pa.array([encode(VALUE)], pa.binary()))
    assert decoded.reasons == {}
    found = dict(zip(VALUE, (column[0].as_py() for column in decoded.columns), strict=True))
    assert found == {
        **VALUE,
        "any": {"member0": None, "member1": None, "member2": "ON"},
        "parts": [("a", ["ON", "OFF"]), ("b", [])],
    }


def test_a_single_object_with_this_schema_and_with_another() -> None:
    own = bytes.fromhex(fingerprint(to_parsing_canonical_form(SCHEMA), "CRC-64-AVRO"))
    bodies = [b"\xc3\x01" + own + encode(VALUE), b"\xc3\x01" + bytes(8) + encode(VALUE)]
    decoded = decoder().decode(pa.array(bodies, pa.binary()))
    assert list(decoded.reasons) == [1]
    assert decoded.columns[0].to_pylist() == ["sensor-1", None]


def test_the_fingerprint_is_the_specifications() -> None:
    """Avro 1.12, "Schema Fingerprints": 7275d51a3f395c8f for "int", written little-endian."""
    assert fingerprint('"int"', "CRC-64-AVRO") == "8f5c393f1ad57572"


def test_bytes_written_by_hand() -> None:
    simple = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]}
    bodies = {
        b"\x02\x04hi": (1, "hi"),
        b"\x01\x00": (-1, ""),
        b"\x02\x04h": None,
        b"\x02\x04hix": None,
        b"": None,
        b"\x02\x02\xff": None,
        b"\xff" * 20: None,
    }
    decoded = decoder(simple).decode(pa.array(bodies, pa.binary()))
    rows = list(zip(*(column.to_pylist() for column in decoded.columns), strict=True))
    assert rows == [value or (None, None) for value in bodies.values()]
    assert list(decoded.reasons) == [2, 3, 4, 5, 6]
    assert [reason.removeprefix("not a record of this schema: ") for reason in decoded.reasons.values()] == [
        "the body ends inside of it",
        "bytes follow the record",
        "the body ends inside of it",
        "a text is not UTF-8",
        "the body ends inside of a number, or names a branch or symbol that the schema does not have",
    ]


def test_reasons_are_few_and_have_no_internals() -> None:
    """Rows can be grouped by them, whatever the bytes are."""
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "d", "type": "double"},
            {"name": "u", "type": ["null", "int", "string"]},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
            {"name": "f", "type": {"type": "fixed", "name": "F", "size": 4}},
        ],
    }
    chance = random.Random(1)
    bodies = [chance.randbytes(chance.randrange(24)) for _ in range(500)]
    reasons = set(decoder(schema).decode(pa.array(bodies, pa.binary())).reasons.values())
    known = {f"not a record of this schema: {text}" for _, text in WHY}
    assert {reason for reason in reasons if reason.startswith("not a record")} <= known
    assert len(reasons) >= 3
    assert not any("object at" in reason or reason.endswith(": ") for reason in reasons)


def test_values_that_do_not_fit_a_column() -> None:
    fields = [
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "small", "type": "int"},
        {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["ON"]}},
    ]
    whole = {"type": "record", "name": "R", "fields": fields}
    good = b"\x00\x00\x02\x05\x00"
    bodies = [
        good,
        b"\xfe\xff\xff\xff\x0f" + good[1:],
        b"\x00" + b"\xfe\xff\xff\xff\xff\x7f" + good[2:],
        b"\x00\x00\x04\x7f\xff\x00",
        b"\x00\x00\x02\x05\x01",
    ]
    decoded = decoder(whole).decode(pa.array(bodies, pa.binary()))
    assert list(decoded.reasons) == [1, 3, 4, 2]
    assert decoded.reasons[1].startswith("day: a date of the years 1 to 9999")
    assert "small: int32 cannot hold it" in decoded.reasons[2]
    assert decoded.reasons[4] == "state: one of 1 symbols is needed, not number -1"
    assert decoded.columns[2].to_pylist() == [Decimal(5), None, Decimal(5), None, None]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), st.binary(max_size=4).map(lambda tail: encode(VALUE)[:-2] + tail))))
def test_any_bytes_give_one_row_each(bodies: list[bytes]) -> None:
    decoded = decoder().decode(pa.array(bodies, pa.binary()))
    for column in decoded.columns:
        assert len(column) == len(bodies)
        column.validate(full=True)
