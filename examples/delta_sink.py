"""Readings into a Delta table, exactly once, with the Python package `deltalake` and no jar.

`foreachBatch` may run again for a batch whose end Spark could not note. Each commit to the table therefore carries
(application id, batch id) in Delta's own transaction log, and a batch that the table has is left out. Batch ids begin
at 0 with every checkpoint, so the application id belongs to the checkpoint, in which a file keeps it. A query with a
new checkpoint reads from the beginning and appends all of it, also what the table has by way of another checkpoint.

    python examples/delta_sink.py [--once] [--server HOST:PORT] [--table FOLDER] [--checkpoint FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

APPLICATION_FILE = "delta-application"


def application_of(checkpoint: str) -> str:
    """Return the application id that belongs to a checkpoint; made with its first use."""
    path = Path(checkpoint) / APPLICATION_FILE
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f".{APPLICATION_FILE}.{uuid.uuid4()}")
        made.write_text(f"lightmq-readings-{uuid.uuid4()}")
        made.replace(path)  # whole or not at all: half an id would be another one
    return path.read_text()


def append_once(table: str, application: str) -> Callable[[DataFrame, int], None]:
    """Return what `foreachBatch` calls: append the batch unless the table has it."""

    def write(frame: DataFrame, batch: int) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        if DeltaTable.is_deltatable(table):
            last = DeltaTable(table).transaction_version(application)
            if last is not None and last >= batch:
                return
        marks = CommitProperties(app_transactions=[Transaction(application, batch)])
        # The batch passes through the driver as Arrow; bound it with maxOffsetsPerTrigger.
        write_deltalake(table, frame.toArrow(), mode="append", commit_properties=marks)

    return write


def start(spark: SparkSession, server: str, table: str, checkpoint: str, *, once: bool) -> StreamingQuery:
    """Start the query."""
    rows = (
        spark.readStream.format("rocketmq")
        .option("nameServer", server)
        .option("mqttFilter", "plant/+/temp")
        .option("startingOffsets", "earliest")
        .option("columns", "mqttTopic,queueId,queueOffset,storeTimestamp,body")
        .option("maxOffsetsPerTrigger", "200000")
        .load()
    )
    readings = rows.selectExpr(
        "split(mqttTopic, '/')[1] AS device",
        "CAST(get_json_object(CAST(body AS STRING), '$.celsius') AS DOUBLE) AS celsius",
        "storeTimestamp",
        "queueId",
        "queueOffset",
    )
    write = append_once(table, application_of(checkpoint))
    writer = readings.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if once else writer).start()


def main() -> None:
    """Run until stopped."""
    from lightmq.spark import run_forever, session

    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="127.0.0.1:9876")
    parser.add_argument("--table", default="out/readings")
    parser.add_argument("--checkpoint", default="checkpoints/delta-sink")
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    try:
        from deltalake import DeltaTable
    except ImportError:
        sys.exit(f"deltalake is not installed; install it with: {sys.executable} -m pip install deltalake")
    spark = session("delta-sink")
    run_forever(lambda: start(spark, options.server, options.table, options.checkpoint, once=options.once))
    print("rows in the table:", DeltaTable(options.table).to_pyarrow_table().num_rows)


if __name__ == "__main__":
    main()
