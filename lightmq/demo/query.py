"""The Spark side of the demo, a driver process of its own: three streaming queries over one MQTT filter.

`ledger` writes every reading to Parquet (what the accounting counts), `windows` aggregates in event time with a
watermark and publishes each window as an MQTT message, `commands` applies the anomaly rule per sensor and writes
commands back with `writeStream`.

Each is started again from its checkpoint when Spark ends it for a passing reason (`KeptQuery`).
Invariant: all progress lives in the checkpoints below `--out`; killed at any point and started again with the same
arguments it continues without losing or repeating a row. Writes JSON lines to standard output; reads `drain` and `stop`
from standard input.

`KeptQuery.failed` is set when and only when the query was given up; until then `drain` waits for the query that
replaces it. Thread rule: one thread per query runs `run_forever`; everything else from the main thread.

The anomaly rule inside Spark: state per sensor, readings in, commands out.

Invariant: the readings of one sensor are judged in the order of their queue, batch after batch, so the commands are a
function of the log. Runs in Spark's Python workers: one instance per task, no shared state.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQuery

from lightmq.demo.driver import LATER
from lightmq.demo.java_classes import ClassArchive, class_archive
from lightmq.demo.rule import SensorState, step
from lightmq.spark_session import cause_of, ensure_java, is_session_lost, run_forever
from remoting import clock

NAME = "lightmq-demo"

STATE_SCHEMA = "readings long, mean double, variance double, since_alarm long"
COMMAND_SCHEMA = "sensor string, reading string, value double, deviation double, sent_ms long, time_ms long"


class AnomalyProcessor(StatefulProcessor):
    """Keeps a `SensorState` per sensor and yields one command row per anomaly."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of the sensor."""
        self._state = handle.getValueState("sensor", STATE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803, ARG002
        """Judge the new readings of one sensor."""
        stored = self._state.get() if self._state.exists() else None
        state = SensorState(*stored) if stored is not None else SensorState()
        for row in sorted(rows, key=lambda reading: reading.queueOffset):
            state, deviation = step(state, key[0], row.value)
            if deviation is not None:
                yield Row(
                    sensor=key[0],
                    reading=row.id,
                    value=row.value,
                    deviation=deviation,
                    sent_ms=row.sent_ms,
                    time_ms=row.time_ms,
                )
        self._state.update((state.readings, state.mean, state.variance, state.since_alarm))

    def close(self) -> None:
        """Nothing is held outside Spark's state."""


POLL_S = 0.2
RESTARTS_MAX = 8
"""Restarts within ten minutes: two minutes of pauses. Spark gives the Python process that plans a stream's batches ten
seconds to connect (`PythonWorkerFactory.createSimpleWorker`; no setting changes it), of which its imports need 0.8 s of
CPU: too short again and again on a machine with ten times the load it can bear."""
FIRST_BATCH_TIMEOUT_S = 600.0
"""Longest wait for a first batch, restarts included; after it the next query is started all the same."""


class KeptQuery:
    """One query by its name; `start` makes the whole of it and returns the running query."""

    def __init__(
        self, name: str, start: Callable[[], Any], say: Callable[..., object], *, restarts_max: int = RESTARTS_MAX
    ) -> None:
        self.name = name
        self._restarts_max = restarts_max
        self.failed: str | None = None
        self._start = start
        self._say = say
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._query: Any = None
        self._thread = threading.Thread(target=self._run, name=f"query-{name}", daemon=True)

    def begin(self) -> None:
        """Start it in a thread of its own."""
        self._thread.start()

    def _run(self) -> None:
        try:
            run_forever(
                self._started, restarts_max=self._restarts_max, stop=self._stop,
                say=lambda text: self._say(event="restarted", query=self.name, text=text),
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the demo reports it in one sentence and accounts
            self.failed = cause_of(error)
            self._say(event="failed", query=self.name, error=self.failed, lost=is_session_lost(error))
        finally:
            self._ended.set()

    def _started(self) -> Any:
        self._query = self._start()
        return self._query

    def progress(self) -> list[Any]:
        """Spark's progress report of its newest batches; nothing before the first one."""
        return [] if self._query is None else list(self._query.recentProgress)

    def await_first_batch(self, timeout_s: float = FIRST_BATCH_TIMEOUT_S) -> bool:
        """Wait until a batch was made; False when it was given up, ended or was too late."""
        deadline = clock.monotonic_s() + timeout_s
        while not self.progress():
            if self._ended.wait(POLL_S) or clock.monotonic_s() > deadline:
                return bool(self.progress())
        return True

    def drain(self) -> None:
        """Wait until everything stored so far is processed, by the query or by its restarts.

        A query that was never begun has nothing to wait for.
        """
        if self._thread.ident is None:
            return
        while not self._ended.is_set():
            query = self._query
            try:
                if query is not None:
                    query.processAllAvailable()
                    return
            except Exception:  # noqa: BLE001 - it failed meanwhile: run_forever starts it again or gives it up
                while self._query is query and not self._ended.wait(POLL_S):
                    pass
            self._ended.wait(POLL_S)

    def stop(self) -> None:
        """End it and wait for its end."""
        self._stop.set()
        query = self._query
        if query is not None:
            with suppress(Exception):  # its session may have ended
                query.stop()
        if self._thread.is_alive():
            self._thread.join()


READING_SCHEMA = "id string, sensor string, value double, time_ms long, sent_ms long"
REPORT_INTERVAL_S = 0.5
FILTER = "machines/+/+"
RESULTS = "results"
"""First level of the topics of what Spark found; commands are below `machines/`, where devices look for them."""
ONE_COMPILER = "-XX:TieredStopAtLevel=1"
"""For a session that lives for minutes: Java's second compiler takes a quarter of the CPU before the first row and pays
off later only."""
ROWS_PER_BATCH_MAX = 5_000
"""So that the first batch is short also when readings have gathered for minutes."""


SMALL_STREAM = {"spark.sql.shuffle.partitions": "1"}
"""Some hundred rows a batch: each further partition costs a task, a state store and a Python process or two."""


def say(**event: object) -> None:
    """Send the demo one JSON line."""
    print(json.dumps(event), flush=True)


def readings(spark: SparkSession, nameserver: str) -> DataFrame:
    """Every reading of every machine, live and historical; commands pass the same filter and are left out."""
    rows = (
        spark.readStream.format("rocketmq")
        .option("nameServer", nameserver)
        .option("mqttFilter", FILTER)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH_MAX)
        .option("columns", "mqttTopic,queueId,queueOffset,body")
        .load()
        .where(~F.col("mqttTopic").endswith("/commands"))
    )
    parsed = F.from_json(F.col("body").cast("string"), READING_SCHEMA).alias("reading")
    return rows.select("mqttTopic", "queueId", "queueOffset", parsed).select(
        "mqttTopic", "queueId", "queueOffset", "reading.*", F.timestamp_millis("reading.time_ms").alias("event_time")
    )


def writers(spark: SparkSession, options: argparse.Namespace) -> dict[str, Callable[[], StreamingQuery]]:
    """What starts each of the three queries, the one that starts soonest first: `commands` keeps state in Python.

    Each has its checkpoint below the output folder and loads the stream itself: a restart builds the whole query.
    """
    out = Path(options.out).resolve()

    def started(frame: DataFrame, name: str, form: str, **places: str) -> StreamingQuery:
        writer = frame.writeStream.format(form).options(**places).queryName(name)
        located = writer.option("checkpointLocation", str(out / "checkpoints" / name))
        return located.trigger(processingTime=options.trigger).start()

    def ledger() -> StreamingQuery:
        columns = ("id", "sensor", "value", "queueId", "queueOffset", "sent_ms", "time_ms")
        frame = readings(spark, options.nameserver).select(*columns)
        return started(frame, "ledger", "parquet", path=str(out / "ledger"))

    def windows() -> StreamingQuery:
        found = means(readings(spark, options.nameserver), options.window, options.watermark)
        frame = published(found, options.host)
        return started(frame, "windows", "rocketmq", nameServer=options.nameserver, qos="1")

    def commands() -> StreamingQuery:
        frame = decided(readings(spark, options.nameserver), options.host)
        return started(frame, "commands", "rocketmq", nameServer=options.nameserver, qos="1")

    return {"ledger": ledger, "windows": windows, "commands": commands}


def means(source: DataFrame, window: str, watermark: str) -> DataFrame:
    """Aggregates in event time."""
    return (
        source.withWatermark("event_time", watermark)
        .groupBy(F.window("event_time", window), "sensor")
        .agg(
            F.avg("value").alias("mean"),
            F.min("value").alias("low"),
            F.max("value").alias("high"),
            F.count("*").alias("readings"),
        )
        .select("window", "sensor", "mean", "low", "high", "readings")
    )


def published(found: DataFrame, host: str) -> DataFrame:
    """Windows as rows for the sink, each on its sensor's topic."""
    edges = [F.unix_millis(F.col(f"window.{edge}")).alias(f"{edge}_ms") for edge in ("start", "end")]
    body = F.to_json(F.struct("sensor", *edges, "mean", "low", "high", "readings"))
    topic = F.concat(F.lit(f"{RESULTS}/{host}/windows/"), F.col("sensor"))
    return found.select(topic.alias("mqttTopic"), F.col("sensor").alias("key"), body.cast("binary").alias("body"))


def decided(source: DataFrame, host: str) -> DataFrame:
    """Commands by the anomaly rule, as rows for the sink."""
    found = source.groupBy("sensor").transformWithState(
        statefulProcessor=AnomalyProcessor(), outputStructType=COMMAND_SCHEMA, outputMode="Append", timeMode="None"
    )
    identity = F.concat(F.lit("cmd-"), F.col("reading"))
    body = F.to_json(F.struct(identity.alias("id"), "sensor", "reading", "value", "deviation", "sent_ms", "time_ms"))
    topic = F.lit(f"machines/{host}/commands")
    return found.select(topic.alias("mqttTopic"), F.col("sensor").alias("key"), body.cast("binary").alias("body"))


def begin(queries: Sequence[KeptQuery], version: str, wanted: threading.Event) -> None:
    """Start the queries, each when the one before has made a batch.

    `ready` is reported with the first one's, `complete` when all have made one. When one is given up, those behind it
    are not started: the demo ends with what arrived.

    Two queries that plan their first batch at the same moment in one driver can both fail: Spark serialises a map of
    the session that the other one is still filling ("Task not serializable: Illegal size of collection").
    """
    for number, query in enumerate(queries):
        if wanted.is_set():
            return
        say(event="step", text=f"planning the first batch of {query.name}")
        query.begin()
        if query.await_first_batch() and number == 0:
            say(event="ready", version=version)
        if query.failed is not None:
            break
    say(event="complete")


def report(queries: Sequence[KeptQuery], seen: dict[str, tuple[int, int]]) -> None:
    """Say what each query did since the last report; `seen` keeps (last batch, rows) by query."""
    for query in queries:
        for progress in query.progress():
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


def serve(
    queries: Sequence[KeptQuery],
    begin_all: Callable[[threading.Event], None],
    others: Mapping[str, Callable[[], object]] | None = None,
) -> None:
    """Report until stopped; `drain` waits until everything stored so far is processed by every query.

    `others` are further orders and what each does; the answer to an order is `<order> done`.
    """
    orders: Queue[str] = Queue()
    stopping = threading.Event()

    def read_orders() -> None:
        for line in sys.stdin:
            orders.put(line.strip())
        orders.put("stop")

    threading.Thread(target=read_orders, daemon=True).start()
    starter = threading.Thread(target=begin_all, args=(stopping,), daemon=True)
    starter.start()
    seen: dict[str, tuple[int, int]] = {}
    while True:
        report(queries, seen)
        try:
            order = orders.get(timeout=REPORT_INTERVAL_S)
        except Empty:
            continue
        if order == "drain":
            starter.join()
            for query in queries:
                query.drain()
            report(queries, seen)
            say(event="drained")
        elif order == "stop":
            stopping.set()
            for query in queries:
                query.stop()
            say(event="stopped")
            return
        elif others is not None and order in others:
            others[order]()
            say(event=f"{order} done")


def short_session(name: str, settings: Mapping[str, str] | None = None) -> tuple[SparkSession, ClassArchive]:
    """Start a session for minutes, with Java's classes from an archive if there is one.

    It is ended by `ClassArchive.stop`.
    """
    from lightmq.spark import session

    say(event="step", text="starting its Java process")
    archive = class_archive(str(ensure_java().home))
    java = {"spark.driver.defaultJavaOptions": f"{ONE_COMPILER} {archive.options}".rstrip()}
    spark = session(name, conf={**java, **SMALL_STREAM, **(settings or {})})
    spark.sparkContext.setLogLevel("ERROR")
    return spark, archive


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the driver; status 1 when a query was given up."""
    from lightmq.spark import report_queries

    given = list(sys.argv[1:] if arguments is None else arguments)
    prepared = None
    if given == [LATER]:
        prepared = short_session(NAME)
        line = sys.stdin.readline()
        if not line.startswith("["):  # an order to stop, or the demo has ended
            prepared[1].stop(prepared[0])
            say(event="stopped")
            return 0
        given = json.loads(line)
    options = parse(given)
    spark, archive = prepared or short_session(NAME)
    report_queries(spark, options.nameserver)  # the console, open since the start, shows them
    started = writers(spark, options).items()
    queries = [KeptQuery(name, start, say, restarts_max=options.restarts) for name, start in started]
    serve(queries, lambda stopping: begin(queries, spark.version, stopping))
    archive.stop(spark)
    return 1 if any(query.failed is not None for query in queries) else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m lightmq.demo.query")
    parser.add_argument("--nameserver", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--window", default="5 seconds")
    parser.add_argument("--watermark", default="2 seconds")
    parser.add_argument("--trigger", default="500 milliseconds")
    parser.add_argument("--restarts", type=int, default=RESTARTS_MAX)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # Under its own name, because Spark's workers import the processor from this module.
    from lightmq.demo.query import main as named_main

    sys.exit(named_main())
