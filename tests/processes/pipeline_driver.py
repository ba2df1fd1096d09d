"""The Spark program of the kill test: rows of one broker, shuffled, become commands of another one, exactly once.

Runs as a process of its own, which the test kills with everything below it; started again with the same arguments it
continues from its checkpoint. Ends with status 1 when its query fails, with 0 on a command on its standard input.
"""

from __future__ import annotations

import argparse
import sys
import threading

from lightmq.spark import session

OUTPUTS = 4
"""Topics the rows are spread over."""
ROW_BYTES = 600
"""Bodies are filled up to this, so that a batch is committed in several groups."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", required=True)
    parser.add_argument("--sink", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--master", required=True)
    options = parser.parse_args()
    spark = session("pipeline", master=options.master, conf={"spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("ERROR")
    patient = {"fetchRetries": "300", "fetchRetryIntervalMs": "200"}
    rows = (
        spark.readStream.format("rocketmq")
        .options(nameServer=options.source, mqttFilter="in/#", startingOffsets="earliest", **patient)
        .option("maxOffsetsPerTrigger", "2000")
        .load()
    )
    commands = rows.selectExpr(
        f"concat('out/', cast(body AS string) % {OUTPUTS}) AS mqttTopic",
        f"rpad(cast(body AS string), {ROW_BYTES}, ' ') AS body",
        "2 AS qos",
    ).repartition(2)
    sink = commands.writeStream.format("rocketmq").option("nameServer", options.sink)
    query = sink.option("checkpointLocation", options.checkpoint).start()

    def stop_when_told() -> None:
        sys.stdin.read()
        query.stop()

    threading.Thread(target=stop_when_told, daemon=True).start()
    query.awaitTermination()
    return 0


if __name__ == "__main__":
    sys.exit(main())
