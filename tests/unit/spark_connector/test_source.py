"""The data source: names, schema, readers and writers, discovery, and the cost of importing it."""

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
from spark_connector.decode.ddl import parse_columns
from spark_connector.errors import OptionError
from spark_connector.options.read_write import ReadOptions, WriteOptions, parse_read
from spark_connector.source import RocketMQDataSource, keep_options, new_enough, own_options, with_kept_options
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


def test_a_stream_that_cannot_be_read_fails_at_its_first_use() -> None:
    """Spark's process hides an error from the creation of a reader behind an UnboundLocalError of its own."""
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
    with pytest.raises(OptionError, match=r"no option names where the rows go.* then INSERT INTO it\.$"):
        RocketMQDataSource({}).writer(SCHEMA, False)


def test_register() -> None:
    registered: list[type] = []

    class Session:
        class dataSource:  # noqa: N801
            register = staticmethod(registered.append)

    spark_connector.register(Session())
    assert registered == [RocketMQDataSource]


MADE = {
    "option.nameserver": "h:1",
    "nameserver": "h:1",
    "option.topic": "orders",
    "topic": "orders",
    "option.delayms": "5",
    "delayms": "5",
    "provider": "rocketmq",
    "owner": "root",
    "comment": "all orders",
    "a.b": "c",
}


def made(**more: str) -> StructType:
    """The schema of a table made with these options beside MADE."""
    both = more | {f"option.{name}": value for name, value in more.items()}
    found = RocketMQDataSource(MADE | both).schema()
    assert isinstance(found, StructType)
    return found


def test_a_table_s_options_are_those_with_a_twin() -> None:
    assert own_options(MADE) == {"nameserver": "h:1", "topic": "orders", "delayms": "5"}
    assert own_options({"topic": "t", "owner": "me"}) == {"topic": "t", "owner": "me"}


def test_the_schema_keeps_the_options_for_each_side() -> None:
    columns = StructType.fromJson(made().jsonValue())
    assert columns.fieldNames()[0] == "topic"
    reading = with_kept_options({"startingoffsets": "latest"}, columns, ReadOptions)
    assert reading == {"nameserver": "h:1", "topic": "orders", "startingoffsets": "latest"}
    assert with_kept_options({}, columns, WriteOptions) == {"nameserver": "h:1", "topic": "orders", "delayms": "5"}
    assert with_kept_options({"nameServer": "other:2"}, columns, ReadOptions)["nameServer"] == "other:2"
    assert "nameserver" not in with_kept_options({"nameServer": "other:2"}, columns, ReadOptions)


@pytest.mark.parametrize(
    ("given", "reads"),
    [
        ({"subscribe": "other"}, ("other", ())),
        ({"mqttFilter": "a/+"}, ("", ("a/+",))),
        ({"namesrvaddr": "i:2"}, ("orders", ())),
        ({"kafka.bootstrap.servers": "i:2", "schema": "kafka"}, ("orders", ())),
    ],
)
def test_options_of_a_use_take_precedence_under_each_name(given: dict[str, str], reads: tuple[str, tuple[str]]) -> None:
    columns = StructType.fromJson(made().jsonValue())
    parsed = parse_read(with_kept_options(given, columns, ReadOptions))
    assert (",".join(parsed.topic), parsed.mqtt_filter) == reads
    assert parsed.name_server == (("h", 1),) if "i:2" not in given.values() else (("i", 2),)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"topik": "x"}, "unknown option 'topik'; did you mean 'topic'"),
        ({"qos": "7"}, "option 'qos' = '7'"),
        ({"secretkey": "s", "accesskey": "a"}, "would be readable in the catalog"),
        ({"sinkid": "s"}, r"option 'sinkId' does nothing in a table: .* give it to \.writeStream"),
    ],
)
def test_wrong_options_of_a_table_are_refused_when_it_is_made(more: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        made(**more)


def test_a_prefix_alone_opens_nothing() -> None:
    """Only Spark's own table properties are left out, and only where a table is made."""
    for wrong in ({"option.topic": "t"}, {"topic": "t", "provider": "rocketmq"}, {"topic": "t", "comment": "x"}):
        with pytest.raises(OptionError, match="unknown option"):
            RocketMQDataSource(wrong).schema()


def test_a_table_without_options_is_refused_with_what_it_needs() -> None:
    with pytest.raises(OptionError, match=r"set one of the options 'topic'.*: none is set"):
        RocketMQDataSource({"provider": "rocketmq", "owner": "root", "location": "file:/x", "a": "b"}).schema()


def test_a_table_with_a_list_of_columns_has_lost_its_options() -> None:
    with pytest.raises(OptionError, match="only when it is made without a list of columns"):
        RocketMQDataSource({}).reader(parse_columns("body binary"))


def test_a_table_of_an_earlier_release_with_a_sink_can_be_inserted_into() -> None:
    """And a frame that was read from it has no sink of the table's name; one that is given is kept."""
    columns = parse_columns("body binary")
    columns.fields[0].metadata = {"rocketmq.options": '{"sinkid": "s", "topic": "t", "delayMs": "5"}'}
    assert with_kept_options({}, columns, WriteOptions) == {"topic": "t", "delayMs": "5"}
    assert with_kept_options({"sinkId": "mine"}, columns, WriteOptions)["sinkId"] == "mine"


def test_metadata_of_the_column_stays() -> None:
    columns = parse_columns("body binary")
    columns.fields[0].metadata = {"comment": "payload"}
    kept = keep_options(columns, {"topic": "t"})
    assert kept.fields[0].metadata == {"comment": "payload", "rocketmq.options": '{"topic": "t"}'}


def test_a_spark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, whatever a release lacks; what is missing for another reason stays what it is."""
    monkeypatch.setattr("pyspark.__version__", "4.1.1")
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delitem(sys.modules, "spark_connector.reading.stream_reader", raising=False)
    source = RocketMQDataSource({"topic": "t"})
    with pytest.raises(
        OptionError, match=r"needs Spark 4\.2 or newer, this is Spark 4\.1\.1: it has no pyspark\.sql\."
    ):
        source.streamReader(StructType([]))
    with pytest.raises(ImportError, match="no module"), new_enough():
        raise ImportError("no module", name="elsewhere") from None
