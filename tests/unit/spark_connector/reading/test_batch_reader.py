"""A bounded read between two points."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    Not,
)
from pyspark.sql.types import BinaryType, StructField, StructType

from remoting.protocol.frames.codes import RequestCode
from spark_connector.errors import DataLost, OptionError
from spark_connector.options.read_write import ReadOptions
from spark_connector.reading.batch_reader import RocketMQBatchReader
from tests.unit.spark_connector.toy_broker import NAME, ToyBroker

Options = Callable[..., ReadOptions]


def bodies(options: ReadOptions) -> list[bytes]:
    reader = RocketMQBatchReader(StructType([StructField("body", BinaryType())]), options)
    return sorted(
        row["body"] for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()
    )


@pytest.fixture
def filled(broker: ToyBroker) -> ToyBroker:
    broker.publish("t", [b"%d" % n for n in range(10)], mqtt=False)
    return broker


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, range(10)),
        ({"startingoffsets": '{"t":{"0":4}}'}, range(4, 10)),
        ({"endingoffsets": '{"t":{"0":4}}'}, range(4)),
        ({"startingtimestamp": "1"}, range(1, 10)),
        ({"endingtimestamp": "1"}, range(1)),
    ],
)
def test_ranges(filled: ToyBroker, read_options: Options, given: dict[str, str], expected: range) -> None:
    assert bodies(read_options(topic="t", **given)) == [b"%d" % n for n in expected]


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"startingoffsets": "latest"}, OptionError, "'startingOffsets' = latest: a batch that begins there has no"),
        ({"startingoffsets": '{"t":{"0":-1}}'}, OptionError, "'startingOffsets' = latest"),
        ({"endingoffsets": "earliest"}, OptionError, "'endingOffsets' = earliest: a batch that ends there has no rows"),
        ({"topic": "tt"}, OptionError, "no broker has 'tt'"),
        ({"startingoffsets": '{"t":{"0":40}}'}, DataLost, "beyond the log's end 10"),
        ({"endingoffsets": '{"t":{"0":40}}'}, DataLost, "beyond|the log ends at 10"),
        ({"endingoffsets": '{"t":{"7":4}}'}, OptionError, "t/7"),
    ],
)
def test_what_is_refused(
    filled: ToyBroker, read_options: Options, given: dict[str, str], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        bodies(read_options(**({"topic": "t"} | given)))


def test_offsets_beyond_the_log_can_be_allowed(filled: ToyBroker, read_options: Options) -> None:
    assert len(bodies(read_options(topic="t", endingoffsets='{"t":{"0":40}}', failondataloss="false"))) == 10


def test_an_mqtt_topic_without_messages_is_empty(broker: ToyBroker, read_options: Options) -> None:
    assert bodies(read_options(mqttFilter="nobody/here")) == []


def pushed(options: ReadOptions, *filters: Filter) -> list[bytes]:
    """The rows of a read with filters pushed, before Spark filters them again."""
    reader = RocketMQBatchReader(StructType([StructField("body", BinaryType())]), options)
    assert list(reader.pushFilters(list(filters))) == list(filters)
    raw = pickle.dumps(reader)
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    reader = pickle.loads(raw)
    return sorted(row["body"] for part in parts for batch in reader.read(part) for row in batch.to_pylist())


def test_filters_do_not_look_overridden(read_options: Options) -> None:
    """Spark refuses every read of a reader that overrides pushFilters while that is switched off."""
    reader = RocketMQBatchReader(StructType([StructField("body", BinaryType())]), read_options(topic="t"))
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([GreaterThanOrEqual(("queueOffset",), 4), LessThan(("queueOffset",), 6)], range(4, 6)),
        ([EqualTo(("topic",), "u")], range(0)),
        ([EqualTo(("topic",), "t"), EqualTo(("broker",), NAME)], range(10)),
        ([EqualTo(("key",), "k")], range(10)),
        ([EqualTo(("key",), "l")], range(0)),
        ([In(("tag",), ("t", "u"))], range(10)),
        ([In(("tag",), ("t", "u")), EqualTo(("tag",), "x")], range(0)),
        ([EqualTo(("mqttTopic",), "t/1")], range(0)),
        ([GreaterThan(("storeTimestamp",), dt.datetime(1971, 1, 1, tzinfo=dt.UTC))], range(1, 10)),
        ([LessThan(("storeTimestamp",), dt.datetime(1971, 1, 1, tzinfo=dt.UTC))], range(1)),
        ([LessThan(("bornTimestamp",), dt.datetime(1970, 1, 1, 0, 0, 0, 7000, tzinfo=dt.UTC))], range(0)),
        ([Not(EqualTo(("key",), "k"))], range(10)),
    ],
)
def test_filters_spare_rows(filled: ToyBroker, read_options: Options, filters: list[Filter], expected: range) -> None:
    """The toy broker answers any time with its second offset."""
    assert pushed(read_options(topic="t"), *filters) == [b"%d" % n for n in expected]


def test_what_no_row_can_satisfy_is_not_requested(filled: ToyBroker, read_options: Options) -> None:
    assert pushed(read_options(topic="t", tag="x"), EqualTo(("tag",), "y")) == []
    assert not {RequestCode.RANGE_PULL, RequestCode.FILTERED_PULL} & set(filled.requests)
