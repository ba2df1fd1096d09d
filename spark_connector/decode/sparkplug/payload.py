"""The Sparkplug B payload as a Protobuf message, declared here from the specification (Sparkplug 3.0, section 6.4).

    name: (number, kind[, "repeated"])     kinds in small letters are scalars, the others messages of this table

Built with protobuf's own runtime, so nothing is generated. Extension ranges are left out: what is in them is unknown
fields, which Protobuf keeps out of the way. Invariant: numbers and kinds are the specification's. Pure.

The columns of Sparkplug B: one row per message, its metrics in an array, each with its value in a typed member.

Invariant: the order of members is the order in which `sparkplug_bodies` makes them. Pure.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pyspark.sql.types import StructType

from spark_connector.decode.ddl import parse_columns
from spark_connector.decode.errors import need

PACKAGE = "lightmq.sparkplug"
SCALARS = {"double": 1, "float": 2, "uint64": 4, "bool": 8, "string": 9, "bytes": 12, "uint32": 13}
"""Scalar kinds as Protobuf numbers them."""
VALUES = (("int_value", "uint32"), ("long_value", "uint64"), ("float_value", "float"), ("double_value", "double"),
          ("boolean_value", "bool"), ("string_value", "string"))  # fmt: skip
"""What every `oneof value` begins with."""
MESSAGES: dict[str, tuple[int, tuple[tuple[str, str], ...], dict[str, tuple[Any, ...]]]] = {
    # name: (number of the first member of `oneof value`, members after the common ones, other fields)
    "Payload": (0, (), {
        "timestamp": (1, "uint64"), "metrics": (2, "Metric", "repeated"), "seq": (3, "uint64"), "uuid": (4, "string"),
        "body": (5, "bytes"),
    }),
    "Metric": (10, (("bytes_value", "bytes"), ("dataset_value", "DataSet"), ("template_value", "Template")), {
        "name": (1, "string"), "alias": (2, "uint64"), "timestamp": (3, "uint64"), "datatype": (4, "uint32"),
        "is_historical": (5, "bool"), "is_transient": (6, "bool"), "is_null": (7, "bool"), "metadata": (8, "MetaData"),
        "properties": (9, "PropertySet"),
    }),
    "MetaData": (0, (), {
        "is_multi_part": (1, "bool"), "content_type": (2, "string"), "size": (3, "uint64"), "seq": (4, "uint64"),
        "file_name": (5, "string"), "file_type": (6, "string"), "md5": (7, "string"), "description": (8, "string"),
    }),
    "PropertySet": (0, (), {"keys": (1, "string", "repeated"), "values": (2, "PropertyValue", "repeated")}),
    "PropertySetList": (0, (), {"propertyset": (1, "PropertySet", "repeated")}),
    "PropertyValue": (3, (("propertyset_value", "PropertySet"), ("propertysets_value", "PropertySetList")), {
        "type": (1, "uint32"), "is_null": (2, "bool"),
    }),
    "DataSet": (0, (), {
        "num_of_columns": (1, "uint64"), "columns": (2, "string", "repeated"), "types": (3, "uint32", "repeated"),
        "rows": (4, "Row", "repeated"),
    }),
    "Row": (0, (), {"elements": (1, "DataSetValue", "repeated")}),
    "DataSetValue": (1, (), {}),
    "Template": (0, (), {
        "version": (1, "string"), "metrics": (2, "Metric", "repeated"), "parameters": (3, "Parameter", "repeated"),
        "template_ref": (4, "string"), "is_definition": (5, "bool"),
    }),
    "Parameter": (3, (), {"name": (1, "string"), "type": (2, "uint32")}),
}  # fmt: skip
DATATYPES = (
    "Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double", "Boolean",
    "String", "DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template", "PropertySet", "PropertySetList",
    "Int8Array", "Int16Array", "Int32Array", "Int64Array", "UInt8Array", "UInt16Array", "UInt32Array", "UInt64Array",
    "FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray",
)  # fmt: skip
"""Names of the data types by their number (section 6.4.16)."""


@lru_cache(maxsize=1)
def payload_class() -> Any:
    """The class of a payload; OptionError names the extra where protobuf is missing."""
    descriptors = need("google.protobuf.descriptor_pb2", "sparkplug")
    pool = need("google.protobuf.descriptor_pool", "sparkplug").DescriptorPool()
    file = descriptors.FileDescriptorProto(name="lightmq_sparkplug.proto", package=PACKAGE, syntax="proto2")
    for name, (first, more, fields) in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, *repeated) in fields.items():
            _add(message, field, number, kind, label=3 if repeated else 1)
        if first:
            message.oneof_decl.add(name="value")
            for number, (field, kind) in enumerate((*VALUES, *more), first):
                _add(message, field, number, kind).oneof_index = 0
    pool.Add(file)
    found = pool.FindMessageTypeByName(f"{PACKAGE}.Payload")
    return need("google.protobuf.message_factory", "sparkplug").GetMessageClass(found)


def _add(message: Any, name: str, number: int, kind: str, *, label: int = 1) -> Any:
    field = message.field.add(name=name, number=number, label=label)
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type, field.type_name = 11, f".{PACKAGE}.{kind}"
    return field


def datatype_name(number: int) -> str | None:
    """Name of a data type, None for a number that has none."""
    return DATATYPES[number] if 0 <= number < len(DATATYPES) else None


METRIC = (
    "struct<name:string,alias:bigint,timestamp:timestamp,datatype:string,isHistorical:boolean,isTransient:boolean,"
    "isNull:boolean,long:bigint,double:double,boolean:boolean,text:string,bytes:binary,time:timestamp,"
    "properties:map<string,string>,metadata:string>"
)
COLUMNS = (
    "groupId string, messageType string, edgeNodeId string, deviceId string, hostId string, online boolean, "
    f"payloadTimestamp timestamp, seq int, bdSeq int, payloadUuid string, payloadBody binary, metrics array<{METRIC}>, "
    "logPosition bigint"
)


def plan_sparkplug() -> tuple[StructType, None]:
    """Return the columns; OptionError where protobuf is missing."""
    payload_class()
    return parse_columns(COLUMNS), None
