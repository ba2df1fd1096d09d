"""Rows per second and CPU per row of one Spark micro-batch over a backlog, against a real `lightmq up` process.

The backlog is written through APPEND_MANY (100-byte payload, 64 MQTT topics below one parent), then read by a stream
with `availableNow` into the noop sink in one micro-batch: all columns, then offset and body only. CPU is that of the
JVM and the Python workers by /proc; the broker's is shown beside it. Each variant runs twice, the second run is
reported: the first one pays for starting workers and warming the JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from remoting.client.blocking import BlockingConnection
from remoting.protocol import append_body
from remoting.protocol.codes import RequestCode
from remoting.protocol.commands import Command

BATCH_ENTRIES = 2_000
TOPICS = 64
IN_FLIGHT_MAX = 4
VARIANTS = {"all columns": "", "offset and body": "queueOffset,body"}


@contextmanager
def lightmq_server() -> Iterator[tuple[str, int]]:
    """Run `lightmq up` with data in a scratch folder; yields (host:port, process id)."""
    with tempfile.TemporaryDirectory(prefix="lightmq-bench-") as folder:
        command = [sys.executable, "-m", "lightmq", "up", "--json", "--data", folder]
        for port in ("--mqtt-port", "--remoting-port", "--admin-port"):
            command += [port, "0"]
        with Path(folder, "log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            assert process.stdout is not None
            try:
                yield f"127.0.0.1:{json.loads(process.stdout.readline())['remoting']}", process.pid
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


def fill(server: str, rows: int) -> None:
    """Store the backlog, a few requests on the way at once."""
    body = b"x" * 100
    raw = [
        append_body.encode_mqtt_entry(b"bench/%d" % (n % TOPICS), body, 1, 0, b"bench") for n in range(BATCH_ENTRIES)
    ]
    with BlockingConnection.dial(server, 60_000) as connection:
        for begin in range(0, rows, BATCH_ENTRIES):
            entries = append_body.encode_entries(raw[: min(BATCH_ENTRIES, rows - begin)])
            connection.send(Command(RequestCode.APPEND_MANY, body=entries))
            while connection.in_flight > IN_FLIGHT_MAX:
                check(connection.receive())
        while connection.in_flight:
            check(connection.receive())


def check(reply: Command) -> None:
    """Stop at the first refusal."""
    if reply.code != 0:
        raise SystemExit(f"the broker refused: {reply.remark}")


def cpu_s(process_id: int) -> float:
    """CPU seconds of a process and its living descendants, with what ended children used."""
    root = psutil.Process(process_id)
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def read(spark: Any, server: str, columns: str, folder: Path) -> tuple[int, float, float]:
    """Run one availableNow stream; (rows, seconds in addBatch, seconds of the whole trigger) of its largest batch."""
    reader = spark.readStream.format("rocketmq").option("nameServer", server).option("mqttFilter", "bench/+")
    if columns:
        reader = reader.option("columns", columns)
    frame = reader.option("startingOffsets", "earliest").load()
    query = (
        frame.writeStream.format("noop").option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    largest = max(query.recentProgress, key=lambda progress: progress.numInputRows)
    durations = dict(largest.durationMs)
    return largest.numInputRows, durations["addBatch"] / 1000, durations["triggerExecution"] / 1000


def main() -> int:
    """Fill, read, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark")
    parser.add_argument("--rows", type=int, default=5_000_000)
    options = parser.parse_args()
    from lightmq.spark import session

    with lightmq_server() as (server, broker_id), tempfile.TemporaryDirectory() as scratch:
        begun = time.perf_counter()
        fill(server, options.rows)
        print(f"backlog of {options.rows:,} messages stored in {time.perf_counter() - begun:.1f} s")
        spark = session("bench")
        spark.sparkContext.setLogLevel("ERROR")
        for name, columns in VARIANTS.items():
            for attempt in range(2):
                before, broker_before = cpu_s(os.getpid()), cpu_s(broker_id)
                rows, add_s, trigger_s = read(spark, server, columns, Path(scratch, f"{columns}-{attempt}"))
                used, broker_used = cpu_s(os.getpid()) - before, cpu_s(broker_id) - broker_before
            print(f"{name:16} {rows:,} rows in one batch of {add_s:.1f} s (trigger {trigger_s:.1f} s): ", end="")
            print(f"{rows / add_s:,.0f} rows/s, CPU per row: ", end="")
            print(f"Spark {used / rows * 1e6:.2f} µs, broker {broker_used / rows * 1e6:.2f} µs")
        spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
