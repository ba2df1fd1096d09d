"""What one micro-batch costs the driver before any task runs: ends of all queues, offsets to and from JSON, tasks.

A real `lightmq up` process with 10,000 queues over as many parent topics as needed, and one with 100,000 light queues
under one filter. The stream reader is driven as Spark does it (offsets as text both ways): a batch in which a few
queues have new messages, and one that finds nothing. CPU of this process and of the broker stand beside the wall time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import psutil
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from benchmarks.spark_read import check, lightmq_server
from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from spark_connector.options.read_write import parse_read
from spark_connector.reading.stream_reader import RocketMQStreamReader

SCHEMA = StructType([StructField("body", BinaryType())])
QUEUES_PER_TOPIC = 4
"""The broker's default."""
BATCH_ENTRIES = 2_000
GROWN = 100
"""Messages between two batches."""


def publish(server: str, topics: list[bytes]) -> None:
    """One message per MQTT topic."""
    with BlockingConnection.dial(server, 60_000) as connection:
        for begin in range(0, len(topics), BATCH_ENTRIES):
            raw = [image.encode_mqtt_image(one, b"x", 1, 0, b"b") for one in topics[begin : begin + BATCH_ENTRIES]]
            check(connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(raw))))


def plan(reader: RocketMQStreamReader, start: str) -> str:
    """One batch as Spark makes it: the end, the report, the tasks. Returns the end as text."""
    end = json.dumps(reader.latestOffset(json.loads(start), ReadAllAvailable()))
    if end != start:
        reader.partitions(json.loads(start), json.loads(end))
        json.dumps(reader.reportLatestOffset())
    return end


def measure(server: str, broker: psutil.Process, mqtt_filter: str, topics: list[bytes], rounds: int) -> str:
    """Milliseconds per batch, with new messages and without."""
    publish(server, topics)
    options = {"nameServer": server, "mqttFilter": mqtt_filter, "longPollMs": "0", "startingOffsets": "latest"}
    reader = RocketMQStreamReader(SCHEMA, parse_read(options))
    start = plan(reader, json.dumps(reader.initialOffset()))
    cells = []
    for grown in (GROWN, 0):
        walls: list[float] = []
        own, its = time.process_time(), sum(broker.cpu_times()[:2])
        for number in range(rounds):
            publish(server, topics[number * grown : (number + 1) * grown])
            begun = time.perf_counter()
            start = plan(reader, start)
            walls.append((time.perf_counter() - begun) * 1e3)
        mine = (time.process_time() - own) / rounds * 1e3
        brokers = (sum(broker.cpu_times()[:2]) - its) / rounds * 1e3
        cells.append(f"{statistics.median(walls):>9.1f} {max(walls):>7.1f} {mine:>8.1f} {brokers:>8.1f}")
    return f"{len(start):>10,} {' '.join(cells)}"


def main() -> int:
    """Two servers, one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks planning")
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--light", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    cases: list[tuple[str, str, Any]] = [
        (f"{options.queues:,} queues", "+/x", lambda n: b"t%d/x" % n),
        (f"{options.light:,} light queues", "plant/#", lambda n: b"plant/%d" % n),
    ]
    lines = []
    for (name, mqtt_filter, topic), count in zip(
        cases, (options.queues // QUEUES_PER_TOPIC, options.light), strict=True
    ):
        with lightmq_server() as (server, broker_id):
            topics = [topic(number) for number in range(count)]
            cells = measure(server, psutil.Process(broker_id), mqtt_filter, topics, options.rounds)
            lines.append(f"{name:22} {cells}")
    heads = f"{'ms':>9} {'worst':>7} {'driver':>8} {'broker':>8}"
    print(f"{'':22} {'offset':>10} {'new messages: CPU ms per batch':>35} {'nothing new: CPU ms per batch':>35}")
    print(f"{'one batch over':22} {'bytes':>10} {heads} {heads}")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
