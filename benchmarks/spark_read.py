"""Rows per second and CPU per row of one Spark micro-batch over a backlog, against a real `lightmq up` process.

The backlog is written through APPEND_MANY (100-byte payload, 64 MQTT topics below one parent), then read by a stream
with `availableNow` into the noop sink in one micro-batch: all columns, then fewer, without a filter, from a batch
topic. CPU is read from /proc and separated: the JVM, Python (the driver and its workers: fetch, check, decode), the
broker. Each variant runs twice, the second run is reported: the first one includes starting workers and warming the
JVM. Decoding alone of the same records, in this process, is printed beside it: the rest of Python's share is fetching
and Spark's own Arrow stream.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql.types import StructType, _parse_datatype_string

from lightmq.spark import session
from remoting.client.admin import topic_fields
from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from spark_connector.columns.arrow import arrow_schema
from spark_connector.columns.batches import decode_range
from spark_connector.options.read_write import parse_read
from spark_connector.options.schema import schema_ddl
from spark_connector.queues import QueueRange
from spark_connector.reading.bounds import BoundsWatch
from spark_connector.reading.selection import select
from spark_connector.reading.task import RangeFetcher
from spark_connector.writing.row_encoder import encode_batches

BATCH_TOPIC = "bench-batches"
BATCH_ENTRIES = 2_000
TOPICS = 64
IN_FLIGHT_MAX = 4
DECODE_ROWS_MAX = 500_000
BATCH_ROWS = 4_096
FILTERED = {"mqttFilter": "bench/+"}
VARIANTS: dict[str, dict[str, str]] = {
    "all columns": FILTERED,
    "without map": {**FILTERED, "includeProperties": "false"},
    "offset and body": {**FILTERED, "columns": "queueOffset,body"},
    "body": {**FILTERED, "columns": "body"},
    "all, no filter": {"topic": "bench"},
    "all, batch topic": {"topic": BATCH_TOPIC},
}


@contextmanager
def lightmq_server() -> Iterator[tuple[str, int]]:
    """Run `lightmq up` with data in a scratch folder; yields (host:port, process id)."""
    with lightmq_ports() as (ports, process_id):
        yield f"127.0.0.1:{ports['remoting']}", process_id


@contextmanager
def lightmq_ports(data: Path | None = None) -> Iterator[tuple[dict[str, int], int]]:
    """The same; yields (ports by protocol, process id). `data`: another data directory."""
    with tempfile.TemporaryDirectory(prefix="lightmq-bench-") as folder:
        command = [sys.executable, "-m", "lightmq", "up", "--json", "--data", str(data or folder)]
        for port in ("--mqtt-port", "--remoting-port", "--admin-port"):
            command += [port, "0"]
        with Path(folder, "log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            assert process.stdout is not None
            try:
                yield json.loads(process.stdout.readline()), process.pid
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


def fill(server: str, rows: int) -> None:
    """Store the backlog, a few requests on the way at once."""
    body = b"x" * 100
    raw = [image.encode_mqtt_image(b"bench/%d" % (n % TOPICS), body, 1, 0, b"bench") for n in range(BATCH_ENTRIES)]
    with BlockingConnection.dial(server, 60_000) as connection:
        for begin in range(0, rows, BATCH_ENTRIES):
            entries = b"".join(raw[: min(BATCH_ENTRIES, rows - begin)])
            connection.send(Command(RequestCode.APPEND_MANY, body=entries))
            while connection.in_flight > IN_FLIGHT_MAX:
                check(connection.receive())
        while connection.in_flight:
            check(connection.receive())


def fill_batches(server: str, rows: int) -> None:
    """Store the same messages in a batch topic, one record of lz4 per so many."""
    columns = {
        "body": pa.array([b"x" * 100] * BATCH_ROWS),
        "key": pa.array([f"bench/{n % TOPICS}" for n in range(BATCH_ROWS)]),
    }
    with BlockingConnection.dial(server, 60_000) as connection:
        fields = topic_fields(BATCH_TOPIC, 4, attributes={"queue.type": "BatchCQ"})
        check(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)))
        raw = bytes(encode_batches(columns, BATCH_TOPIC, "lz4", BATCH_ROWS, 0).data)
        entries = b"".join([raw] * 8)
        for _ in range(-(-rows // (8 * BATCH_ROWS))):
            check(connection.request(Command(RequestCode.APPEND_MANY, body=entries)))


def check(reply: Command) -> None:
    """Stop at the first refusal."""
    if reply.code != 0:
        raise SystemExit(f"the broker refused: {reply.remark}")


@dataclass
class Cpu:
    """CPU seconds so far."""

    jvm: float = 0.0
    python: float = 0.0
    broker: float = 0.0

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.jvm - other.jvm, self.python - other.python, self.broker - other.broker)


def cpu_now(broker_id: int) -> Cpu:
    """What the broker, the JVM and all Python processes have used; ended ones count through their parents."""
    root, found = psutil.Process(), Cpu()
    for process in [root, *root.children(recursive=True)]:
        try:
            times, name = process.cpu_times(), process.name()
        except psutil.NoSuchProcess:
            continue
        own = times.user + times.system
        if process.pid == broker_id:
            found.broker += own
        elif name.startswith("java"):
            found.jvm += own
        else:
            found.python += own
        # Only Python processes end during a run: the planners and workers of Spark.
        found.python += times.children_user + times.children_system
    return found


def decode_us(server: str, chosen: dict[str, str]) -> float:
    """CPU microseconds per row of checking and decoding alone."""
    options = parse_read({"nameServer": server, **chosen})
    selection = select(options)
    schema = _parse_datatype_string(schema_ddl(options.columns, properties=options.include_properties))
    assert isinstance(schema, StructType)
    watch = BoundsWatch(options, selection)
    bounds = watch.read()
    key = max(bounds, key=lambda one: bounds[one].max)
    work = [QueueRange(key, bounds[key].id, bounds[key].min, min(bounds[key].max, DECODE_ROWS_MAX))]
    used, rows = 0.0, 0
    for current, pulled in RangeFetcher(work, watch.masters, options).pulls():
        begun = time.process_time()
        rows += sum(batch.num_rows for batch in decode_range(pulled, current, arrow_schema(schema)))
        used += time.process_time() - begun
    return used / max(1, rows) * 1e6


def read(spark: Any, server: str, chosen: dict[str, str], folder: Path) -> tuple[int, float, float]:
    """Run one availableNow stream; (rows, seconds in addBatch, seconds of the whole trigger) of its largest batch."""
    reader = spark.readStream.format("rocketmq").option("nameServer", server).options(**chosen)
    frame = reader.option("startingOffsets", "earliest").load()
    query = (
        frame.writeStream.format("noop").option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    largest = max(query.recentProgress, key=lambda progress: progress.numInputRows)
    durations = dict(largest.durationMs)
    return largest.numInputRows, durations["addBatch"] / 1000, durations["triggerExecution"] / 1000


def measure(spark: Any, server: str, broker_id: int, name: str, scratch: Path) -> str:
    """Run one variant twice; the figures of the second run as cells of the table."""
    used, rows, add_s = Cpu(), 0, 0.0
    for attempt in range(2):
        before = cpu_now(broker_id)
        rows, add_s, _ = read(spark, server, VARIANTS[name], scratch / f"{name}-{attempt}")
        used = cpu_now(broker_id) - before
    jvm, python, broker = (seconds / rows * 1e6 for seconds in (used.jvm, used.python, used.broker))
    cells = f"{rows:>10,} {add_s:>6.1f} {rows / add_s:>10,.0f} {jvm:>7.2f} {python:>7.2f} {broker:>7.2f}"
    return f"{cells} {python / jvm:>10.2f} {broker / jvm:>10.2f} {decode_us(server, VARIANTS[name]):>7.2f}"


def main() -> int:
    """Fill, read, print one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark")
    parser.add_argument("--rows", type=int, default=5_000_000)
    options = parser.parse_args()
    with lightmq_server() as (server, broker_id), tempfile.TemporaryDirectory() as scratch:
        fill(server, options.rows)
        fill_batches(server, options.rows)
        spark = session("bench")
        spark.sparkContext.setLogLevel("ERROR")
        lines = [f"{name:16} {measure(spark, server, broker_id, name, Path(scratch))}" for name in VARIANTS]
        spark.stop()
    print(f"{'':16} {'one batch of':>17} {'':>10}  CPU us/row: {'':>10} {'ratios':>21} {'alone':>7}")
    heads = f"{'rows':>10} {'s':>6} {'rows/s':>10} {'JVM':>7} {'Python':>7} {'broker':>7}"
    print(f"{'columns':16} {heads} {'Python/JVM':>10} {'broker/JVM':>10} {'decode':>7}")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
