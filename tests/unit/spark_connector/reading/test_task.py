"""A task reads what its partition says, and nothing where Spark made one up for an empty DataFrame."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from remoting.protocol.bodies.pull_body import RowFilter
from spark_connector.errors import BrokenRecord, DataLost, OptionError
from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey, QueueRange
from spark_connector.reading import task
from spark_connector.reading.selection import Bounds
from spark_connector.reading.task import RangePartition, check_schema, newest, read_task, sample_bodies
from tests.unit.spark_connector.toy_broker import NAME, ToyBroker

SCHEMA = StructType([StructField("body", BinaryType()), StructField("queueOffset", LongType())])


def test_filters_are_for_parent_queues_only(broker: ToyBroker, read_options: Callable[..., ReadOptions]) -> None:
    broker.publish("a/1", [b"x", b"y"])
    options = read_options(mqttFilter="a/1")
    for topic, wanted, expected in (
        ("%LMQ%a%2F1", RowFilter(mqtt=("z",)), 2),
        ("a", RowFilter(mqtt=("z",)), 0),
        ("a", RowFilter(mqtt=("a/+",)), 2),
        ("a", RowFilter(), 2),
        ("%LMQ%a%2F1", RowFilter(tags=("none",)), 0),
    ):
        ranges = [
            QueueRange(QueueKey(topic, NAME, n), broker.queue(topic, n).id, 0, broker.queue(topic, n).max)
            for n in range(2)
        ]
        partition = RangePartition(
            [one for one in ranges if one.rows], {NAME: ("", broker.address), "other": ("", ("h", 1))}
        )
        assert partition.addresses == {NAME: ("", broker.address)}
        rows = [
            row
            for batch in read_task(pickle.loads(pickle.dumps(partition)), SCHEMA, wanted, options)
            for row in batch.to_pylist()
        ]
        assert len(rows) == expected


def test_a_damaged_record_is_reported_to_the_broker(
    broker: ToyBroker, read_options: Callable[..., ReadOptions]
) -> None:
    """The first attempt fails with the offset; then the broker knows, and the user decides how to treat a loss."""
    broker.publish("t", [b"%d" % n for n in range(20)], mqtt=False)
    queue = broker.queue("t", 0)
    good = queue.records[9]
    queue.records[9] = good[:-8] + bytes([good[-8] ^ 1]) + good[-7:]
    partition = RangePartition([QueueRange(QueueKey("t", NAME, 0), queue.id, 0, 20)], {NAME: ("", broker.address)})

    def read(**options: str) -> list[int]:
        found = read_task(partition, SCHEMA, RowFilter(), read_options(topic="t", **options))
        return [row["queueOffset"] for batch in found for row in batch.to_pylist()]

    with pytest.raises(BrokenRecord, match="offset 9"):
        read()
    assert queue.damaged == range(9, 10)
    with pytest.raises(DataLost, match="offsets 9 to 9"):
        read()
    assert read(failOnDataLoss="false") == [*range(9), *range(10, 20)]


def test_a_broker_that_cannot_get_the_report(broker: ToyBroker, read_options: Callable[..., ReadOptions]) -> None:
    """The query still fails with the record, not with the broker."""
    broker.publish("t", [b"x"], mqtt=False)
    queue = broker.queue("t", 0)
    queue.records[0] = queue.records[0][:-8] + b"\1" + queue.records[0][-7:]
    broker.faults = [broker.answer, lambda command: None]
    partition = RangePartition([QueueRange(QueueKey("t", NAME, 0), queue.id, 0, 1)], {NAME: ("", broker.address)})
    with pytest.raises(BrokenRecord, match="offset 0"):
        list(read_task(partition, SCHEMA, RowFilter(), read_options(topic="t", fetchretries="0")))


def test_an_empty_partition(read_options: Callable[..., ReadOptions]) -> None:
    assert list(read_task(InputPartition(None), SCHEMA, RowFilter(), read_options(topic="t"))) == []


def test_the_schema_is_checked_and_spelled_right(read_options: Callable[..., ReadOptions]) -> None:
    options = read_options(topic="t")
    given = StructType([StructField("QUEUEOFFSET", LongType())])
    assert check_schema(given, options) is None
    assert given.fields[0].name == "queueOffset"
    with pytest.raises(OptionError, match="not string"):
        check_schema(StructType([StructField("body", StringType())]), options)


Options = Callable[..., ReadOptions]


def test_the_sample_is_the_newest_of_every_queue() -> None:
    bounds = {QueueKey("t", "b", n): Bounds(n, 0, size) for n, size in ((0, 100), (1, 3), (2, 50))}
    ranges = {one.key.queue: (one.start, one.end) for one in newest(bounds, 43)}
    assert ranges == {1: (0, 3), 2: (30, 50), 0: (80, 100)}
    assert [one.rows for one in newest(bounds, 1)] == [1]


def test_a_sample_is_bounded_by_its_bytes(
    broker: ToyBroker, read_options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "SAMPLE_BYTES_MAX", 1)
    broker.publish("a/1", [b'{"x":1}'])
    broker.publish("b/1", [b'{"y":1}'])
    options = read_options(topic="a,b", decode="json", inferSchema="true")
    assert len(sample_bodies(options)) == 1
