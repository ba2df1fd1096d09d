"""Metrics as an array: names and types from a certificate or not, flags, properties, and what is wrong with them."""

from __future__ import annotations

from typing import Any

from spark_connector.columns.arrow import arrow_schema
from spark_connector.decode.sparkplug.metrics import Known, MetricRows
from spark_connector.decode.sparkplug.payload import plan_sparkplug
from tests.unit.spark_connector.decode.payloads import AT_MS, metric, payload

TYPE = arrow_schema(plan_sparkplug()[0]).field("metrics").type
KNOWN = Known({7: ("temp", 1)}, {"temp": 1, "flag": 11}, "")


def read(made: Any, known: Known = KNOWN) -> tuple[list[dict[str, Any]], str]:
    """The metrics of one payload."""
    rows = MetricRows()
    reason = rows.add_all(made, known, AT_MS * 1000)
    rows.end_row(present=True)
    (found,) = rows.array(TYPE).to_pylist()
    return found, reason


def test_an_alias_gets_its_name_and_its_sign() -> None:
    made = payload()
    metric(made, alias=7, timestamp=AT_MS + 5, int_value=0xFF, is_historical=True)
    metric(made, "flag", boolean_value=True, is_transient=True)
    (first, second), reason = read(made)
    assert reason == ""
    assert (first["name"], first["alias"], first["datatype"], first["long"]) == ("temp", 7, "Int8", -1)
    assert (first["isHistorical"], first["isTransient"], first["isNull"]) == (True, False, False)
    assert first["timestamp"].timestamp() * 1000 == AT_MS + 5
    assert (second["datatype"], second["boolean"], second["isTransient"]) == ("Boolean", True, True)
    assert second["timestamp"].timestamp() * 1000 == AT_MS


def test_without_a_certificate() -> None:
    for fields, known, says in (
        ({"alias": 8, "int_value": 1}, KNOWN, "metric 8: alias 8 is not in the birth certificate"),
        ({"alias": 7, "int_value": 1}, Known({}, {}, "no birth"), "metric 7: no birth"),
        ({"name": "new", "int_value": 5}, KNOWN, "metric new: its data type is neither here"),
        ({"name": "new", "int_value": 5}, Known({}, {}, "no birth"), "metric new: no birth"),
        ({"int_value": 1}, KNOWN, "metric None: neither name nor alias"),
        ({"alias": 7}, KNOWN, "metric temp: it has no value and is not null"),
        ({"alias": 7, "int_value": 256}, KNOWN, "metric temp: Int8 is needed, not the number 256"),
        ({"alias": 7, "int_value": 1, "timestamp": 2**60}, KNOWN, "metric temp: timestamp"),
        ({"alias": 2**63, "name": "temp", "int_value": 1}, KNOWN, "metric temp: alias 9223372036854775808 is above"),
    ):
        made = payload()
        metric(made, **fields)
        (found,), reason = read(made, known)
        assert reason.startswith(says)
        assert found["alias"] == (fields.get("alias") if says.find("is above") < 0 else None)


def test_a_number_without_a_type_keeps_its_bits() -> None:
    made = payload()
    metric(made, alias=8, int_value=0xFF)
    (found,), _ = read(made)
    assert (found["name"], found["long"], found["datatype"]) == (None, 255, "Unknown")


def test_null_is_valid() -> None:
    made = payload()
    metric(made, "temp", "Int8", is_null=True)
    (found,), reason = read(made)
    assert (found["isNull"], found["long"], reason) == (True, None, "")


def test_properties_and_metadata() -> None:
    made = payload()
    one = metric(made, "file", "File", bytes_value=b"x")
    one.properties.keys.extend(["Quality", "unit"])
    one.properties.values.add(type=3, int_value=192)
    one.properties.values.add(type=12, string_value="C")
    one.metadata.file_name, one.metadata.size = "a.txt", 1
    other = metric(made, "flag", "Boolean", boolean_value=False)
    other.properties.keys.append("alone")
    (first, second), reason = read(made)
    assert first["properties"] == [("Quality", "192"), ("unit", "C")]
    assert first["metadata"] == '{"size":1,"fileName":"a.txt"}'
    assert second["properties"] is None
    assert "properties: a value for each property" in reason


def test_rows_without_metrics() -> None:
    rows = MetricRows()
    rows.end_row(present=False)
    made = payload()
    metric(made, "temp", "Int8", int_value=1)
    rows.add_all(made, KNOWN, None)
    rows.end_row(present=True)
    rows.end_row(present=True)
    found = rows.array(TYPE)
    found.validate(full=True)
    assert [None if row is None else len(row) for row in found.to_pylist()] == [None, 1, 0]
    assert MetricRows().array(TYPE).to_pylist() == []
