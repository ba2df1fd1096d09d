"""The Spark side of the demo, a driver process of its own: three streaming queries over one MQTT filter.

`ledger` writes the identity of every reading to Parquet (what the accounting counts), `windows` aggregates in event
time with a watermark, `commands` applies the anomaly rule per sensor and writes commands back with `writeStream`.

Invariant: all progress lives in the checkpoints below `--out`; killed at any point and started again with the same
arguments it goes on without losing or repeating a row. Speaks JSON lines on standard output; reads `drain` and `stop`
from standard input.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.streaming import StreamingQuery

from lightmq.demo.anomaly_processor import COMMAND_SCHEMA, AnomalyProcessor
from lightmq.demo.first_turn import FirstTurn

READING_SCHEMA = "id string, sensor string, value double, time_ms long, sent_ms long"
REPORT_INTERVAL_S = 0.5
FILTER = "machines/+/+"


def say(**event: object) -> None:
    """Tell the demo something, one JSON line."""
    print(json.dumps(event), flush=True)


def readings(spark: SparkSession, nameserver: str) -> DataFrame:
    """Every reading of every machine, live and historical; commands pass the same filter and are left out."""
    rows = (
        spark.readStream.format("rocketmq")
        .option("nameServer", nameserver)
        .option("mqttFilter", FILTER)
        .option("startingOffsets", "earliest")
        .option("columns", "mqttTopic,queueId,queueOffset,body")
        .load()
        .where(~F.col("mqttTopic").endswith("/commands"))
    )
    parsed = F.from_json(F.col("body").cast("string"), READING_SCHEMA).alias("reading")
    return rows.select("mqttTopic", "queueId", "queueOffset", parsed).select(
        "mqttTopic", "queueId", "queueOffset", "reading.*", F.timestamp_millis("reading.time_ms").alias("event_time")
    )


def start_queries(spark: SparkSession, options: argparse.Namespace) -> list[StreamingQuery]:
    """Start the three queries, each when the one before has made its first turn (see `first_turn`).

    Each has its checkpoint below the output folder.
    """
    out = Path(options.out).resolve()
    source = readings(spark, options.nameserver)

    def checkpointed(writer: Any, name: str) -> Any:
        located = writer.queryName(name).option("checkpointLocation", str(out / "checkpoints" / name))
        return located.trigger(processingTime=options.trigger)

    ledger = source.select("id", "sensor", "value", "queueId", "queueOffset", "sent_ms", "time_ms")
    windows = (
        source.withWatermark("event_time", options.watermark)
        .groupBy(F.window("event_time", options.window), "sensor")
        .agg(
            F.avg("value").alias("mean"),
            F.min("value").alias("low"),
            F.max("value").alias("high"),
            F.count("*").alias("readings"),
        )
        .select(F.col("window.start").alias("start"), "sensor", "mean", "low", "high", "readings")
    )
    found = source.groupBy("sensor").transformWithState(
        statefulProcessor=AnomalyProcessor(), outputStructType=COMMAND_SCHEMA, outputMode="Append", timeMode="None"
    )
    identity = F.concat(F.lit("cmd-"), F.col("reading"))
    body = F.to_json(F.struct(identity.alias("id"), "sensor", "reading", "value", "deviation", "sent_ms", "time_ms"))
    topic = F.lit(f"machines/{options.host}/commands")
    commands = found.select(topic.alias("mqttTopic"), F.col("sensor").alias("key"), body.cast("binary").alias("body"))
    sink = commands.writeStream.format("rocketmq").option("nameServer", options.nameserver).option("qos", "1")
    parquet = {name: frame.writeStream.format("parquet") for name, frame in (("ledger", ledger), ("windows", windows))}
    writers = {name: writer.option("path", str(out / name)) for name, writer in parquet.items()} | {"commands": sink}
    first_turn = FirstTurn()
    spark.streams.addListener(first_turn)
    started = []
    for name, writer in writers.items():
        started.append(checkpointed(writer, name).start())
        first_turn.wait(started[-1])
    spark.streams.removeListener(first_turn)
    return started


def report(queries: Sequence[StreamingQuery], seen: dict[str, tuple[int, int]]) -> None:
    """Say what each query did since the last report; `seen` keeps (last batch, rows) by query."""
    for query in queries:
        failure = query.exception()
        if failure is not None:
            say(event="failed", query=query.name, error=str(failure)[:2000])
        for progress in query.recentProgress:
            batch, rows = seen.get(query.name, (-1, 0))
            if progress.batchId <= batch:
                continue
            rows += progress.numInputRows
            seen[query.name] = (progress.batchId, rows)
            duration_ms = dict(progress.durationMs).get("triggerExecution", 0)
            say(
                event="batch",
                query=query.name,
                batch=progress.batchId,
                rows=progress.numInputRows,
                total=rows,
                duration_ms=duration_ms,
            )


def serve(queries: Sequence[StreamingQuery]) -> None:
    """Report until told to stop; `drain` waits until everything stored so far is processed."""
    orders: Queue[str] = Queue()

    def read_orders() -> None:
        for line in sys.stdin:
            orders.put(line.strip())
        orders.put("stop")

    threading.Thread(target=read_orders, daemon=True).start()
    seen: dict[str, tuple[int, int]] = {}
    while True:
        report(queries, seen)
        try:
            order = orders.get(timeout=REPORT_INTERVAL_S)
        except Empty:
            continue
        if order == "drain":
            for query in queries:
                query.processAllAvailable()
            report(queries, seen)
            say(event="drained")
        elif order == "stop":
            for query in queries:
                query.stop()
            say(event="stopped")
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the driver."""
    parser = argparse.ArgumentParser(prog="python -m lightmq.demo.query")
    parser.add_argument("--nameserver", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--window", default="5 seconds")
    parser.add_argument("--watermark", default="2 seconds")
    parser.add_argument("--trigger", default="500 milliseconds")
    options = parser.parse_args(arguments)
    from lightmq.spark import session

    spark = session("lightmq-demo")
    spark.sparkContext.setLogLevel("ERROR")
    queries = start_queries(spark, options)
    say(event="ready", version=spark.version)
    serve(queries)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
