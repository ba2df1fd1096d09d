"""SPARK_REPORT and SPARK_QUERIES (9117, 9118): the Spark queries of this installation, as they report themselves.

    SPARK_REPORT   one-way, msgpack `SparkReport`: one batch of one query, or its end; who sends it may read the topics
                   that it names
    SPARK_QUERIES  -> JSON: `queries`, each with its last report and `history`, [time_ms, rows_per_s, batch_ms,
                   lag_messages] of the batches before

Kept in memory only: `QUERIES_MAX` queries, `HISTORY_MAX` batches of each; a query that is silent for `SILENT_MS` is
forgotten, one that has ended after `ENDED_MS`. The durations of batches are also a histogram, by the name of the query;
names after the first `QUERIES_MAX` count as `other`. Invariant: what is kept is bounded whatever is reported. Loop
thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from remoting.access.rights import CONSUME, LOCATE, MONITOR, of_topic
from remoting.protocol.bodies.operating_body import PLACES_MAX, SparkReport, decode
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer
from runtime.metrics import OTHER, Registry

if TYPE_CHECKING:
    from broker.requests import RequestTools

QUERIES_MAX = 200
"""Queries shown; the one that has been silent longest makes room."""
HISTORY_MAX = 120
"""Batches of a query in its history."""
SILENT_MS = 3_600_000
ENDED_MS = 600_000
TEXT_MAX = 2_000
"""Characters kept of an error, and of each name."""
RUNNING = "running"
BATCH_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0)
"""Upper ends of the ranges of batch durations: from a batch of a few rows to a backfill of hours."""


@dataclass(slots=True)
class KnownQuery:
    """A query with what it has reported."""

    report: SparkReport
    by: str
    """Who reports it."""
    seen_ms: int
    history: deque[tuple[int, float, int, int]] = field(default_factory=lambda: deque(maxlen=HISTORY_MAX))


class SparkRequests:
    """Keeps and shows what queries report."""

    def __init__(self, tools: RequestTools, registry: Registry) -> None:
        self._tools = tools
        self._batch_s = registry.histogram(
            "rocketmq_spark_batch_duration_seconds", "Batches of Spark queries, by query", BATCH_S, ("query",)
        )
        self._queries: dict[str, KnownQuery] = {}
        """By id, the one that reported last at the end."""

    def __len__(self) -> int:
        return len(self._queries)

    def __iter__(self) -> Iterator[KnownQuery]:
        return iter(list(self._queries.values()))

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.SPARK_REPORT: self.spark_report, RequestCode.SPARK_QUERIES: self.spark_queries}

    def maintain(self, now_ms: int) -> None:
        """Forget queries that have not been heard of for long."""
        for name, query in list(self._queries.items()):
            kept_ms = SILENT_MS if query.report.status == RUNNING else ENDED_MS
            if now_ms - query.seen_ms > kept_ms:
                del self._queries[name]

    def spark_report(self, peer: Peer, command: Command) -> Command | None:
        """9117: one batch of a query, or its end."""
        report = decode(SparkReport, command.body)
        authorizer = self._tools.authorizer
        authorizer.authorize(peer, command, LOCATE, "")
        if len(report.places) > PLACES_MAX:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"a report names {PLACES_MAX} queues at most")
        for topic in {place[0] for place in report.places}:
            authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        _shorten(report)
        now_ms = self._tools.clock.now_ms()
        by = authorizer.subject(peer, command)
        known = self._queries.pop(report.id, None)
        if known is not None and known.by != by:  # another one's query of the same id is not replaced
            self._queries[report.id] = known
            raise Refused(ResponseCode.NO_PERMISSION, f"query {report.id} is reported by somebody else")
        if known is None:
            known = KnownQuery(report, by, now_ms)
            while len(self._queries) >= QUERIES_MAX:
                del self._queries[next(iter(self._queries))]
        elif report.status != RUNNING and not report.batch:
            report = msgspec.structs.replace(known.report, status=report.status, last_error=report.last_error)
        self._queries[report.id] = known
        known.report, known.seen_ms = report, now_ms
        if report.status == RUNNING and report.batch_ms:  # the first report of a run comes before any batch
            known.history.append((now_ms, report.rows_per_s, report.batch_ms, report.lag_messages))
            self._observe(report)
        return None if command.is_oneway else command.reply()

    def _observe(self, report: SparkReport) -> None:
        """Add a batch to the histogram of its query."""
        shown = (report.name,) in self._batch_s.children or len(self._batch_s.children) < QUERIES_MAX
        self._batch_s.child(report.name if shown else OTHER).observe(report.batch_ms / 1_000)

    def spark_queries(self, peer: Peer, command: Command) -> Command:
        """9118: all queries, by name."""
        self._tools.authorizer.authorize(peer, command, MONITOR, "spark queries")
        shown = sorted((_shown(query) for query in self), key=lambda row: (str(row["name"]), str(row["id"])))
        return command.reply(body=msgspec.json.encode({"queries": shown}))


def _shown(query: KnownQuery) -> dict[str, Any]:
    report = query.report
    row = {name: getattr(report, name) for name in SparkReport.__struct_fields__ if name != "places"}
    topics = sorted({place[0] for place in report.places})
    return row | {"topics": topics, "by": query.by, "updated_ms": query.seen_ms, "history": list(query.history)}


def _shorten(report: SparkReport) -> None:
    for name in ("id", "run", "name", "status", "last_error"):
        setattr(report, name, getattr(report, name)[:TEXT_MAX])
