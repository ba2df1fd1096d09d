"""A task reads what its partition says, and nothing where Spark made one up for an empty DataFrame."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from spark_connector.errors import OptionError
from spark_connector.offsets import QueueKey
from spark_connector.options import ReadOptions
from spark_connector.planner import QueueRange
from spark_connector.task import RangePartition, check_schema, read_task
from tests.unit.spark_connector.toy_broker import NAME, ToyBroker

SCHEMA = StructType([StructField("body", BinaryType()), StructField("queueOffset", LongType())])


def test_filters_are_for_parent_queues_only(broker: ToyBroker, read_options: Callable[..., ReadOptions]) -> None:
    broker.publish("a/1", [b"x", b"y"])
    options = read_options(mqttFilter="a/1")
    for topic, filters, expected in (("%LMQ%a%2F1", ["z"], 2), ("a", ["z"], 0), ("a", ["a/+"], 2), ("a", [], 2)):
        ranges = [
            QueueRange(QueueKey(topic, NAME, n), broker.queue(topic, n).id, 0, broker.queue(topic, n).max)
            for n in range(2)
        ]
        partition = RangePartition([one for one in ranges if one.rows], {NAME: broker.address, "other": ("h", 1)})
        assert partition.addresses == {NAME: broker.address}
        rows = [
            row
            for batch in read_task(pickle.loads(pickle.dumps(partition)), SCHEMA, filters, options)
            for row in batch.to_pylist()
        ]
        assert len(rows) == expected


def test_an_empty_partition(read_options: Callable[..., ReadOptions]) -> None:
    assert list(read_task(InputPartition(None), SCHEMA, [], read_options(topic="t"))) == []


def test_the_schema_is_checked_and_spelled_right() -> None:
    given = StructType([StructField("QUEUEOFFSET", LongType())])
    check_schema(given)
    assert given.fields[0].name == "queueOffset"
    with pytest.raises(OptionError, match="not string"):
        check_schema(StructType([StructField("body", StringType())]))
