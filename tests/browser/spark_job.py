"""A Spark driver as its user writes it: one query that counts by topic, one that fails when it is told to.

    python -m tests.browser.spark_job HOST:PORT CHECKPOINTS

Prints `running` once both queries have started; a line on standard input lets the second one fail; the end of the input
ends the session.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from lightmq.spark import report_queries, session

COUNTING, FAILING = "readings by topic", "alarms to the pager"
REASON = "the pager does not answer"


def main(server: str, checkpoints: str) -> None:
    """Run until nobody listens any more."""
    told = threading.Event()
    spark = session("plant", master="local[2]", conf={"spark.sql.shuffle.partitions": "1"})
    report_queries(spark, server)
    readings = (
        spark.readStream.format("rocketmq")
        .option("nameServer", server)
        .option("mqttFilter", "plant/#")
        .option("startingOffsets", "earliest")
        .load()
    )

    def page(rows: Any, batch: int) -> None:
        if told.is_set():
            raise RuntimeError(REASON)
        rows.count()

    counts = readings.groupBy("mqttTopic").count().writeStream.outputMode("complete").format("noop")
    for name, writer in ((COUNTING, counts), (FAILING, readings.writeStream.foreachBatch(page))):
        options = writer.queryName(name).trigger(processingTime="1 second")
        options.option("checkpointLocation", str(Path(checkpoints, name.split()[0]))).start()
    print("running", flush=True)
    sys.stdin.readline()
    told.set()
    sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
