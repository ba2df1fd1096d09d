"""Protobuf messages: their Spark types, and descriptor sets that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from spark_connector.decode.protobuf import find_message, is_map, is_repeated, plan_protobuf
from spark_connector.errors import OptionError
from tests.unit.spark_connector.decode.messages import descriptor_set


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A descriptor set in a file."""
    place = tmp_path / "plant.desc"
    place.write_bytes(descriptor_set().SerializeToString())
    return place


def test_every_type(path: Path) -> None:
    fields, (raw, name) = plan_protobuf(str(path), "plant.Reading")
    assert name == "plant.Reading"
    assert {field.name: field.dataType.simpleString() for field in fields} == {
        "device": "string",
        "celsius": "double",
        "maybe": "int",
        "state": "string",
        "big": "decimal(20,0)",
        "at": "timestamp",
        "took": "interval day to second",
        "wrapped": "decimal(20,0)",
        "tree": "string",
        "part": "struct<name:string>",
        "parts": "array<struct<name:string>>",
        "values": "array<float>",
        "raw": "binary",
        "small": "bigint",
        "counts": "map<string,bigint>",
        "named": "map<string,struct<name:string>>",
    }
    known = find_message(raw, name).DESCRIPTOR.fields_by_name
    assert (is_map(known["counts"]), is_repeated(known["parts"]), is_repeated(known["part"])) == (True, True, False)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("plant.Readin", "'plant.Readin' is not in .* did you mean 'plant.Reading'"),
        ("plant.Tree", "plant.Tree holds itself"),
        ("plant.Nothing", "has no fields"),
    ],
)
def test_messages_that_are_refused(path: Path, message: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        plan_protobuf(str(path), message)


def test_files_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no file on the driver"):
        plan_protobuf(str(tmp_path / "missing"), "a.B")
    partial = descriptor_set()
    alone = descriptor_pb2.FileDescriptorSet(file=[partial.file[-1]])
    for content in (b"\xff\xff", b"", alone.SerializeToString()):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(OptionError, match="no complete descriptor set"):
            plan_protobuf(str(tmp_path / "bad"), "plant.Reading")
