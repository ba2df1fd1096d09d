"""The payload's declaration against bytes written by hand from the specification's field numbers."""

from __future__ import annotations

from spark_connector.decode.sparkplug.payload import DATATYPES, datatype_name, payload_class


def test_bytes_written_by_hand() -> None:
    """Payload {timestamp 1, metric {name a, alias 2, timestamp 3, datatype Int32, historical, int_value -1}, seq 5}."""
    metric = b"\x0a\x01a\x10\x02\x18\x03\x20\x03\x28\x01\x50\xff\xff\xff\xff\x0f"
    body = b"\x08\x01\x12" + bytes([len(metric)]) + metric + b"\x18\x05\x22\x01u\x2a\x01b"
    found = payload_class().FromString(body)
    assert (found.timestamp, found.seq, found.uuid, found.body) == (1, 5, "u", b"b")
    (one,) = found.metrics
    assert (one.name, one.alias, one.timestamp, one.datatype, one.is_historical) == ("a", 2, 3, 3, True)
    assert (one.is_transient, one.is_null, one.WhichOneof("value"), one.int_value) == (
        False,
        False,
        "int_value",
        2**32 - 1,
    )
    assert found.SerializeToString() == body


def test_numbers_of_all_values() -> None:
    """Each member of a metric's value has the number of the specification."""
    fields = payload_class().DESCRIPTOR.fields_by_name["metrics"].message_type.fields_by_name
    numbers = {name: field.number for name, field in fields.items() if name.endswith("_value")}
    assert numbers == {
        "int_value": 10, "long_value": 11, "float_value": 12, "double_value": 13, "boolean_value": 14,
        "string_value": 15, "bytes_value": 16, "dataset_value": 17, "template_value": 18,
    }  # fmt: skip
    types = fields["properties"].message_type.fields_by_name["values"].message_type.fields_by_name
    assert (types["int_value"].number, types["propertyset_value"].number, types["propertysets_value"].number) == (
        3,
        9,
        10,
    )


def test_names_of_data_types() -> None:
    numbers = {name: number for number, name in enumerate(DATATYPES)}
    assert (numbers["UInt64"], numbers["DateTime"], numbers["Template"]) == (8, 13, 19)
    assert (numbers["Int8Array"], numbers["BooleanArray"], numbers["DateTimeArray"]) == (22, 32, 34)
    assert datatype_name(11) == "Boolean"
    assert datatype_name(35) is None
