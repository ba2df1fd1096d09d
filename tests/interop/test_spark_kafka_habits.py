"""Jobs moved from Kafka's source and sink, with PySpark and a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from lightmq.spark_session import cause_of
from tests.interop.spark_scenario import Frames, numbers, run
from tests.interop.test_spark_keys import make_topic

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(240)]
HEADER = "named_struct('key', 'a', 'value', cast('{}' AS binary))"
HEADERS = f"array({HEADER.format(1)}, {HEADER.format(2)})"


def write(spark: Any, server: str, topic: str, rows: int = 40) -> None:
    """Written as for Kafka's sink, except for the format and the option `schema`."""
    frame = spark.range(0, rows, 1, 1).selectExpr(
        "cast(concat('k', id % 4) AS binary) AS key",
        "cast(id AS string) AS value",
        f"'{topic}' AS topic",
        "cast(id % 4 AS int) AS partition",
        f"if(id = 0, {HEADERS}, null) AS headers",
    )
    writer = frame.write.format("rocketmq").option("schema", "kafka").mode("append")
    writer.option("kafka.bootstrap.servers", server).save()


def test_a_job_moves_by_format_and_one_option(spark: Any, load: Frames, server: str, tmp_path: Path) -> None:
    make_topic(server, "kafka-moved")
    write(spark, server, "kafka-moved")
    options = {"kafka.bootstrap.servers": server, "schema": "kafka", "includeHeaders": "true"}
    frame = spark.read.format("rocketmq").options(subscribe="kafka-moved", **options).load()
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema.fields] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    rows = frame.orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset, int(bytes(row.value))) for row in rows] == [
        (queue, at, queue + 4 * at) for queue in range(4) for at in range(10)
    ]
    assert {(bytes(row.key), row.topic, row.timestampType) for row in rows} == {
        (b"k%d" % queue, "kafka-moved", 1) for queue in range(4)
    }
    assert [(pair.key, bytes(pair.value)) for pair in rows[0].headers] == [("a", b"1"), ("a", b"2")]
    assert all(row.headers is None for row in rows[1:])
    offsets = json.dumps({"kafka-moved": {"0": 8, "1": -2, "2": 10, "3": 10}})
    part = spark.read.format("rocketmq").options(subscribe="kafka-moved", startingOffsets=offsets, **options).load()
    assert sorted((row.partition, row.offset) for row in part.select("partition", "offset").collect()) == [
        (0, 8),
        (0, 9),
        *((1, at) for at in range(10)),
    ]
    assigned = spark.read.format("rocketmq").options(assign='{"kafka-moved":[1,3]}', **options).load()
    assert assigned.select("partition").distinct().count() == 2
    reader = spark.readStream.format("rocketmq").options(subscribe="kafka-moved", **options)
    stream = reader.option("startingOffsets", "earliest").load()
    make_topic(server, "kafka-moved-copy")
    query = run(stream, server, tmp_path, topic="kafka-moved-copy", schema="kafka")
    ends = {"kafka-moved": {str(queue): 10 for queue in range(4)}}
    for told in ("endOffset", "latestOffset"):
        shown = json.loads(query.lastProgress["sources"][0][told])
        assert {name: queues for name, queues in shown.items() if not name.startswith(":")} == ends
    copy = spark.read.format("rocketmq").options(subscribe="kafka-moved-copy", **options).load()
    columns = ("key", "value", "partition", "offset", "headers")
    assert (
        copy.select(*columns).orderBy("partition", "offset").collect()
        == frame.select(*columns).orderBy("partition", "offset").collect()
    )


def test_keys_that_are_no_text(spark: Any, server: str) -> None:
    frame = spark.range(1).selectExpr("X'FF00FE' AS key", "'v' AS value")
    frame.write.format("rocketmq").mode("append").options(nameServer=server, topic="kafka-bytes").save()
    reader = spark.read.format("rocketmq").options(nameServer=server, topic="kafka-bytes", schema="kafka")
    assert [bytes(row.key) for row in reader.load().collect()] == [b"\xff\x00\xfe"]


def test_what_a_stream_cannot_have_is_the_last_line_of_its_error(load: Frames, server: str) -> None:
    """Spark's own process would fail with an UnboundLocalError."""
    query = load(stream=True, topicPattern="kafka-moved.*", endingOffsets="latest").writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(60)
    assert cause_of(raised.value).startswith("spark_connector.errors.OptionError: the options 'endingOffsets'")


def test_headers_beside_our_own_columns(spark: Any, load: Frames, server: str) -> None:
    write(spark, server, "headed", 2)
    rows = load(topic="headed", includeHeaders="true").select("body", "headers").collect()
    found = {bytes(row.body): row.headers and [(pair.key, bytes(pair.value)) for pair in row.headers] for row in rows}
    assert found == {b"0": [("a", b"1"), ("a", b"2")], b"1": None}
    with pytest.raises(Exception, match="unknown column 'value': the payload is the column 'body' here"):
        load(topic="headed", columns="value")


def test_complete_mode_appends_every_result(spark: Any, load: Frames, server: str, tmp_path: Path) -> None:
    write(spark, server, "counted", 6)
    source = load(stream=True, topic="counted", startingOffsets="earliest", maxOffsetsPerTrigger="4")
    counts = source.groupBy().count().selectExpr("cast(count AS string) AS body")
    writer = counts.writeStream.outputMode("complete").format("rocketmq").options(nameServer=server, mqttTopic="done/1")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    found = numbers(load(mqttFilter="done/1"))
    assert len(found) >= 2
    assert found[-1] == 6


def test_a_row_that_is_too_large_is_named(spark: Any, server: str) -> None:
    rows = spark.range(3).selectExpr("concat('k', id) AS key", "if(id = 1, repeat('x', 5000000), 'y') AS value")
    with pytest.raises(Exception, match="column 'value' holds 5000000 bytes in the row with key 'k1'"):
        rows.write.format("rocketmq").mode("append").options(nameServer=server, topic="toolarge").save()
    rows = spark.range(3).selectExpr(
        "concat('k', id) AS key", "map('p', repeat('x', 40000)) AS properties", "'y' AS value"
    )
    with pytest.raises(Exception, match=r"column 'properties' holds 40001 bytes in the row with key 'k.'"):
        rows.write.format("rocketmq").mode("append").options(nameServer=server, topic="toolarge").save()


def test_a_time_beyond_the_last_message_is_refused(spark: Any, load: Frames, server: str) -> None:
    write(spark, server, "timed", 2)
    with pytest.raises(Exception, match="has no message at or after its time"):
        load(topic="timed", startingTimestamp="99999999999999").count()
    late = load(topic="timed", startingTimestamp="99999999999999", startingOffsetsByTimestampStrategy="latest")
    assert late.count() == 0
