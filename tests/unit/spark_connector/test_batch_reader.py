"""A bounded read between two points."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_connector.batch_reader import RocketMQBatchReader
from spark_connector.errors import DataLost, OptionError
from spark_connector.options import ReadOptions
from tests.unit.spark_connector.toy_broker import ToyBroker

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
        ({"startingoffsets": "latest"}, range(0)),
        ({"startingtimestamp": "1"}, range(1, 10)),
        ({"endingtimestamp": "1"}, range(1)),
    ],
)
def test_ranges(filled: ToyBroker, read_options: Options, given: dict[str, str], expected: range) -> None:
    assert bodies(read_options(topic="t", **given)) == [b"%d" % n for n in expected]


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
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


def test_an_mqtt_topic_nobody_published_to_is_empty(broker: ToyBroker, read_options: Options) -> None:
    assert bodies(read_options(mqttFilter="nobody/here")) == []
