"""Rows per second and CPU per row of Spark's sink, against a real `lightmq up` process.

Rows with every column a sink knows (64 MQTT topics, key, tag, two properties, QoS, 100-byte body) are made by the JVM
and written with `df.write`: staged and committed (exactly once), sent straight away (at least once), with the body
alone, and into a batch topic. CPU is read from /proc and separated as in `spark_read`; each variant runs twice, the
second run is reported. The cost of making the rows is measured with the noop sink and printed first, followed by
encoding alone, in this process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from benchmarks.spark_read import Cpu, check, cpu_now, lightmq_server
from lightmq.spark import session
from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from spark_connector.options.read_write import parse_write
from spark_connector.writing.columns import sink_columns
from spark_connector.writing.writer import encoded_rows

TOPICS = 64
ROWS_PER_BATCH = 10_000
"""What Spark hands to a writer at once."""
BODY = "rpad(cast(id AS string), 100, 'x')"
ALL = (
    f"concat('bench/', id % {TOPICS}) AS mqttTopic", f"{BODY} AS body", "concat('k', id % 1000) AS key", "'t' AS tag",
    "map('unit', 'celsius', 'n', cast(id AS string)) AS properties", "cast(id % 3 AS int) AS qos", "false AS retain",
)  # fmt: skip
SHORT = (f"concat('bench/', id % {TOPICS}) AS mqttTopic", f"{BODY} AS body")
PLAIN = (f"{BODY} AS body", *ALL[2:5])
AT_LEAST_ONCE = {"delivery": "at-least-once"}
VARIANTS: dict[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "noop, all columns": (ALL, {"format": "noop"}),
    "exactly once, all columns": (ALL, {}),
    "at least once, all columns": (ALL, AT_LEAST_ONCE),
    "exactly once, topic and body": (SHORT, {}),
    "at least once, topic and body": (SHORT, AT_LEAST_ONCE),
    "exactly once, batch topic, lz4": (PLAIN, {"topic": "batches", "batchCodec": "lz4"}),
}


def write(spark: Any, server: str, rows: int, columns: tuple[str, ...], options: Mapping[str, str]) -> float:
    """Write the rows in two tasks; seconds."""
    frame = spark.range(0, rows, 1, 2).selectExpr(*columns)
    begun = time.perf_counter()
    if options.get("format") == "noop":
        frame.write.format("noop").mode("append").save()
    else:
        frame.write.format("rocketmq").mode("append").options(nameServer=server, **options).save()
    return time.perf_counter() - begun


def encode_us(spark: Any, columns: tuple[str, ...], options: Mapping[str, str]) -> float:
    """CPU microseconds per row of encoding alone, in batches as Spark makes them."""
    if options.get("format") == "noop":
        return 0.0
    frame = spark.range(0, 10 * ROWS_PER_BATCH, 1, 1).selectExpr(*columns)
    batches = frame.toArrow().to_batches(max_chunksize=ROWS_PER_BATCH)
    schema = pa.schema(batches[0].schema)
    parsed = parse_write(options)
    chosen = sink_columns([(field.name, field.dataType.simpleString()) for field in frame.schema.fields], parsed)
    begun = time.process_time()
    count = 0
    for batch in batches:
        count += len(encoded_rows(chosen.pick(batch), batch.num_rows, parsed, labels=chosen.parts))
    assert count, schema
    return (time.process_time() - begun) / (10 * ROWS_PER_BATCH) * 1e6


def measure(
    spark: Any, server: str, broker_id: int, rows: int, columns: tuple[str, ...], options: Mapping[str, str]
) -> str:
    """Run one variant twice; the figures of the second run as cells of the table."""
    used, seconds = Cpu(), 0.0
    for _ in range(2):
        before = cpu_now(broker_id)
        seconds = write(spark, server, rows, columns, options)
        used = cpu_now(broker_id) - before
    jvm, python, broker = (part / rows * 1e6 for part in (used.jvm, used.python, used.broker))
    cells = f"{rows:>10,} {seconds:>6.1f} {rows / seconds:>10,.0f} {jvm:>7.2f} {python:>7.2f} {broker:>7.2f}"
    return f"{cells} {broker / jvm:>10.2f} {encode_us(spark, columns, options):>7.2f}"


def make_batch_topic(server: str) -> None:
    """The topic that takes batches."""
    fields = {"topic": "batches", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicSysFlag": "0"}
    fields |= {"topicFilterType": "SINGLE_TAG", "order": "false", "attributes": "+queue.type=BatchCQ"}
    with BlockingConnection.dial(server) as connection:
        check(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)))


def main() -> int:
    """Write, print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark_write")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="variants whose name contains this")
    options = parser.parse_args()
    with lightmq_server() as (server, broker_id):
        make_batch_topic(server)
        spark = session("bench")
        spark.sparkContext.setLogLevel("ERROR")
        print(f"{'':30} {'one write of':>17} {'':>10}  CPU us/row: {'':>10} {'ratio':>10} {'alone':>7}")
        heads = f"{'rows':>10} {'s':>6} {'rows/s':>10} {'JVM':>7} {'Python':>7} {'broker':>7}"
        print(f"{'variant':30} {heads} {'broker/JVM':>10} {'encode':>7}")
        for name, (columns, given) in VARIANTS.items():
            if options.only in name:
                print(f"{name:30} {measure(spark, server, broker_id, options.rows, columns, given)}", flush=True)
        spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
