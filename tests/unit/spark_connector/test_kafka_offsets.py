"""Streams with `schema` = kafka: progress and checkpoints in Kafka's JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_connector.errors import OptionError
from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey
from spark_connector.reading.offsets import StreamOffset
from spark_connector.reading.selection import Bounds
from spark_connector.reading.stream_reader import RocketMQStreamReader
from tests.unit.spark_connector.engine import Engine
from tests.unit.spark_connector.toy_broker import ToyBroker

Options = Callable[..., ReadOptions]


def test_kafkas_form_of_offsets(broker: ToyBroker, read_options: Options) -> None:
    """Progress and checkpoint have Kafka's JSON; a failed first batch, a restart and a former checkpoint continue."""
    broker.publish("orders", [b"%04d" % n for n in range(6)], mqtt=False)
    options = {"topic": "orders", "schema": "kafka", "longpollms": "0"}
    schema = StructType([StructField("value", BinaryType())])

    def make() -> RocketMQStreamReader:
        return RocketMQStreamReader(StructType.fromJson(schema.jsonValue()), read_options(**options))

    offsets: dict[int, str] = {}
    commits: set[int] = set()
    first = Engine(make, offsets, commits)
    first.reader.initialOffset()
    broker.publish("orders", [b"%04d" % n for n in range(6, 9)], mqtt=False)
    assert first.step(fail=True) == -1
    again = Engine(make, offsets, commits)
    assert sorted(row["value"] for row in again.rows) == [b"0006", b"0007", b"0008"]
    broker.publish("orders", [b"0009"], mqtt=False)
    assert again.drain() == [1]
    where = {":v1": {}, ":at:broker-t:orders": {}, "orders": {"0": 10, "1": 0}}
    assert json.loads(offsets[1]) == {**where, ":id:orders": {"0": 1}}
    assert json.loads(offsets[0])["orders"] == {"0": 9, "1": 0}
    assert again.reader.reportLatestOffset() == where
    options["schema"] = "rocketmq"
    schema.fields[0].name = "body"
    broker.publish("orders", [b"0010"], mqtt=False)
    assert Engine(make, offsets, commits).drain() == [1]
    assert json.loads(offsets[2])["v"] == 1
    options["schema"] = "kafka"
    schema.fields[0].name = "value"
    broker.publish("orders", [b"0011"], mqtt=False)
    assert Engine(make, offsets, commits).drain() == [1]
    assert json.loads(offsets[3])["orders"] == {"0": 12, "1": 0}


def test_kafkas_columns_of_a_topic_at_two_groups_are_refused(read_options: Options) -> None:
    """The group may come while the query runs."""
    reader = RocketMQStreamReader(
        StructType([StructField("value", BinaryType())]), read_options(topic="orders", schema="kafka")
    )
    key = QueueKey("orders", "broker-a", 0)
    start = {key: 0}
    reader._bounds = {key: Bounds(1, 0, 5)}
    assert reader._next(StreamOffset(start), ReadAllAvailable()) is not None
    reader._bounds = {key: Bounds(1, 0, 5), QueueKey("orders", "broker-b", 0): Bounds(1, 0, 5)}
    with pytest.raises(OptionError, match="'orders' has queues at several broker groups"):
        reader._next(StreamOffset(start), ReadAllAvailable())
