"""Sparkplug messages to columns, with births in other queues and other pulls; any bytes give one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.protocol.records import names
from spark_connector.columns.arrow import arrow_schema
from spark_connector.decode.ddl import parse_columns
from spark_connector.decode.plan import plan_stage
from spark_connector.decode.sparkplug import payload as module
from spark_connector.decode.sparkplug.bodies import SparkplugDecoder
from spark_connector.decode.sparkplug.payload import (
    DATATYPES,
    Births,
    Certificate,
    Need,
    plan_sparkplug,
    read_certificate,
)
from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey
from spark_connector.reading.task import sample_bodies
from tests.unit.spark_connector.decode.payloads import (
    AT_MS,
    FOREIGN_BIRTH,
    FOREIGN_DATA,
    FOREIGN_VALUES,
    birth,
    data,
    metric,
    payload,
)
from tests.unit.spark_connector.decode.test_stage import read
from tests.unit.spark_connector.toy_broker import NAME, ToyBroker, make_entry

SCHEMA = arrow_schema(plan_sparkplug()[0])
PARENT = names.parent_topic(b"spBv1.0").decode()
Options = Callable[..., ReadOptions]


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    """A free port may be one that an earlier toy broker had."""
    module._MEMORIES.clear()
    yield
    module._MEMORIES.clear()


class NoBirths(Births):
    """A log without certificates."""

    def __init__(self) -> None:
        self.needs: Mapping[str, Need] = {}

    def prepare(self, broker: str, needs: Mapping[str, Need]) -> None:
        """Record the request."""
        self.needs = needs

    def at(self, broker: str, topic: str, position: int) -> Certificate | None:
        """Nothing is in force."""


def decode(messages: list[tuple[str | None, bytes]], births: Births | None = None) -> tuple[list[dict[str, Any]], Any]:
    """Rows and reasons of messages at positions 0, 10, 20, ..."""
    topics, bodies = [topic for topic, _ in messages], pa.array([body for _, body in messages], pa.binary())
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(topics, pa.string()),
            pa.array(range(0, 10 * len(messages), 10), pa.int64()),
            pa.array([1000] * len(messages), pa.timestamp("us", "UTC")),
        ],
        names=["mqttTopic", "_position", "storeTimestamp"],
    )
    decoded = SparkplugDecoder(SCHEMA, births or NoBirths()).decode(bodies, batch, QueueKey("t", NAME, 0))
    for column in decoded.columns:
        assert len(column) == len(messages)
        column.validate(full=True)
    columns = [column.to_pylist() for column in decoded.columns]
    return [dict(zip(SCHEMA.names, row, strict=True)) for row in zip(*columns, strict=True)], decoded.reasons


def test_a_birth_explains_itself() -> None:
    made = payload(0)
    metric(made, "bdSeq", "Int64", long_value=3)
    metric(made, "Supply Voltage", "Float", alias=1, float_value=12.25)
    made.uuid, made.body = "u", b"b"
    (row,), reasons = decode([("spBv1.0/g/NBIRTH/n", made.SerializeToString())])
    assert reasons == {}
    assert (row["groupId"], row["messageType"], row["edgeNodeId"], row["deviceId"]) == ("g", "NBIRTH", "n", None)
    assert (row["seq"], row["bdSeq"], row["payloadUuid"], row["payloadBody"], row["logPosition"]) == (
        0,
        3,
        "u",
        b"b",
        0,
    )
    assert row["payloadTimestamp"].timestamp() * 1000 == AT_MS
    assert [(one["name"], one["double"]) for one in row["metrics"]] == [("bdSeq", 3.0), ("Supply Voltage", 12.25)]


class OneBirth(NoBirths):
    """A log with one certificate."""

    def at(self, broker: str, topic: str, position: int) -> Certificate:
        """It is in force everywhere."""
        return read_certificate(-1, FOREIGN_BIRTH)


def test_what_another_implementation_sent() -> None:
    """Every data type, by name and by alias; the values are those its encoder was given."""
    rows, reasons = decode([("spBv1.0/g/NBIRTH/n", FOREIGN_BIRTH), ("spBv1.0/g/NDATA/n", FOREIGN_DATA)], OneBirth())
    assert reasons == {}
    for row in rows:
        found = {}
        for one in row["metrics"]:
            assert DATATYPES[one["alias"]] == one["datatype"]
            members = [one[member] for member in ("text", "long", "double", "boolean", "bytes")]
            found[one["datatype"]] = next(member for member in members if member is not None)
        assert found == FOREIGN_VALUES


def test_aliases_without_a_birth_are_kept() -> None:
    births = NoBirths()
    (row, other), reasons = decode(
        [("spBv1.0/g/NDATA/n", data(1, a7=5)), ("spBv1.0/g/DDATA/n/d", data(2, a9=1.5))], births
    )
    assert [(one["alias"], one["name"], one["long"]) for one in row["metrics"]] == [(7, None, 5)]
    assert other["metrics"][0]["double"] == 1.5
    assert reasons[0] == "metric 7: no birth certificate of the node is in the log before it"
    assert "of the device" in reasons[1]
    assert list(births.needs) == ["spBv1.0/g/NBIRTH/n", "spBv1.0/g/DBIRTH/n/d"]


def test_names_with_types_need_no_birth() -> None:
    made = payload(1)
    metric(made, "temp", "Int8", int_value=1)
    births = NoBirths()
    _, reasons = decode([("spBv1.0/g/NDATA/n", made.SerializeToString())], births)
    assert reasons == {}
    assert not births.needs


def test_other_messages() -> None:
    rows, reasons = decode(
        [
            ("spBv1.0/STATE/scada", b'{"online":true,"timestamp":%d}' % AT_MS),
            ("spBv1.0/STATE/scada", b"OFFLINE"),
            ("spBv1.0/STATE/scada", b'{"online":false,"timestamp":%d}' % 2**60),
            (None, b""),
            ("spBv1.0/g/NDATA/n", b"\xff"),
            ("spBv1.0/g/NDATA/n", payload(256).SerializeToString()),
            ("spBv1.0/g/NDEATH/n", payload(None).SerializeToString()),
            ("spBv1.0/g/NDATA/n", payload(1, 2**60).SerializeToString()),
        ]
    )
    assert [row["messageType"] for row in rows] == ["STATE"] * 3 + [None] + ["NDATA"] * 2 + ["NDEATH", "NDATA"]
    assert (rows[0]["hostId"], rows[0]["online"]) == ("scada", True)
    assert sorted(reasons) == [1, 2, 3, 4, 5, 7]
    assert reasons[4].startswith("not a Sparkplug B payload")
    assert "seq: a number up to 255" in reasons[5]
    assert reasons[7].startswith("timestamp: a time")
    assert rows[3]["metrics"] is None
    assert rows[6]["metrics"] == []


def test_an_invalid_bdseq() -> None:
    made = payload(0)
    metric(made, "bdSeq", "UInt64", long_value=2**64 - 1)
    (row,), _ = decode([("spBv1.0/g/NDEATH/n", made.SerializeToString())])
    assert row["bdSeq"] is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [None, "x", "spBv1.0/g/NDATA/n", "spBv1.0/g/DBIRTH/n/d", "spBv1.0/STATE/h", "spBv1.0/a/b/c"]
            ),
            st.one_of(
                st.binary(max_size=40),
                st.binary(max_size=6).map(lambda tail: data(1, a1=5, a2="x") + tail),
                st.binary(max_size=12).map(lambda inner: b"\x12" + bytes([len(inner)]) + inner),
                st.binary(max_size=12).map(lambda inner: b"\x12" + bytes([len(inner) + 1]) + inner + b"\x38\x01"),
            ),
        ),
        max_size=12,
    )
)
def test_any_bytes_give_one_row_each(messages: list[tuple[str | None, bytes]]) -> None:
    rows, _ = decode(messages)
    assert len(rows) == len(messages)


def messages_of(broker: ToyBroker, options: ReadOptions) -> list[dict[str, Any]]:
    """What a query of the parent topic reads, in the order of the log."""
    schema = parse_columns("mqttTopic string, logPosition bigint, _corrupt string, " + metrics_column())
    return sorted(read(broker, schema, options, PARENT), key=lambda row: row["logPosition"])


def metrics_column() -> str:
    """The declaration of the metrics."""
    field = plan_sparkplug()[0]["metrics"]
    return f"metrics {field.dataType.simpleString()}"


def test_births_in_another_queue_and_another_batch(broker: ToyBroker, read_options: Options) -> None:
    """A stream that begins after the births, new births, and a device that was not born since its node was."""
    options = read_options(topic=PARENT, decode="sparkplug")
    for topic, body in (
        ("NBIRTH/n", birth(volts=(1, "Int16"))),
        ("DBIRTH/n/d", birth(rpm=(2, "Double"))),
        ("NDATA/n", data(2, a1=0xFFFF)),
        ("DDATA/n/d", data(3, a2=1.5)),
        ("NBIRTH/n", birth(amps=(1, "UInt16"))),
        ("NDATA/n", data(1, a1=0xFFFF)),
        ("DDATA/n/d", data(2, a2=2.5)),
        ("DBIRTH/n/d", birth(rpm=(2, "Float"))),
        ("DDATA/n/d", data(4, a2=3.5)),
    ):
        broker.append(make_entry(f"spBv1.0/g/{topic}", body))
    rows = [row for row in messages_of(broker, options) if "DATA" in row["mqttTopic"]]
    found = [(row["metrics"][0]["name"], row["metrics"][0]["double"], row["_corrupt"] is None) for row in rows]
    assert found == [
        ("volts", -1.0, True),
        ("rpm", 1.5, True),
        ("amps", 65535.0, True),
        (None, 2.5, False),
        ("rpm", 3.5, True),
    ]
    assert "the device was not born again since its node was" in rows[3]["_corrupt"]
    again = messages_of(broker, options)
    assert [row["metrics"] for row in again if "DATA" in row["mqttTopic"]] == [row["metrics"] for row in rows]


def test_only_heads_are_requested(broker: ToyBroker, read_options: Options) -> None:
    """Without metrics no birth is requested."""
    broker.append(make_entry("spBv1.0/g/NDATA/n", data(9, a1=1)))
    options = read_options(topic=PARENT, decode="sparkplug")
    schema = parse_columns("seq int, edgeNodeId string")
    _, stage = plan_stage(schema, options, sample_bodies)
    assert stage is not None
    before = len(broker.requests)
    assert read(broker, schema, options, PARENT) == [{"seq": 9, "edgeNodeId": "n"}]
    assert len(broker.requests) == before + 1
