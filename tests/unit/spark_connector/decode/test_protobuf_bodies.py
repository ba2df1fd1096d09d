"""Protobuf bodies, made by protobuf itself and by hand; any bytes give one row each."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_connector.columns.arrow import arrow_schema
from spark_connector.decode.protobuf import ProtobufDecoder, duration, find_message, struct_of, timestamp
from spark_connector.errors import Mismatch
from tests.unit.spark_connector.decode.messages import descriptor_set

RAW = descriptor_set().SerializeToString()
READING = find_message(RAW, "plant.Reading")
SCHEMA = arrow_schema(struct_of(READING.DESCRIPTOR, ()))
DECODER = ProtobufDecoder(SCHEMA, (RAW, "plant.Reading"))


def decode(*bodies: bytes) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Rows and reasons."""
    decoded = DECODER.decode(pa.array(bodies, pa.binary()))
    columns = [column.to_pylist() for column in decoded.columns]
    return [dict(zip(SCHEMA.names, row, strict=True)) for row in zip(*columns, strict=True)], decoded.reasons


def full() -> Any:
    """A message with everything in it."""
    made = READING(device="d", celsius=1.5, maybe=0, state=1, big=2**64 - 1, raw=b"\0", small=2**32 - 1)
    made.at.FromJsonString("2026-01-31T10:20:30.123456789Z")
    made.took.seconds, made.took.nanos = -1, -500_000_000
    made.wrapped.value = 7
    made.tree.update({"a": [1, None]})
    made.part.name = "p"
    made.parts.add(name="q")
    made.values.extend([1.0, 2.5])
    made.counts["k"] = 3
    made.named["k"].name = "v"
    return made


def test_every_type() -> None:
    rows, reasons = decode(full().SerializeToString())
    assert reasons == {}
    assert rows == [
        {
            "device": "d",
            "celsius": 1.5,
            "maybe": 0,
            "state": "ON",
            "big": Decimal(2**64 - 1),
            "at": dt.datetime(2026, 1, 31, 10, 20, 30, 123_456, tzinfo=dt.UTC),
            "took": dt.timedelta(seconds=-1.5),
            "wrapped": Decimal(7),
            "tree": '{"a": [1.0, null]}',
            "part": {"name": "p"},
            "parts": [{"name": "q"}],
            "values": [1.0, 2.5],
            "raw": b"\0",
            "small": 2**32 - 1,
            "counts": [("k", 3)],
            "named": [("k", {"name": "v"})],
        }
    ]


def test_unset_fields() -> None:
    """No bytes are a message, with defaults where Protobuf has no presence and null where it has."""
    (row,), reasons = decode(b"")
    assert reasons == {}
    assert {name: value for name, value in row.items() if value is not None} == {
        "device": "",
        "celsius": 0.0,
        "state": "OFF",
        "big": Decimal(0),
        "parts": [],
        "values": [],
        "raw": b"",
        "small": 0,
        "counts": [],
        "named": [],
    }


def test_bytes_written_by_hand() -> None:
    rows, reasons = decode(b"\x0a\x01x", b"\x0a\x05x", b"\x0a\x01\xff", b"\x20\x09", b"\xfa\x01\x00", b"\x07")
    assert [row["device"] for row in rows] == ["x", None, None, "", "", None]
    assert rows[3]["state"] == "9"
    assert sorted(reasons) == [1, 2, 5]
    assert all(reason.startswith("not a plant.Reading") for reason in reasons.values())


def test_times_that_do_not_fit_a_column() -> None:
    late, long_ = READING(), READING()
    late.at.seconds = 2**60
    long_.took.seconds = 2**60
    _, reasons = decode(late.SerializeToString(), long_.SerializeToString())
    assert [reasons[row].partition(":")[0] for row in (0, 1)] == ["Timestamp", "Duration"]
    with pytest.raises(Mismatch):
        timestamp(late.at)
    with pytest.raises(Mismatch):
        duration(long_.took)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), st.binary(max_size=6).map(lambda b: full().SerializeToString() + b))))
def test_any_bytes_give_one_row_each(bodies: list[bytes]) -> None:
    decoded = DECODER.decode(pa.array(bodies, pa.binary()))
    for column in decoded.columns:
        assert len(column) == len(bodies)
        column.validate(full=True)
