"""The driver of `spark_latency`: one query in a tuned or a default session, until its input ends."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.latency_sink import AgeSink
from lightmq.spark import session
from lightmq.spark_session import ensure_java

MASTER = "local[2]"


def stock() -> Any:
    """A session with nothing but Spark's own defaults."""
    from pyspark.sql import SparkSession

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return SparkSession.builder.master(MASTER).appName("stock").getOrCreate()


def main(configuration: str, kind: str, server: str, folder: str, sink_options: str) -> None:
    """Start the query, report it, and end it when the input ends."""
    spark = session("tuned", master=MASTER) if configuration == "tuned" else stock()
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.readStream.format("rocketmq").option("nameServer", server)
    rows = reader.option("mqttFilter", "bench/+").option("columns", "body").load()
    if kind == "sink":
        spark.dataSource.register(AgeSink)
        writer = rows.writeStream.format("ages").option("path", folder)
    else:
        writer = rows.selectExpr("'reply/1' AS mqttTopic", "body").writeStream.format("rocketmq")
        writer = writer.option("nameServer", server).options(**json.loads(sink_options))
    query = writer.option("checkpointLocation", str(Path(folder, "checkpoint"))).start()
    query.processAllAvailable()
    print(json.dumps({"event": "ready"}), flush=True)
    for line in sys.stdin:
        if line.strip() == "progress":
            took: dict[str, list[int]] = {}
            for each in query.recentProgress:
                if each.numInputRows:
                    for name, value in dict(each.durationMs).items():
                        took.setdefault(name, []).append(value)
            middle = {name: sorted(values)[len(values) // 2] for name, values in took.items()}
            print(json.dumps({"event": "progress", "batches": len(query.recentProgress), **middle}), flush=True)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
