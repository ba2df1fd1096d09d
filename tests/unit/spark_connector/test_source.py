"""The door: names, schema, readers and writers, discovery, and what importing costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

import pyspark_rocketmq
import spark_connector
from spark_connector.errors import OptionError
from spark_connector.source import RocketMQDataSource
from tests.unit.spark_connector.toy_broker import ToyBroker

SCHEMA = StructType([StructField("body", BinaryType())])


def test_discovery_finds_it() -> None:
    assert issubclass(pyspark_rocketmq.DefaultSource, DataSource)
    assert pyspark_rocketmq.DefaultSource.name() == "rocketmq"


def test_discovery_never_raises() -> None:
    hidden = "import sys; sys.modules['pyspark.sql.datasource'] = None;"
    code = f"{hidden} import pyspark_rocketmq as package; print(hasattr(package, 'DefaultSource'))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "False"


def test_planning_needs_no_heavy_library() -> None:
    code = (
        "import sys, spark_connector, spark_connector.options.read_write;"
        "import spark_connector.reading.planner, spark_connector.reading.stream_reader;"
        "print([name for name in ('pyarrow', 'numpy', 'pandas', 'runtime') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_schema_and_parts(broker: ToyBroker) -> None:
    source = RocketMQDataSource({"topic": "t", "columns": "body"})
    assert source.schema() == "body binary"
    assert type(source.reader(SCHEMA)).__name__ == "RocketMQBatchReader"
    assert type(source.streamReader(SCHEMA)).__name__ == "RocketMQStreamReader"
    sink = RocketMQDataSource({"topic": "t", "nameServer": "{}:{}".format(*broker.address)})
    assert type(sink.writer(SCHEMA, False)).__name__ == "RocketMQBatchWriter"
    assert type(sink.streamWriter(SCHEMA, False)).__name__ == "RocketMQStreamWriter"
    with pytest.raises(OptionError, match="did you mean 'topic'"):
        RocketMQDataSource({"topik": "t"}).schema()


def test_a_stream_that_cannot_be_read_says_so_at_its_first_use() -> None:
    """Spark's process hides what the making of a reader raises behind an UnboundLocalError of its own."""
    reader = RocketMQDataSource({"topic": "t", "endingOffsets": "latest"}).streamReader(SCHEMA)
    uses: list[Callable[[], object]] = [
        reader.getDefaultReadLimit, reader.prepareForTriggerAvailableNow, reader.initialOffset,
        lambda: reader.latestOffset({}, ReadAllAvailable()), lambda: reader.partitions({}, {}),
        lambda: reader.read(InputPartition(0)),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(OptionError, match="a stream has no end"):
            use()


def test_a_write_without_any_option_is_refused() -> None:
    """It may be CREATE TABLE ... AS SELECT, whose options Spark keeps to itself."""
    with pytest.raises(OptionError, match=r"no option says where the rows go.* then INSERT INTO it\.$"):
        RocketMQDataSource({}).writer(SCHEMA, False)


def test_register() -> None:
    registered: list[type] = []

    class Session:
        class dataSource:  # noqa: N801
            register = staticmethod(registered.append)

    spark_connector.register(Session())
    assert registered == [RocketMQDataSource]
