"""A driver on a cluster: one stream from the connector into the connector, then a batch that shows where tasks ran.

Writes JSON lines; each line on its standard input lets the stream catch up. It serves as a driver of the cluster
(`spark://`) and as a client of Spark Connect (`sc://`); neither registers the source.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightmq.spark import session
from tests.interop.spark_cluster import EXECUTORS


def places(batches: Iterator[Any]) -> Iterator[Any]:
    """The executor that read each batch of rows."""
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"place": [str(Path.cwd())] * batch.num_rows})


def main(url: str, server: str, topic: str, checkpoint: str) -> None:
    """Run until the input ends."""
    conf = {
        **EXECUTORS,
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.ui.enabled": "false",
    }
    spark = session("cluster", master=url, conf=None if url.startswith("sc://") else conf)
    options = {"nameServer": server, "mqttFilter": f"{topic}/+", "minPartitions": "2"}
    rows = spark.readStream.format("rocketmq").options(startingOffsets="earliest", **options).load()
    moved = rows.selectExpr(f"'moved/{topic}' AS mqttTopic", "body")
    writer = moved.writeStream.format("rocketmq").option("nameServer", server)
    query = writer.option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    print(json.dumps({"event": "ready"}), flush=True)
    for _ in sys.stdin:
        query.processAllAvailable()
        print(json.dumps({"event": "drained"}), flush=True)
    query.stop()
    read = spark.read.format("rocketmq").options(**options).load()
    found = {row.place for row in read.select("body").mapInArrow(places, "place string").distinct().collect()}
    written = spark.read.format("rocketmq").options(nameServer=server, mqttFilter=f"moved/{topic}").load()
    counts = written.selectExpr("count(body) AS rows", "count(DISTINCT body) AS distinct").first()
    print(json.dumps({"event": "read", "places": sorted(found), **counts.asDict()}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
