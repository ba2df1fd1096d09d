"""PySpark and `decode` against a real broker: typed columns beside the message columns, and no row lost."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from spark_connector.decode.protobuf import find_message
from spark_connector.decode.sequence_gaps import sequence_gaps
from tests.interop.spark_scenario import Frames
from tests.unit.spark_connector.decode.messages import descriptor_set
from tests.unit.spark_connector.decode.payloads import birth, data

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(240)]


def store(server: str, *messages: tuple[str, bytes]) -> None:
    """Store messages as MQTT publishes, in this order."""
    entries = [image.encode_mqtt_image(topic.encode(), body, 1, 0, b"test") for topic, body in messages]
    with BlockingConnection.dial(server) as connection:
        reply = connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(entries)))
    assert reply.code == 0, reply.remark


def collect(frame: Any, name: str, checkpoint: Path) -> list[Any]:
    """The rows a stream has now."""
    query = frame.writeStream.format("memory").queryName(name).option("checkpointLocation", str(checkpoint))
    running = query.trigger(availableNow=True).start()
    assert running.awaitTermination(120)
    rows: list[Any] = frame.sparkSession.table(name).collect()
    return rows


def append(frame: Any, folder: Path) -> list[Any]:
    """All rows that a stream, resumed from its checkpoint, has written to a folder."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    running = writer.option("path", str(folder / "rows")).trigger(availableNow=True).start()
    assert running.awaitTermination(120)
    rows: list[Any] = frame.sparkSession.read.schema(frame.schema).parquet(str(folder / "rows")).collect()
    return rows


def test_json_of_every_type(load: Frames, server: str) -> None:
    """What comes out of Spark is what went in, and Spark can compute with each column."""
    whole = {
        "s": "ü", "n": 2**40, "d": 1.5, "b": True, "at": "2026-01-31T10:20:30.5+01:00", "local": "2026-01-31T10:20:30",
        "cost": 12.34, "inner": {"list": [1, None], "deep": {"x": "y"}}, "map": {"k": 1}, "raw": "AAE=",
        "day": "2026-01-31",
    }  # fmt: skip
    store(server, ("jsn/1", json.dumps(whole).encode()), ("jsn/1", b"{}"), ("jsn/1", b"\xff"), ("jsn/1", b'{"n":"x"}'))
    schema = (
        "s string, n bigint, d double, b boolean, at timestamp, local timestamp_ntz, cost decimal(8,2), "
        "inner struct<list:array<int>,deep:struct<x:string>>, map map<string,int>, raw binary, day date"
    )
    frame = load(mqttFilter="jsn/1", decode="json", decodeSchema=schema)
    assert frame.columns[-2:] == ["day", "_corrupt"]
    rows = frame.orderBy("queueOffset").collect()
    assert len(rows) == 4
    first = rows[0]
    assert (first.s, first.n, first.d, first.b, first.cost) == ("ü", 2**40, 1.5, True, Decimal("12.34"))
    assert (first.inner.list, first.inner.deep.x, first.map, bytes(first.raw)) == ([1, None], "y", {"k": 1}, b"\0\1")
    assert (first.day, first.local) == (dt.date(2026, 1, 31), dt.datetime(2026, 1, 31, 10, 20, 30))  # noqa: DTZ001
    assert frame.selectExpr("unix_micros(at) AS at").first().at == 1769851230500000
    assert [row._corrupt is None for row in rows] == [True, True, False, False]
    assert bytes(rows[2].body) == b"\xff"
    shown = load(mqttFilter="jsn/1", decode="json", decodeSchema=schema, columns="n,mqttTopic")
    assert shown.columns == ["n", "mqttTopic"]
    assert shown.where("n > 1").count() == 1


def test_a_schema_given_to_the_reader_and_a_field_called_topic(spark: Any, load: Frames, server: str) -> None:
    store(server, ("jsg/1", b'{"topic":"mine","a":5}'))
    reader = spark.read.format("rocketmq").option("nameServer", server).option("mqttFilter", "jsg/1")
    row = reader.option("decode", "json").schema("a int, mqttTopic string, _corrupt string").load().first()
    assert tuple(row) == (5, "jsg/1", None)
    frame = load(mqttFilter="jsg/1", decode="json", decodeColumn="value", decodeSchema="topic string")
    assert tuple(frame.selectExpr("topic", "value.topic AS inner").first()) == ("jsg", "mine")


def test_a_stream_keeps_its_inferred_columns(load: Frames, server: str, tmp_path: Path) -> None:
    """The second start reads newer messages with the columns of the first."""
    options = {
        "mqttFilter": "jsi/#", "decode": "json", "inferSchema": "true", "schemaLocation": str(tmp_path / "schema.json"),
        "startingOffsets": "earliest",
    }  # fmt: skip
    store(server, ("jsi/1", b'{"n":1}'))
    frame = load(stream=True, **options).select("n", "_corrupt")
    assert [tuple(row) for row in collect(frame, "jsi_first", tmp_path / "c1")] == [(1, None)]
    store(server, ("jsi/1", b'{"n":1.5,"m":2}'))
    frame = load(stream=True, **options)
    assert "m" not in frame.columns
    rows = {row.queueOffset: row for row in collect(frame, "jsi_second", tmp_path / "c2")}
    assert rows[0]._corrupt is None
    assert "a whole number" in rows[1]._corrupt
    assert "m" in load(mqttFilter="jsi/#", decode="json", inferSchema="true").columns


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"decode": "json"}, "needs to know the fields"),
        ({"decode": "json", "decodeSchema": "a inte"}, "'decodeSchema' = 'a inte'"),
        ({"decode": "json", "inferSchema": "true"}, "schemaLocation"),
        ({"decode": "avro", "decodeSchema": "[]"}, "'decodeSchema'"),
    ],
)
def test_what_is_refused_when_the_query_is_planned(
    load: Frames, server: str, tmp_path: Path, options: dict[str, str], says: str
) -> None:
    store(server, ("jsr/1", b'{"a":1}'))
    with pytest.raises(Exception, match=says):
        collect(load(stream=True, mqttFilter="jsr/1", **options), "jsr", tmp_path / "checkpoint")


def test_avro_and_protobuf(load: Frames, server: str, tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "n", "type": ["null", "long"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "any", "type": ["int", "string"]},
            {"name": "parts", "type": {"type": "map", "values": "double"}},
        ],
    }
    at = dt.datetime(2026, 1, 31, 10, tzinfo=dt.UTC)
    stream = io.BytesIO()
    value = {"n": 7, "at": at, "any": "x", "parts": {"a": 1.5}}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    store(server, ("avr/1", stream.getvalue()), ("avr/1", b"\x02"))
    frame = load(mqttFilter="avr/1", decode="avro", decodeSchema=json.dumps(schema)).orderBy("queueOffset")
    found = frame.selectExpr("n", "unix_millis(at)", "any.member1", "parts", "_corrupt IS NULL").collect()
    assert [tuple(row) for row in found] == [(7, 1769853600000, "x", {"a": 1.5}, True), (None,) * 4 + (False,)]

    place = tmp_path / "plant.desc"
    place.write_bytes(descriptor_set().SerializeToString())
    reading = find_message(place.read_bytes(), "plant.Reading")(device="d", big=2**64 - 1, state=1)
    reading.at.FromDatetime(at)
    reading.took.seconds = 90
    reading.counts["k"] = 3
    store(server, ("pbf/1", reading.SerializeToString()), ("pbf/1", b"\x0a\x09x"))
    options = {"decode": "protobuf", "decodeSchema": str(place), "messageType": "plant.Reading"}
    frame = load(mqttFilter="pbf/1", **options).orderBy("queueOffset")
    found = frame.selectExpr(
        "device", "big", "state", "unix_millis(at)", "CAST(took AS string)", "counts", "_corrupt IS NULL"
    ).collect()
    took = "INTERVAL '0 00:01:30' DAY TO SECOND"
    assert tuple(found[0]) == ("d", Decimal(2**64 - 1), "ON", 1769853600000, took, {"k": 3}, True)
    assert tuple(found[1]) == (*[None] * 6, False)


def test_sparkplug_births_in_another_batch(load: Frames, server: str, tmp_path: Path) -> None:
    """A stream with the births in its first batch, and one that begins after them: the same names and signs."""
    node, device = "spBv1.0/interop/{}/node", "spBv1.0/interop/{}/node/device"
    options = {"mqttFilter": "spBv1.0/interop/#", "decode": "sparkplug"}
    shown = "messageType", "seq", "inline_outer(metrics)", "_corrupt"
    store(
        server,
        (node.format("NBIRTH"), birth(volts=(1, "Int16"), label=(2, "String"))),
        (device.format("DBIRTH"), birth(rpm=(3, "Double"))),
    )
    early = load(stream=True, startingOffsets="earliest", **options).selectExpr(*shown)
    late = load(stream=True, startingOffsets="latest", **options).selectExpr(*shown)
    assert len(append(early, tmp_path / "early")) == 3
    assert append(late, tmp_path / "late") == []
    store(
        server,
        (node.format("NDATA"), data(2, a1=0xFFFE, a2="x")),
        (device.format("DDATA"), data(3, a3=2.5)),
        (node.format("NDATA"), data(4, a9=1)),
        (device.format("DDATA"), b"\xff"),
    )
    for frame, folder in ((early, "early"), (late, "late")):
        rows = [row for row in append(frame, tmp_path / folder) if row.messageType.endswith("DATA")]
        found = {(row.seq, row.alias): (row.name, row.long, row.double, row.text, row._corrupt) for row in rows}
        assert found.pop((4, 9))[-1] == "metric 9: alias 9 is not in the birth certificate"
        assert "not a Sparkplug B payload" in found.pop((None, None))[-1]
        assert found == {
            (2, 1): ("volts", -2, -2.0, None, None),
            (2, 2): ("label", None, None, "x", None),
            (3, 3): ("rpm", None, 2.5, None, None),
        }
    assert load(**options).count() == 6


def test_missing_messages_of_a_node(spark: Any) -> None:
    """A wrap at 255, a new birth, two nodes, messages without numbers; only real gaps are reported."""
    of_n = [("NBIRTH", 0), ("DBIRTH", 1), ("DDATA", 2), ("NDATA", 5), ("NDEATH", None), ("NBIRTH", 0), ("DDEATH", 1)]
    of_m = [("NDATA", 254), ("NDATA", 255), ("NDATA", 0), ("NCMD", None), ("NDATA", 0)]
    rows = [("b", "g", node, *one, at) for node, ones in (("n", of_n), ("m", of_m)) for at, one in enumerate(ones)]
    frame = spark.createDataFrame(
        rows[::-1],
        "broker string, groupId string, edgeNodeId string, messageType string, seq int, logPosition bigint",
    )
    gaps = sequence_gaps(frame).collect()
    found = {(row.edgeNodeId, row.logPosition): (row.expected, row.seq, row.missing) for row in gaps}
    assert found == {("n", 3): (3, 5, 2), ("m", 4): (1, 0, 255)}
