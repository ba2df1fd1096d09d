"""Options of catalog tables: what Spark hands over, what the schema keeps, what a use gets back."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from spark_connector.decode.ddl import parse_columns
from spark_connector.errors import OptionError
from spark_connector.options.catalog_tables import keep_options, own_options, with_kept_options
from spark_connector.options.read_write import ReadOptions, WriteOptions, parse_read
from spark_connector.source import RocketMQDataSource

MADE = {
    "option.nameserver": "h:1",
    "nameserver": "h:1",
    "option.topic": "orders",
    "topic": "orders",
    "option.qos": "0",
    "qos": "0",
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
    assert own_options(MADE) == {"nameserver": "h:1", "topic": "orders", "qos": "0"}
    assert own_options({"topic": "t", "owner": "me"}) == {"topic": "t", "owner": "me"}


def test_the_schema_keeps_the_options_for_each_side() -> None:
    columns = StructType.fromJson(made().jsonValue())
    assert columns.fieldNames()[0] == "topic"
    reading = with_kept_options({"startingoffsets": "latest"}, columns, ReadOptions)
    assert reading == {"nameserver": "h:1", "topic": "orders", "startingoffsets": "latest"}
    assert with_kept_options({}, columns, WriteOptions) == {"nameserver": "h:1", "topic": "orders", "qos": "0"}
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
def test_options_of_a_use_win_under_each_of_their_names(given: dict[str, str], reads: tuple[str, tuple[str]]) -> None:
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


def test_a_table_without_options_is_told_what_it_needs() -> None:
    with pytest.raises(OptionError, match=r"set one of the options 'topic'.*: none is set"):
        RocketMQDataSource({"provider": "rocketmq", "owner": "root", "location": "file:/x", "a": "b"}).schema()


def test_a_table_with_a_list_of_columns_has_lost_its_options() -> None:
    with pytest.raises(OptionError, match="only when it is made without a list of columns"):
        RocketMQDataSource({}).reader(parse_columns("body binary"))


def test_metadata_of_the_column_stays() -> None:
    columns = parse_columns("body binary")
    columns.fields[0].metadata = {"comment": "payload"}
    kept = keep_options(columns, {"topic": "t"})
    assert kept.fields[0].metadata == {"comment": "payload", "rocketmq.options": '{"topic": "t"}'}
