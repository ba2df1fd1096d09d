"""Spark beside Kafka and its own connector: the same session, the same rows, one server and then the other.

Four partitions or queues, 100-byte bodies with a key. Lines: a batch write (Kafka: at least once; ours: exactly once
and at least once), a batch read of all columns, a stream over the backlog in one batch and in five (`availableNow`),
and messages at a steady rate into `foreachBatch`, where their age is measured. CPU is that of JVM, Python and server
together; each line runs once unmeasured. Both servers run with their defaults: ours flushes before it acknowledges,
Kafka does not. Bytes on disk are those of the log folders after the write, in allocated blocks.

Needs Java 17 and Maven. The rounds change the order, because a JVM is faster the longer it ran.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.kafka_server import kafka
from benchmarks.maven import compiled, jars
from benchmarks.spark_latency import Device
from benchmarks.spark_read import Cpu, cpu_now, lightmq_ports
from lightmq.spark import session

TOPIC = "rows"
STREAM_BATCHES = 5
ROWS = ("concat('d', id % 1000) AS key", "rpad(cast(id AS string), 100, 'x')")
CONNECTOR = ("kafka", "commons-pool2")
"""Which of the connector's jars Spark does not have itself."""


@dataclass
class Server:
    """One of the two, as Spark's options name it."""

    name: str
    process_id: int
    log: Path
    format: str
    reading: dict[str, str]
    writing: dict[str, str]
    body: str
    feed: Callable[[float, int], None]
    writes: dict[str, dict[str, str]] = field(default_factory=lambda: {"at least once": {}})
    live: dict[str, str] = field(default_factory=dict)
    """What differs for the stream at a steady rate."""


@dataclass
class Figure:
    """One measured line."""

    cpu_us: float
    rows_per_s: float
    parts_us: tuple[float, float, float]
    """CPU of JVM, Python and server."""


def disk_bytes(folder: Path) -> int:
    """Allocated bytes of all files below, as `du` counts them."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def timed(server: Server, rows: int, work: Callable[[], object]) -> Figure:
    """CPU of all processes and rows a second of one piece of work."""
    before, begun = cpu_now(server.process_id), time.perf_counter()
    work()
    seconds, used = time.perf_counter() - begun, cpu_now(server.process_id) - before
    parts = (used.jvm / rows * 1e6, used.python / rows * 1e6, used.broker / rows * 1e6)
    return Figure(sum(parts), rows / seconds, parts)


def total(used: Cpu) -> float:
    """Seconds of all three."""
    return used.jvm + used.python + used.broker


class Run:
    """All lines against one server."""

    def __init__(self, spark: Any, server: Server, rows: int, scratch: Path) -> None:
        self._spark, self._server, self._rows, self._scratch = spark, server, rows, scratch
        self._streams = 0

    def _write(self, rows: int, options: dict[str, str]) -> None:
        frame = self._spark.range(0, rows, 1, 2).selectExpr(ROWS[0], f"{ROWS[1]} AS {self._server.body}")
        writer = frame.write.format(self._server.format).mode("append")
        writer.options(**self._server.writing, **options).save()

    def _read(self) -> None:
        self._spark.read.format(self._server.format).options(**self._server.reading).load().write.format("noop").mode(
            "overwrite"
        ).save()

    def _stream(self, rows_a_batch: int) -> None:
        self._streams += 1
        reader = self._spark.readStream.format(self._server.format).options(**self._server.reading)
        reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(rows_a_batch))
        checkpoint = str(self._scratch / f"{self._server.name}-{self._streams}")
        writer = reader.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()

    def lines(self) -> dict[str, Figure]:
        """Every line but the latency, in the order of the table."""
        server, figures = self._server, {}
        stored = 0
        for name, options in server.writes.items():
            self._write(self._rows // 10, options)
            figures[f"write, {name}"] = timed(server, self._rows, partial(self._write, self._rows, options))
            stored += self._rows // 10 + self._rows
        works: dict[str, Callable[[], object]] = {
            "batch read": self._read,
            "stream, one batch": lambda: self._stream(stored),
            f"stream, {STREAM_BATCHES} batches": lambda: self._stream(-(-stored // STREAM_BATCHES)),
        }
        for name, work in works.items():
            work()
            figures[name] = timed(server, stored, work)
        print(f"  {server.name}: {disk_bytes(server.log) / stored:.0f} bytes on disk a row of 100 bytes", flush=True)
        return figures

    def latency(self, rate: int, seconds: float, warm_up_s: float) -> tuple[float, float, float]:
        """(p50 ms, p99 ms, CPU seconds of all processes) of messages at this rate in foreachBatch."""
        server, ages = self._server, []

        def aged(frame: Any, _batch: int) -> None:
            rows, now = frame.select(server.body).collect(), time.time_ns()
            ages.append((now, [(now - int(bytes(row[0])[:19])) / 1e6 for row in rows]))

        reader = self._spark.readStream.format(server.format).options(**{**server.reading, **server.live})
        checkpoint = str(self._scratch / f"{server.name}-live-{time.time_ns()}")
        query = (
            reader.option("startingOffsets", "latest").load().writeStream.foreachBatch(aged)
            .option("checkpointLocation", checkpoint).start()
        )  # fmt: skip
        feeding = threading.Thread(target=server.feed, args=(warm_up_s + seconds, rate))
        feeding.start()
        time.sleep(warm_up_s)
        before, begun = cpu_now(server.process_id), time.time_ns()
        feeding.join()
        used = total(cpu_now(server.process_id) - before)
        query.stop()
        measured = [age for at, batch in ages if at >= begun for age in batch]
        return statistics.median(measured), statistics.quantiles(measured, n=100)[98], used


def servers(stack: ExitStack, scratch: Path, broker_jars: Path) -> list[Server]:
    """Both servers, started."""
    ports, process_id = stack.enter_context(lightmq_ports(scratch / "lightmq"))
    device = Device(ports["mqtt"])
    stack.callback(device.close)
    name_server = {"nameServer": f"127.0.0.1:{ports['remoting']}"}
    ours = Server(
        "lightmq", process_id, scratch / "lightmq", "rocketmq", {**name_server, "topic": TOPIC},
        {**name_server, "topic": TOPIC}, "body", device.publish,
        {"exactly once": {}, "at least once": {"delivery": "at-least-once"}}, {"topic": "bench"},
    )  # fmt: skip
    (scratch / "kafka").mkdir()
    address, process_id = stack.enter_context(kafka(broker_jars, scratch / "kafka"))
    classes = scratch / "classes"
    compiled("KafkaFeed", broker_jars, classes)

    def feed(seconds: float, rate: int) -> None:
        command = ["java", "-cp", f"{classes}:{broker_jars}/*", "KafkaFeed", address, "live", str(rate)]
        subprocess.run([*command, str(int(seconds))], check=True, stderr=subprocess.DEVNULL)

    where = {"kafka.bootstrap.servers": address}
    theirs = Server(
        "kafka", process_id, scratch / "kafka" / "log", "kafka", {**where, "subscribe": TOPIC},
        {**where, "topic": TOPIC}, "value", feed, live={"subscribe": "live"},
    )  # fmt: skip
    return [ours, theirs]


def show_round(server: str, number: int, figures: dict[str, Figure]) -> None:
    """Print the CPU by process, line by line."""
    for name, figure in figures.items():
        shares = " + ".join(f"{part:.2f}" for part in figure.parts_us)
        rate = f"{figure.rows_per_s:,.0f}/s"
        print(f"  {server}, round {number}: {name:<22} JVM + Python + server {shares} us a row, {rate}", flush=True)


def show(results: dict[str, list[dict[str, Figure]]]) -> None:
    """Ours divided by theirs, line by line: the best of the rounds."""
    theirs, ours = results["kafka"], results["lightmq"]
    print(f"{'line':<24}{'kafka us':>10}{'rows/s':>12}{'lightmq us':>12}{'rows/s':>12}{'CPU':>8}{'rows/s':>8}")
    for name in ours[0]:
        peer = name if name in theirs[0] else "write, at least once"
        own = [min(each[name].cpu_us for each in ours), max(each[name].rows_per_s for each in ours)]
        other = [min(each[peer].cpu_us for each in theirs), max(each[peer].rows_per_s for each in theirs)]
        cells = f"{other[0]:>10.2f}{other[1]:>12,.0f}{own[0]:>12.2f}{own[1]:>12,.0f}"
        print(f"{name:<24}{cells}{own[0] / other[0]:>8.2f}{own[1] / other[1]:>8.2f}")


def main() -> int:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks spark_kafka", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--rate", type=int, default=500, help="messages a second of the latency lines; 0 leaves them out"
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="measured time of a latency line")
    parser.add_argument("--warm-up", type=float, default=20.0)
    options = parser.parse_args()
    broker_jars, connector = jars("kafka-broker"), jars("kafka-connector")
    if broker_jars is None or connector is None:
        return 0
    with tempfile.TemporaryDirectory(prefix="lightmq-bench-") as made, ExitStack() as stack:
        scratch = Path(made)
        named = [str(jar) for jar in connector.glob("*.jar") if any(part in jar.name for part in CONNECTOR)]
        spark = session("bench", conf={"spark.jars": ",".join(named), "spark.log.level": "ERROR"})
        spark.sparkContext.setLogLevel("ERROR")
        both = servers(stack, scratch, broker_jars)
        results: dict[str, list[dict[str, Figure]]] = {server.name: [] for server in both}
        for number in range(options.rounds):
            for server in both if number % 2 == 0 else both[::-1]:
                run = Run(spark, server, options.rows, scratch)
                results[server.name].append(run.lines())
                show_round(server.name, number + 1, results[server.name][-1])
                if options.rate:
                    p50, p99, used = run.latency(options.rate, options.seconds, options.warm_up)
                    print(
                        f"  {server.name}: {options.rate}/s into foreachBatch, round {number + 1}: "
                        f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, {used:.1f} s CPU", flush=True,
                    )  # fmt: skip
        show(results)
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
