"""Descriptor sets for the tests, built with protobuf's own runtime as protoc would write them."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf import duration_pb2 as duration

KINDS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "bool": 8, "string": 9, "bytes": 12,
    "uint32": 13, "sint64": 18,
}  # fmt: skip


def add_field(message: Any, name: str, number: int, kind: str, *, label: int = 1, proto3_optional: bool = False) -> Any:
    """One field; a kind that is not a scalar is a message's full name."""
    field = message.field.add(name=name, number=number, label=label)
    if kind in KINDS:
        field.type = KINDS[kind]
    elif kind.startswith("enum "):
        field.type, field.type_name = 14, "." + kind.removeprefix("enum ")
    else:
        field.type, field.type_name = 11, "." + kind
    if proto3_optional:
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    return field


def descriptor_set() -> descriptor_pb2.FileDescriptorSet:
    """`plant.Reading` with a field of every kind, `plant.Tree` that contains itself, `plant.Nothing` without fields."""
    file = descriptor_pb2.FileDescriptorProto(name="plant.proto", package="plant", syntax="proto3")
    known = (timestamp_pb2, duration, wrappers_pb2, struct_pb2)
    file.dependency.extend(one.DESCRIPTOR.name for one in known)
    state = file.enum_type.add(name="State")
    state.value.add(name="OFF", number=0)
    state.value.add(name="ON", number=1)
    part = file.message_type.add(name="Part")
    add_field(part, "name", 1, "string")
    reading = file.message_type.add(name="Reading")
    add_field(reading, "device", 1, "string")
    add_field(reading, "celsius", 2, "double")
    add_field(reading, "maybe", 3, "int32", proto3_optional=True)
    add_field(reading, "state", 4, "enum plant.State")
    add_field(reading, "big", 5, "uint64")
    add_field(reading, "at", 6, "google.protobuf.Timestamp")
    add_field(reading, "took", 7, "google.protobuf.Duration")
    add_field(reading, "wrapped", 8, "google.protobuf.UInt64Value")
    add_field(reading, "tree", 9, "google.protobuf.Struct")
    add_field(reading, "part", 10, "plant.Part")
    add_field(reading, "parts", 11, "plant.Part", label=3)
    add_field(reading, "values", 12, "float", label=3)
    add_field(reading, "raw", 13, "bytes")
    add_field(reading, "small", 14, "uint32")
    for name, number, kind in (("counts", 15, "int64"), ("named", 16, "plant.Part")):
        entry = reading.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        add_field(entry, "key", 1, "string")
        add_field(entry, "value", 2, kind)
        add_field(reading, name, number, f"plant.Reading.{name.capitalize()}Entry", label=3)
    tree = file.message_type.add(name="Tree")
    add_field(tree, "children", 1, "plant.Tree", label=3)
    file.message_type.add(name="Nothing")
    made = descriptor_pb2.FileDescriptorSet()
    for one in known:
        one.DESCRIPTOR.CopyToProto(made.file.add())
    made.file.append(file)
    return made
