"""Columns, projections and nearest names."""

from __future__ import annotations

import pytest

from spark_connector.errors import OptionError
from spark_connector.options import schema
from spark_connector.options.read_write import parse_read, parse_write
from spark_connector.options.schema import KAFKA_COLUMNS, check_column, column_hint, option_hint, schema_ddl, translated
from spark_connector.writing.columns import sink_columns


def test_ddl_of_all_and_of_some() -> None:
    assert schema.schema_ddl(()).startswith("topic string, mqttTopic string")
    assert schema.schema_ddl(["BODY", "queueOffset"]) == "body binary, queueOffset bigint"
    with pytest.raises(OptionError, match="did you mean 'queueOffset'"):
        schema.schema_ddl(["queueOfset"])


def test_a_given_schema_is_checked() -> None:
    assert schema.check_projection([("body", "binary"), ("queueoffset", "bigint")]) == ("body", "queueOffset")
    with pytest.raises(OptionError, match="'body' is binary, not string"):
        schema.check_projection([("body", "string")])


def test_nothing_near_names_nothing() -> None:
    assert schema.nearest("zzzz", ["topic"]) == ""


def test_other_names_and_the_map_left_out() -> None:
    assert schema.schema_ddl(["BROKERNAME", "userProperties"]) == "brokerName string, userProperties map<string,string>"
    assert schema.check_projection([("tags", "string")]) == ("tags",)
    assert "properties" not in schema.schema_ddl((), properties=False)
    assert schema.schema_ddl(()).count(",") == schema.schema_ddl((), properties=False).count(",") + 2


KAFKA_DDL = ", ".join(f"{column.name} {column.type}" for column in KAFKA_COLUMNS)


def test_a_job_of_kafkas_source_keeps_its_options() -> None:
    parsed = parse_read(
        {
            "schema": "Kafka",
            "kafka.bootstrap.servers": "h:1,i:2",
            "kafka.group.id": "g",
            "subscribe": "a,b",
            "startingOffsets": '{"a":{"0":23,"1":-2},"b":{"0":-1}}',
            "endingOffsets": "latest",
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": "9",
            "minPartitions": "4",
            "fetchOffset.numRetries": "7",
            "fetchOffset.retryIntervalMs": "8",
            "kafkaConsumer.pollTimeoutMs": "10",
            "includeHeaders": "true",
        }
    )
    assert (parsed.name_server, parsed.consumer_group) == ((("h", 1), ("i", 2)), "g")
    assert (parsed.fetch_retries, parsed.fetch_retry_interval_ms, parsed.pull_timeout_ms) == (7, 8, 10)
    assert parsed.starting_offsets is not None
    assert {(one.topic, one.queue): at for one, at in parsed.starting_offsets.named.items()} == {
        ("a", 0): 23,
        ("a", 1): -2,
        ("b", 0): -1,
    }
    assert parse_read({"schema": "kafka", "assign": '{"a":[0,1]}'}).assign
    assert parse_read({"schema": "kafka", "subscribePattern": "a.*"}).topic_pattern
    assert parse_write({"schema": "kafka", "kafka.bootstrap.servers": "h:1", "topic": "t"}).topic == "t"


def test_without_the_option_nothing_is_translated() -> None:
    for options in ({"kafka.bootstrap.servers": "h:1"}, {"kafka.bootstrap.servers": "h:1", "schema": "rocketmq"}):
        assert {name: value for _, name, value in translated(options)} == options
    assert option_hint("topic") == ""


@pytest.mark.parametrize("first", ["nameserver", "kafka.bootstrap.servers"])
def test_an_address_under_both_names_is_refused(first: str) -> None:
    """Spark passes names in lower case: neither may silently take precedence."""
    both = {"nameserver": "h:1", "kafka.bootstrap.servers": "h:2"}
    options = {"schema": "kafka", "topic": "t", first: both.pop(first), **both}
    for parse in (parse_read, parse_write):
        with pytest.raises(OptionError, match=r"'nameServer' is given twice, as '.+' and as '.+'\.$"):
            parse(options)


def test_the_sink_s_headers_are_left_out_where_that_is_asked_for() -> None:
    fields = [("value", "binary"), ("headers", "array<struct<key:string,value:binary>>")]
    assert "headers" in sink_columns(fields, parse_write({"topic": "t", "includeHeaders": "true"})).parts
    assert "headers" in sink_columns(fields, parse_write({"topic": "t"})).parts
    assert sink_columns(fields, parse_write({"topic": "t", "includeHeaders": "false"})).parts == {"body": "value"}


def test_kafkas_columns() -> None:
    assert schema_ddl((), kafka=True) == KAFKA_DDL
    assert schema_ddl((), kafka=True, headers=True) == KAFKA_DDL + ", headers array<struct<key:string,value:binary>>"
    assert "headers" not in schema_ddl(())
    assert schema_ddl(("body",), headers=True) == "body binary, headers array<struct<key:string,value:binary>>"
    assert check_column("timestamptype", kafka=True) == "timestampType"


@pytest.mark.parametrize(
    ("name", "ours"),
    [("value", "body"), ("partition", "queueId"), ("offset", "queueOffset"), ("timestamp", "storeTimestamp")],
)
def test_a_column_of_kafkas_is_answered_with_ours(name: str, ours: str) -> None:
    assert ours in column_hint(name)
    with pytest.raises(OptionError, match=rf"'{ours}'.* 'schema' = kafka gives all of Kafka's columns\.$"):
        check_column(name)


def test_a_column_that_is_nobody_s() -> None:
    with pytest.raises(OptionError, match=r"unknown column 'zzz'\. Columns: topic"):
        check_column("zzz")


def test_what_the_sink_says_of_kafkas_columns() -> None:
    fields = [("value", "binary"), ("offset", "bigint")]
    with pytest.raises(OptionError, match=r"column 'offset': Kafka's source has it and no sink needs it: drop it\."):
        sink_columns(fields, parse_write({"topic": "t"}))
    everything = [(column.name, column.type) for column in KAFKA_COLUMNS]
    found = sink_columns(everything, parse_write({"topic": "t", "schema": "kafka"}))
    assert found.parts == {"key": "key", "body": "value", "queueId": "partition"}
