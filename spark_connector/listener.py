"""`RocketMQProgressListener`: every query's lag and pace, for Prometheus and for programs.

    listener = RocketMQProgressListener()
    spark.streams.addListener(listener)
    listener.serve(9108)            # http://127.0.0.1:9108/metrics, names rocketmq_spark_*
    listener.report("127.0.0.1:9876")   # for the console and `SPARK_QUERIES`: one small one-way request per batch

Invariant: a query that ended is no longer shown, its counters stay out of the way of the next run's; queries over
other sources are shown without lag. Thread rule: Spark calls from threads of its own, pages are rendered from others;
everything kept is behind one lock. Reports to a broker are sent by a thread of their own and never waited for: a broker
that is away, slow or refuses them changes nothing for the query.

Spark shows two offsets of a Python source in each progress report: `endOffset`, how far the batch went, and
`latestOffset`, which is whatever `reportLatestOffset` answered. The latter carries, beside the ends of the queues, for
queues that a batch did not read to their end how long the first message left over has been stored ("waitMs"), and how
many messages had expired before they could be read ("lost", where `failOnDataLoss` is false).
"""

from __future__ import annotations

import json
import math
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import StreamingQueryListener

from remoting.client.tls import ClientTls
from remoting.client.uplink import BackgroundConnection, Endpoint
from remoting.protocol.bodies.operating_body import PLACES_MAX, SparkReport, encode
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.web_host import is_safe_host
from remoting.transport.signature import Signer
from spark_connector.errors import OptionError
from spark_connector.queues import QueueKey
from spark_connector.reading.offsets import from_json

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

QUEUES_SHOWN_MAX = 1_000
"""Queues of a query shown one by one, those furthest behind; all of them are in the figures of the whole query."""


@dataclass(frozen=True, slots=True)
class QueueLag:
    """One queue behind a batch: messages not read by it, and for how long the oldest of them has been stored."""

    key: QueueKey
    messages: int
    seconds: float | None
    """None where the source did not ask (QUEUES_ASKED_MAX) or got no answer."""


def queue_lags(end: str | None, latest: str | None) -> list[QueueLag]:
    """Return the lag of every queue of one source of a progress report, from its `endOffset` and `latestOffset`.

    Empty for sources that are not ours and for reports without offsets.
    """
    try:
        reached = from_json(json.loads(end or "null") or {})
        seen = from_json(json.loads(latest or "null") or {})
    except (ValueError, OptionError, AttributeError):
        return []
    waits = seen.waiting_ms or {}
    found = []
    for key, last in sorted(seen.positions.items()):
        messages = max(0, last - reached.positions.get(key, 0))
        seconds = waits[key] / 1000 if key in waits else None if messages else 0.0
        found.append(QueueLag(key, messages, seconds))
    return found


def lost_messages(latest: str | None) -> int:
    """Return how many messages had expired before one source could read them, from the `latestOffset` of a report."""
    try:
        return from_json(json.loads(latest or "null") or {}).lost
    except (ValueError, OptionError, AttributeError):
        return 0


def behind_latest(lags: Iterable[QueueLag]) -> dict[str, float]:
    """Return Kafka's three figures over the queues of a source: avg, max and min messages behind the latest."""
    messages = [lag.messages for lag in lags]
    if not messages:
        return {"avg": 0.0, "max": 0.0, "min": 0.0}
    return {"avg": sum(messages) / len(messages), "max": float(max(messages)), "min": float(min(messages))}


class _PageServer(ThreadingMixIn, WSGIServer):
    """A thread for each request, so that a slow reader delays no other."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)


class _SilentHandler(WSGIRequestHandler):
    """Requests of a scrape are not logged."""

    timeout = 10
    """Seconds a client may take over its request."""

    def log_message(self, format: str, *_args: object) -> None:  # noqa: A002 - the base's own name
        """Keep the standard library from logging each request to stderr."""


@dataclass(slots=True)
class QueryState:
    """What is known of a running query."""

    name: str
    lags: list[QueueLag] = field(default_factory=list)
    rows: int = 0
    lost: int = 0
    """Messages that had expired before the run could read them."""
    batches: int = 0
    batch_seconds: float = 0.0
    """Duration of the last batch."""

    @property
    def messages_behind(self) -> int:
        """Messages of all queues that the last batch did not read."""
        return sum(lag.messages for lag in self.lags)

    @property
    def seconds_behind(self) -> float:
        """For how long the oldest of them has been stored."""
        return max((lag.seconds or 0.0 for lag in self.lags), default=0.0)


ERROR_CHARACTERS_MAX = 1_000
"""Of the error of a query, the part that is reported."""
JAVA_FRAMES = re.compile(r"\n\s+at [\w$./]+\(")


def error_text(exception: str) -> str:
    """The end of an error's text in front of Java's frames: a Python traceback names its cause last."""
    found = JAVA_FRAMES.split(exception, 1)[0].strip()
    return found if len(found) <= ERROR_CHARACTERS_MAX else "…" + found[1 - ERROR_CHARACTERS_MAX :]


class BrokerReports:
    """Tells one broker about every batch, from a thread of its own."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Connects when the broker is there, and again whenever it is back."""
        self._background = BackgroundConnection(endpoint, name="lightmq-spark-reports")

    def send(self, report: SparkReport) -> None:
        """Send a report if the broker is connected; without waiting, and without a failure."""
        body = encode(report)
        with suppress(RuntimeError):  # closed: the loop has ended
            self._background.call_soon(lambda: self._post(body))

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._background.close()

    def _post(self, body: bytes) -> None:
        connection = self._background.uplink.connection
        with suppress(LightMQError):  # the broker is away: the next batch is reported to it when it is back
            if connection.writable:
                connection.oneway(Command(RequestCode.SPARK_REPORT, body=body))


class RocketMQProgressListener(StreamingQueryListener, Collector):
    """Keeps the last progress of every running query; `exposition()` is what a scrape gets."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, QueryState] = {}
        self._failed = 0
        self._reports: BrokerReports | None = None
        self.registry = CollectorRegistry() if registry is None else registry
        self.registry.register(self)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Show the query from now on."""
        with self._lock:
            self._running[str(event.runId)] = QueryState(event.name or str(event.id))
        self._report(SparkReport(str(event.id), str(event.runId), event.name or str(event.id), "running"))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Take the figures of a batch."""
        progress = event.progress
        lags = progress_lags(progress)
        with self._lock:
            state = self._running.setdefault(str(progress.runId), QueryState(progress.name or str(progress.id)))
            state.lags = lags
            state.rows += max(0, progress.numInputRows)
            state.lost = max(state.lost, sum(lost_messages(source.latestOffset) for source in progress.sources))
            state.batches += 1
            state.batch_seconds = progress.durationMs.get("triggerExecution", progress.batchDuration) / 1000
        if self._reports is not None:
            self._report(report_of(progress, lags))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing is new: what was read last is all there is."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Show the query no more."""
        with self._lock:
            state = self._running.pop(str(event.runId), None)
            self._failed += event.exception is not None
        ended = SparkReport(str(event.id), str(event.runId), str(event.id) if state is None else state.name, "ended")
        if event.exception is not None:
            ended.status, ended.last_error = "failed", error_text(event.exception)
        self._report(ended)

    def report(
        self,
        name_server: str,
        *,
        broker_name: str = "",
        access_key: str = "",
        secret_key: str = "",
        tls: ClientTls | None = None,
    ) -> None:
        """Report every batch to a broker found by `host:port` of the name servers (several with commas).

        The key needs the right to read the topics. Raises ValueError for a malformed address. Nothing is sent twice,
        nothing is waited for: while the broker is away batches are not reported.
        """
        controllers = [each.strip() for each in name_server.split(",")]
        signer = Signer(access_key, secret_key) if access_key else None
        made = BrokerReports(Endpoint("", controllers, broker_name, signer, tls))
        with self._lock:
            before, self._reports = self._reports, made
        if before is not None:
            before.close()

    def close(self) -> None:
        """End the reports to a broker; the listener itself goes on."""
        with self._lock:
            before, self._reports = self._reports, None
        if before is not None:
            before.close()

    def _report(self, report: SparkReport) -> None:
        reports = self._reports
        if reports is not None:
            reports.send(report)

    def queries(self) -> dict[str, QueryState]:
        """Return the running queries by name (by id where they have none)."""
        with self._lock:
            return {state.name: state for state in self._running.values()}

    def exposition(self) -> bytes:
        """Return the page in Prometheus' text format."""
        return generate_latest(self.registry)

    def serve(self, port: int, address: str = "127.0.0.1") -> int:
        """Serve `/metrics` from a thread until the process ends; 0 takes a free port. Returns the port.

        On a loopback address only requests for `localhost` or an IP address are answered, so that no web page can read
        the page of its visitor's machine (DNS rebinding).
        """
        page: WSGIApplication = make_wsgi_app(self.registry)
        local = address == "localhost" or address.startswith("127.") or address == "::1"

        def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            host = environ.get("HTTP_HOST")
            if local and host is not None and not is_safe_host(host):
                start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
                return [b"this page is for localhost\n"]
            return page(environ, start_response)

        server = make_server(address, port, guarded, _PageServer, _SilentHandler)
        threading.Thread(target=server.serve_forever, name="rocketmq-metrics", daemon=True).start()
        return int(server.server_port)

    def collect(self) -> Iterator[Metric]:
        """Every metric as it is now; called by prometheus_client."""
        with self._lock:
            states, failed = list(self._running.values()), self._failed
        yield GaugeMetricFamily("rocketmq_spark_queries", "Running queries", value=len(states))
        yield CounterMetricFamily("rocketmq_spark_query_failures", "Queries that ended with an error", value=failed)
        for name, text, values in (
            ("rocketmq_spark_rows", "Rows read since the start of the run", [s.rows for s in states]),
            (
                "rocketmq_spark_lost_messages",
                "Messages that had expired before the run could read them",
                [s.lost for s in states],
            ),
            ("rocketmq_spark_batches", "Batches since the start of the run", [s.batches for s in states]),
        ):
            yield _family(CounterMetricFamily(name, text, labels=["query"]), states, values)
        for name, text, seconds in (
            ("rocketmq_spark_batch_seconds", "Duration of the last batch", [s.batch_seconds for s in states]),
            (
                "rocketmq_spark_seconds_behind",
                "For how long the oldest message has been stored that the last batch left over",
                [s.seconds_behind for s in states],
            ),
            (
                "rocketmq_spark_messages_behind",
                "Messages the last batch left over",
                [float(s.messages_behind) for s in states],
            ),
        ):
            yield _family(GaugeMetricFamily(name, text, labels=["query"]), states, seconds)
        yield from _by_queue(states)


def progress_lags(progress: StreamingQueryProgress) -> list[QueueLag]:
    """Return the lag of every queue in a progress report, as in `query.lastProgress`."""
    return [lag for source in progress.sources for lag in queue_lags(source.endOffset, source.latestOffset)]


def report_of(progress: StreamingQueryProgress, lags: list[QueueLag]) -> SparkReport:
    """Return what a broker is told about one batch; `lags` are those of the same progress report."""
    behind = {lag.key: lag.messages for lag in lags}
    reached = [place for source in progress.sources for place in _reached(source.endOffset)]
    reached.sort(key=lambda place: (-behind.get(place[0], 0), place[0]))
    operators = progress.stateOperators
    return SparkReport(
        id=str(progress.id),
        run=str(progress.runId),
        name=progress.name or str(progress.id),
        status="running",
        batch=progress.batchId,
        rows=max(0, progress.numInputRows),
        rows_per_s=_finite(progress.processedRowsPerSecond),
        batch_ms=int(progress.durationMs.get("triggerExecution", progress.batchDuration)),
        lag_messages=sum(behind.values()),
        lag_s=max((lag.seconds or 0.0 for lag in lags), default=0.0),
        state_rows=sum(operator.numRowsTotal for operator in operators),
        state_bytes=sum(operator.memoryUsedBytes for operator in operators),
        time_ms=int(datetime.fromisoformat(progress.timestamp).timestamp() * 1000),
        places=[(key.topic, key.broker, key.queue, offset) for key, offset in reached[:PLACES_MAX]],
    )


def _reached(end: str | None) -> list[tuple[QueueKey, int]]:
    """The offset that a batch read up to, of each queue of one source; empty for sources that are not ours."""
    try:
        return list(from_json(json.loads(end or "null") or {}).positions.items())
    except (ValueError, OptionError, AttributeError):
        return []


def _finite(number: float) -> float:
    """Spark gives NaN and infinity for batches without rows or time."""
    return number if math.isfinite(number) else 0.0


def _family(
    family: CounterMetricFamily | GaugeMetricFamily, states: Iterable[QueryState], values: Iterable[float]
) -> Metric:
    for state, value in zip(states, values, strict=True):
        family.add_metric([state.name], value)
    return family


def _by_queue(states: Iterable[QueryState]) -> Iterator[Metric]:
    """Figures with more labels than the query's name."""
    statistics = GaugeMetricFamily(
        "rocketmq_spark_offsets_behind_latest",
        "Messages behind the latest over a query's queues: avg, max, min",
        labels=["query", "statistic"],
    )
    labels = ["query", "topic", "broker", "queue"]
    messages = GaugeMetricFamily(
        "rocketmq_spark_queue_messages_behind", "Messages of a queue the last batch left over", labels=labels
    )
    seconds = GaugeMetricFamily(
        "rocketmq_spark_queue_seconds_behind", "For how long the oldest of them has been stored", labels=labels
    )
    for state in states:
        for statistic, value in behind_latest(state.lags).items():
            statistics.add_metric([state.name, statistic], value)
        shown = sorted(state.lags, key=lambda lag: (-lag.messages, lag.key))[:QUEUES_SHOWN_MAX]
        for lag in shown:
            where = [state.name, lag.key.topic, lag.key.broker, str(lag.key.queue)]
            messages.add_metric(where, lag.messages)
            if lag.seconds is not None:
                seconds.add_metric(where, lag.seconds)
    yield from (statistics, messages, seconds)
