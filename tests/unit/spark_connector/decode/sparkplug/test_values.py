"""Every data type of Sparkplug, at its edges and where senders differ."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from spark_connector.decode.sparkplug.metrics import (
    Value,
    dataset,
    microseconds,
    plain_of,
    property_map,
    template,
    value_of,
)
from spark_connector.decode.sparkplug.payload import DATATYPES, payload_class
from spark_connector.errors import Mismatch
from tests.unit.spark_connector.decode.payloads import AT_MS


def read(datatype: str, field: str, raw: Any) -> Value:
    """A value by the name of its data type."""
    return value_of(DATATYPES.index(datatype), field, raw)


@pytest.mark.parametrize(
    ("datatype", "field", "raw", "number"),
    [
        ("Int8", "int_value", 127, 127),
        ("Int8", "int_value", 0x80, -128),
        ("Int8", "int_value", 0xFFFFFFFF, -1),
        ("Int8", "long_value", 2**64 - 1, -1),
        ("Int8", "long_value", 2**32 - 1, -1),
        ("Int16", "int_value", 0xFFFE, -2),
        ("Int16", "int_value", 2**32 - 32768, -32768),
        ("Int32", "int_value", 2**31, -(2**31)),
        ("Int32", "long_value", 2**64 - 2, -2),
        ("Int32", "long_value", 2**32 - 2, -2),
        ("Int64", "long_value", 2**64 - 1, -1),
        ("Int64", "long_value", 2**63 - 1, 2**63 - 1),
        ("Int64", "int_value", 5, 5),
        ("UInt8", "int_value", 255, 255),
        ("UInt16", "int_value", 65535, 65535),
        ("UInt32", "int_value", 2**32 - 1, 2**32 - 1),
        ("UInt32", "long_value", 2**32 - 1, 2**32 - 1),
        ("UInt64", "long_value", 2**63 - 1, 2**63 - 1),
        ("Unknown", "int_value", 2**32 - 1, 2**32 - 1),
    ],
)
def test_whole_numbers(datatype: str, field: str, raw: int, number: int) -> None:
    assert read(datatype, field, raw) == Value(long=number, double=float(number))


@pytest.mark.parametrize(
    ("datatype", "field", "raw", "value"),
    [
        ("UInt64", "long_value", 2**64 - 1, Value(double=float(2**64), text=str(2**64 - 1))),
        ("Float", "float_value", 1.5, Value(double=1.5)),
        ("Double", "double_value", -0.1, Value(double=-0.1)),
        ("Double", "float_value", 0.5, Value(double=0.5)),
        ("Boolean", "boolean_value", False, Value(boolean=False)),
        ("String", "string_value", "ü", Value(text="ü")),
        ("Text", "string_value", "", Value(text="")),
        ("UUID", "string_value", "u", Value(text="u")),
        ("DateTime", "long_value", AT_MS, Value(long=AT_MS, time=AT_MS * 1000)),
        ("Bytes", "bytes_value", b"\0", Value(bytes=b"\0")),
        ("File", "bytes_value", b"", Value(bytes=b"")),
        ("Unknown", "string_value", "x", Value(text="x")),
    ],
)
def test_the_others(datatype: str, field: str, raw: Any, value: Value) -> None:
    assert read(datatype, field, raw) == value


@pytest.mark.parametrize(
    ("datatype", "raw", "items"),
    [
        ("Int8Array", b"\xe9\x7b", [-23, 123]),
        ("Int16Array", struct.pack("<2h", -30000, 30000), [-30000, 30000]),
        ("UInt32Array", struct.pack("<2I", 52, 3293969225), [52, 3293969225]),
        ("UInt64Array", struct.pack("<Q", 2**64 - 1), [2**64 - 1]),
        ("FloatArray", struct.pack("<2f", 1.5, float("nan")), [1.5, "nan"]),
        ("DoubleArray", struct.pack("<d", 12.25), [12.25]),
        ("BooleanArray", b"\x0c\0\0\0\x34\xd0", [c == "1" for c in "001101001101"]),
        ("StringArray", b"ABC\0hello\0", ["ABC", "hello"]),
        ("DateTimeArray", struct.pack("<q", 1256102875335), [1256102875335]),
        ("Int32Array", b"", []),
    ],
)
def test_arrays_are_json_and_bytes(datatype: str, raw: bytes, items: list[Any]) -> None:
    value = read(datatype, "bytes_value", raw)
    assert value.bytes == raw
    assert json.loads(value.text or "") == items


@pytest.mark.parametrize(
    ("datatype", "field", "raw"),
    [
        ("Int8", "int_value", 0x100),
        ("Int8", "string_value", "1"),
        ("Int16", "int_value", 0x10000),
        ("Int32", "long_value", 2**33),
        ("UInt8", "int_value", 256),
        ("UInt32", "long_value", 2**32),
        ("Float", "int_value", 1),
        ("Boolean", "int_value", 1),
        ("String", "bytes_value", b""),
        ("DateTime", "double_value", 1.0),
        ("DateTime", "long_value", 2**63),
        ("Bytes", "string_value", ""),
        ("DataSet", "string_value", ""),
        ("Template", "string_value", ""),
        ("Int16Array", "bytes_value", b"\0"),
        ("Int16Array", "string_value", "x"),
        ("BooleanArray", "bytes_value", b"\x09\0\0\0\xff"),
        ("BooleanArray", "bytes_value", b"\x09"),
        ("StringArray", "bytes_value", b"abc"),
        ("StringArray", "bytes_value", b"\xff\0"),
        ("PropertySet", "string_value", ""),
    ],
)
def test_what_is_not_of_its_type(datatype: str, field: str, raw: Any) -> None:
    with pytest.raises(Mismatch):
        read(datatype, field, raw)


def test_a_table() -> None:
    metric = payload_class()().metrics.add()
    table = metric.dataset_value
    table.num_of_columns = 2
    table.columns.extend(["a", "b"])
    table.types.extend([DATATYPES.index("Int8"), DATATYPES.index("String")])
    row = table.rows.add()
    row.elements.add().int_value = 0xFF
    row.elements.add().string_value = "x"
    assert dataset(table) == {"columns": ["a", "b"], "types": ["Int8", "String"], "rows": [[-1, "x"]]}
    assert json.loads(read("DataSet", "dataset_value", table).text or "")["rows"] == [[-1, "x"]]
    row.elements.add()
    with pytest.raises(Mismatch, match="cells in a row"):
        dataset(table)
    table.types.append(1)
    with pytest.raises(Mismatch, match="type for each column"):
        dataset(table)


def test_a_template() -> None:
    made = payload_class()().metrics.add().template_value
    made.version, made.template_ref, made.is_definition = "v1", "Motor", False
    inner = made.metrics.add(name="rpm", datatype=DATATYPES.index("Int32"))
    inner.int_value = 2**32 - 5
    nested = made.metrics.add(name="part", datatype=DATATYPES.index("Template"))
    nested.template_value.metrics.add(name="at", datatype=DATATYPES.index("Bytes")).bytes_value = b"\0"
    made.metrics.add(name="none", datatype=DATATYPES.index("Int32"), is_null=True)
    made.parameters.add(name="p", type=DATATYPES.index("Boolean")).boolean_value = True
    assert template(made) == {
        "version": "v1",
        "templateRef": "Motor",
        "isDefinition": False,
        "metrics": [
            {"name": "rpm", "datatype": "Int32", "value": -5},
            {
                "name": "part",
                "datatype": "Template",
                "value": {"metrics": [{"name": "at", "datatype": "Bytes", "value": "AA=="}]},
            },
            {"name": "none", "datatype": "Int32", "value": None},
        ],
        "parameters": [{"name": "p", "type": "Boolean", "value": True}],
    }
    assert json.loads(read("Template", "template_value", made).text or "")["version"] == "v1"


def test_nesting_is_bounded() -> None:
    made = payload_class()().metrics.add().template_value
    inner = made
    for _ in range(20):
        inner = inner.metrics.add(name="m", datatype=19).template_value
    inner.version = "v"
    with pytest.raises(Mismatch, match="at most 16 levels"):
        template(made)
    with pytest.raises(Mismatch):
        plain_of(1, payload_class()().metrics.add(), 17)


def test_properties() -> None:
    made = payload_class()().metrics.add().properties
    made.keys.extend(["Quality", "unit", "off", "inner", "list"])
    made.values.add(type=3, int_value=192)
    made.values.add(type=12, string_value="C")
    made.values.add(type=12, is_null=True)
    inner = made.values.add(type=20).propertyset_value
    inner.keys.append("x")
    inner.values.add(type=11, boolean_value=True)
    made.values.add(type=21).propertysets_value.propertyset.add()
    assert property_map(made) == {"Quality": 192, "unit": "C", "off": None, "inner": {"x": True}, "list": [{}]}
    made.keys.append("more")
    with pytest.raises(Mismatch, match="a value for each property"):
        property_map(made)


def test_times() -> None:
    assert microseconds(AT_MS) == AT_MS * 1000
    with pytest.raises(Mismatch):
        microseconds(2**50)
