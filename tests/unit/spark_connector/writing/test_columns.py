"""Columns of a DataFrame become parts of a message."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_connector.errors import OptionError
from spark_connector.options.read_write import parse_write
from spark_connector.options.schema import COLUMNS
from spark_connector.writing.columns import sink_columns
from spark_connector.writing.row_encoder import Defaults, encode_rows


def test_kafka_like_and_own_names() -> None:
    found = sink_columns([("Value", "string"), ("tags", "string"), ("mqttTopic", "string")], parse_write({}))
    assert found.parts == {"body": "Value", "tag": "tags", "mqttTopic": "mqttTopic"}


def test_rows_of_the_source_can_be_written_back() -> None:
    found = sink_columns([(one.name, one.type) for one in COLUMNS], parse_write({}))
    assert found.parts["retain"] == "retained"
    assert (found.parts["queueId"], found.parts["broker"]) == ("queueId", "broker")
    assert found.parts["traceparent"] == "traceparent"
    assert "queueOffset" not in found.parts.values()


def test_a_queue_number_under_each_of_its_names() -> None:
    options = parse_write({"topic": "t"})
    found = sink_columns([("body", "binary"), ("partition", "int"), ("broker", "string")], options)
    assert found.queue_column == "partition"
    assert found.parts == {"body": "body", "queueId": "partition", "broker": "broker"}
    without = sink_columns([("body", "binary"), ("broker", "string")], options)
    assert without.parts == {"body": "body"}


def test_an_option_takes_precedence_over_the_columns() -> None:
    found = sink_columns([("body", "binary"), ("topic", "string")], parse_write({"mqttTopic": "a/b"}))
    batch = pa.record_batch({"body": pa.array([b"x", b"y"]), "topic": pa.array(["t", "t"])})
    assert {name: column.to_pylist() for name, column in found.pick(batch).items()} == {
        "body": [b"x", b"y"],
        "mqttTopic": ["a/b", "a/b"],
    }


def test_a_content_type_column_takes_precedence_over_the_option() -> None:
    options = parse_write({"topic": "t", "contentType": "text/plain"})
    batch = pa.record_batch({"body": pa.array([b"x"]), "contentType": pa.array([None], pa.string())})
    without = sink_columns([("body", "binary")], options)
    assert without.pick(batch)["contentType"].to_pylist() == ["text/plain"]
    with_column = sink_columns([("body", "binary"), ("contentType", "string")], options)
    assert with_column.pick(batch)["contentType"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("fields", "options", "says"),
    [
        ([("boddy", "binary")], {}, "did you mean 'body'"),
        ([("key", "string")], {"topic": "t"}, "needs a column 'body'"),
        ([("body", "int")], {"topic": "t"}, "'body' is int"),
        ([("body", "binary")], {}, "where should the rows go"),
        ([("body", "binary"), ("value", "binary")], {"topic": "t"}, "keep one"),
        ([("body", "binary")], {"topic": "a/b"}, "mqttTopic"),
        ([("body", "binary")], {"mqttTopic": "$SYS/broker/x"}, "topics that begin with \\$ are the server's own"),
        ([("body", "binary")], {"mqttTopic": "a/+"}, "no wildcard"),
        ([("body", "binary"), ("delay", "string")], {"topic": "t"}, "'delay' is string"),
        ([("body", "binary"), ("queueId", "string")], {"topic": "t"}, "'queueId' is string"),
        ([("body", "binary"), ("queueId", "int"), ("partition", "int")], {"topic": "t"}, "keep one"),
        (
            [("body", "binary"), ("delay", "int")],
            {"topic": "t", "batchCodec": "lz4"},
            "'delay' is not for batch topics",
        ),
    ],
)
def test_what_does_not_fit(fields: list[tuple[str, str]], options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        sink_columns(fields, parse_write(options))


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "TBW102", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_x", "BenchmarkTest"]
)
def test_topics_of_rocketmqs_own_are_not_written_to(topic: str) -> None:
    """Named by the option, or by a row."""
    with pytest.raises(OptionError, match=f"option 'topic': '{topic}' is a topic of RocketMQ's own"):
        sink_columns([("body", "string")], parse_write({"topic": topic}))
    columns = {"body": pa.array([b"x"]), "topic": pa.array([topic])}
    with pytest.raises(OptionError, match=f"topic '{topic}' is a topic of RocketMQ's own"):
        encode_rows(columns, 1, Defaults(1, False, 0))
