"""The stage in a task: its requests to the source, its output, and when it fails."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from remoting.protocol.bodies.pull_body import RowFilter
from spark_connector.decode import plan as module
from spark_connector.decode.ddl import parse_columns
from spark_connector.decode.plan import plan_stage
from spark_connector.errors import CorruptBody
from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey, QueueRange
from spark_connector.reading.task import RangePartition, check_schema, read_task, sample_bodies
from tests.unit.spark_connector.decode.messages import descriptor_set
from tests.unit.spark_connector.toy_broker import NAME, ToyBroker

Options = Callable[..., ReadOptions]


def read(broker: ToyBroker, schema: StructType, options: ReadOptions, topic: str = "t") -> list[dict[str, Any]]:
    """What a task yields of a topic, with everything pickled as Spark does."""
    stage = pickle.loads(pickle.dumps(check_schema(schema, options)))
    queues = [(n, broker.queue(topic, n)) for n in (0, 1)]
    ranges = [QueueRange(QueueKey(topic, NAME, n), queue.id, 0, queue.max) for n, queue in queues]
    partition = RangePartition([one for one in ranges if one.rows], {NAME: ("", broker.address)})
    return [row for batch in read_task(partition, schema, RowFilter(), options, stage) for row in batch.to_pylist()]


def test_bodies_become_columns_beside_the_others(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("t", [b'{"a":1}', b"x", b'{"a":"y","b":"z"}', b""], mqtt=False)
    options = read_options(topic="t", decode="json", decodeSchema="a int, b string")
    rows = read(broker, parse_columns("b string, queueOffset bigint, a int, _corrupt string"), options)
    assert [row["queueOffset"] for row in rows] == [0, 1, 2, 3]
    assert [(row["a"], row["b"]) for row in rows] == [(1, None), (None, None), (None, "z"), (None, None)]
    assert [bool(row["_corrupt"]) for row in rows] == [False, True, True, True]
    assert list(rows[0]) == ["b", "queueOffset", "a", "_corrupt"]


def test_only_what_is_selected_is_read(broker: ToyBroker, read_options: Options) -> None:
    """Without the reason column, unselected fields are not read; without any field, bodies are not."""
    broker.publish("t", [b'{"a":1,"b":[]}'], mqtt=False)
    options = read_options(topic="t", decode="json", decodeSchema="a int, b string, c map<string,int>")
    assert read(broker, parse_columns("a int"), options) == [{"a": 1}]
    _, none = plan_stage(parse_columns("queueId int"), options, sample_bodies)
    assert none is None
    _, stage = plan_stage(parse_columns("a int, key string"), options, sample_bodies)
    assert stage is not None
    assert stage.source.names == ["key", "body"]
    assert stage.fields.names == ["a"]
    _, stage = plan_stage(parse_columns("_corrupt string"), options, sample_bodies)
    assert stage is not None
    assert stage.fields.names == ["a", "b", "c"]


def test_one_struct_column(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("t", [b'{"topic":"mine"}', b"?"], mqtt=False)
    options = read_options(topic="t", decode="json", decodeSchema="topic string", decodeColumn="value")
    rows = read(broker, parse_columns("value struct<topic:string>, topic string"), options)
    assert rows == [{"value": {"topic": "mine"}, "topic": "t"}, {"value": {"topic": None}, "topic": "t"}]
    rows = read(broker, parse_columns("value struct<topic:string>, brokerName string"), options)
    assert [row["brokerName"] for row in rows] == [NAME, NAME]


def test_failfast_names_queue_and_offset(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("t", [b'{"a":1}', b'{"a":2}', b"x"], mqtt=False)
    options = read_options(topic="t", decode="json", decodeSchema="a int", mode="failfast")
    with pytest.raises(CorruptBody, match="queue t/broker-t/0, offset 2: not JSON"):
        read(broker, parse_columns("a int"), options)
    with pytest.raises(CorruptBody):
        read(broker, parse_columns("key string"), options)


def test_large_batches_are_split(monkeypatch: pytest.MonkeyPatch, read_options: Options) -> None:
    options = read_options(topic="t", decode="json", decodeSchema="a int")
    _, stage = plan_stage(parse_columns("a int"), options, sample_bodies)
    assert stage is not None
    monkeypatch.setattr(module, "BODY_BYTES_MAX", 40)
    batch = pa.RecordBatch.from_arrays([pa.array([b'{"a":%d}' % n for n in range(20)], pa.binary())], names=["body"])
    pieces = list(stage.open(options, {}).apply(batch, QueueKey("t", NAME, 0)))
    assert len(pieces) > 3
    assert [row["a"] for piece in pieces for row in piece.to_pylist()] == list(range(20))
    empty = list(stage.open(options, {}).apply(batch.slice(0, 0), QueueKey("t", NAME, 0)))
    assert sum(piece.num_rows for piece in empty) == 0


def test_a_missing_body_is_an_empty_one(read_options: Options) -> None:
    options = read_options(topic="t", decode="json", decodeSchema="a int")
    _, stage = plan_stage(parse_columns("_corrupt string"), options, sample_bodies)
    assert stage is not None
    batch = pa.RecordBatch.from_arrays([pa.array([None], pa.binary())], names=["body"])
    (piece,) = stage.open(options, {}).apply(batch, QueueKey("t", NAME, 0))
    assert piece.to_pylist() == [{"_corrupt": "the body is empty"}]


def test_avro_and_protobuf(broker: ToyBroker, read_options: Options, tmp_path: Path) -> None:
    broker.publish("t", [b"\x0a\x01x", b"\x02"], mqtt=False)
    avro = '{"type":"record","name":"R","fields":[{"name":"n","type":"long"}]}'
    rows = read(
        broker,
        parse_columns("n bigint, _corrupt string"),
        read_options(topic="t", decode="avro", decodeSchema=avro),
    )
    assert [row["n"] for row in rows] == [None, 1]
    place = tmp_path / "plant.desc"
    place.write_bytes(descriptor_set().SerializeToString())
    options = read_options(topic="t", decode="protobuf", decodeSchema=str(place), messageType="plant.Part")
    rows = read(broker, parse_columns("name string, _corrupt string"), options)
    assert [row["name"] for row in rows] == ["x", None]
    assert [bool(row["_corrupt"]) for row in rows] == [False, True]
