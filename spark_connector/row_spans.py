"""Spans of rows on their way through a query: `trace_rows` puts them between a source and a sink.

Each row whose column `traceparent` is sampled gets a span in the Python worker that it passes, and goes on with that
span as its parent; the sink writes the column into the message, so the trace goes on at the device or consumer that
gets it. Rows without a context, or with one that is not sampled, are unchanged and cost a look at the column.

Invariants: rows are neither added, left out nor reordered, and nothing but `traceparent` changes; a receiver that is
away costs a task `FLUSH_S` at most. A task that Spark repeats makes its spans again. Thread rule: a worker runs one
task at a time; spans are sent by a thread of their own, one for each receiver and process.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from remoting import clock
from remoting.protocol.errors import LocalMisuse
from remoting.tracing.context import STATE_BYTES_MAX, TRACEPARENT, TRACESTATE, TraceContext, parse, traceparent
from remoting.tracing.export import SpanSender
from remoting.tracing.spans import SpanKind, Tracer, fresh_root

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

COLUMN = TRACEPARENT.decode()
STATE = TRACESTATE.decode()
QUEUE_SPANS_MAX = 16_384
"""More than one Arrow batch of Spark's has rows."""
INTERVAL_S = 0.5
TIMEOUT_S = 5.0
FLUSH_S = 1.0
"""How long a task waits at its end for its last spans to be sent: a worker may be ended right after it."""
_NS_OF_US = 1_000


def trace_rows(
    frame: DataFrame, name: str, *, endpoint: str, service: str = "spark", root_ratio: float = 0.0
) -> DataFrame:
    """Return the same rows, each sampled one with a span `process NAME` in its trace, which becomes its `traceparent`.

    The frame needs the column `traceparent` (string). The span lasts from `storeTimestamp`, if the frame has that
    column, until the row passes here; it has the `tracestate` of the map `properties` and the topic, if the frame has
    them. `endpoint` is the base address of a receiver of OTLP over HTTP; with an empty one the frame is returned as
    it is. `root_ratio` is the share (0 to 1) of rows without a context that begin a trace. Workers need the extra
    `otel`. Raises LocalMisuse without the column or for a ratio that cannot be.
    """
    if not 0.0 <= root_ratio <= 1.0:
        raise LocalMisuse(f"root_ratio is {root_ratio}: a share from 0 to 1 is needed")
    if dict(frame.dtypes).get(COLUMN) != "string":
        raise LocalMisuse(f"rows to trace need the column {COLUMN!r} of the source, a string")
    if not endpoint:
        return frame
    return frame.mapInArrow(RowSpans(name, endpoint, service, root_ratio), frame.schema)


@dataclass(frozen=True, slots=True)
class RowSpans:
    """Makes the spans of one task's rows; Spark sends it to the workers."""

    name: str
    endpoint: str
    service: str
    root_ratio: float = 0.0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a task with their new contexts, then have the spans sent."""
        tracer, sender = _running(self.endpoint, self.service, self.root_ratio)
        for batch in batches:
            yield self.traced(batch, tracer)
        sender.flush(FLUSH_S)

    def traced(self, batch: pa.RecordBatch, tracer: Tracer) -> pa.RecordBatch:
        """Note the spans of one batch; return it with the contexts of what follows."""
        import pyarrow as pa

        at = batch.schema.get_field_index(COLUMN)
        found = batch.column(at)
        contexts = self._contexts(found.to_pylist(), tracer) if tracer.begins or found.null_count < len(found) else {}
        if not contexts:
            return batch
        changed, now_ns = found.to_pylist(), clock.now_ns()
        for row, context in contexts.items():
            start_ns, state, attributes = self._known(batch, row, now_ns)
            given = context._replace(state=state)
            span_id = tracer.note(given, f"process {self.name}", SpanKind.CONSUMER, start_ns, now_ns, attributes)
            if span_id:
                changed[row] = traceparent(context.trace_id, span_id).decode()
        return batch.set_column(at, batch.schema.field(at), pa.array(changed, found.type))

    def _contexts(self, values: list[str | None], tracer: Tracer) -> dict[int, TraceContext]:
        """The contexts of sampled rows, and of those that begin a trace, by the number of the row."""
        found: dict[int, TraceContext] = {}
        empty = []
        for row, value in enumerate(values):
            context = parse(value.encode()) if value else None
            if context is None:
                empty.append(row)
            elif context.sampled:
                found[row] = context
        if tracer.begins:
            found.update((empty[number], fresh_root()) for number in tracer.begin(len(empty)))
        return found

    def _known(self, batch: pa.RecordBatch, row: int, now_ns: int) -> tuple[int, str, dict[str, str | int]]:
        """(start, tracestate, attributes) of the span of a row, by the columns that are there."""

        def value(name: str) -> Any:
            at = batch.schema.get_field_index(name)
            return None if at < 0 else batch.column(at)[row].as_py()

        stored, pairs = value("storeTimestamp"), value("properties")
        start_ns = int(stored.timestamp() * 1e6) * _NS_OF_US if isinstance(stored, datetime) else now_ns
        state = dict(pairs).get(STATE) or "" if isinstance(pairs, list) else ""
        attributes: dict[str, str | int] = {"messaging.system": "lightmq", "messaging.operation.name": "process"}
        topic = value("mqttTopic") or value("topic")
        if isinstance(topic, str):
            attributes["messaging.destination.name"] = topic
        return start_ns, state if len(state.encode()) <= STATE_BYTES_MAX else "", attributes


@functools.cache
def _running(endpoint: str, service: str, root_ratio: float) -> tuple[Tracer, SpanSender]:
    """The spans of this worker and their sender; Spark forks workers from a process that never runs a task."""
    tracer = Tracer(queue_spans_max=QUEUE_SPANS_MAX, root_ratio=root_ratio)
    sender = SpanSender(tracer, endpoint, service, interval_s=INTERVAL_S, timeout_s=TIMEOUT_S)
    sender.start()
    return tracer, sender
