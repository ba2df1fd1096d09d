"""The thread that sends spans to a receiver, by OTLP over HTTP with protobuf, through OpenTelemetry's exporter.

It sends what has gathered every `interval_s`, and at once when a caller of `flush` waits for it. The exporter repeats
what a receiver refuses for now, for up to `timeout_s`; meanwhile further spans wait in the tracer's bounded queue.
Headers, such as a key, and certificates are read from OpenTelemetry's own environment variables
(`OTEL_EXPORTER_OTLP_HEADERS`, …).

Invariant: whatever the receiver does, nobody but this thread and callers of `flush` wait for it; what it does not take
is counted, and logged at most once a minute. OpenTelemetry's packages (the extra `otel`) are imported when the thread
is made. Thread rule: `start` and `close` on the owner's thread, `flush` on any.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from remoting import clock
from remoting.protocol.errors import LocalMisuse
from remoting.tracing.spans import FinishedSpan, SpanKind, Tracer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

BATCH_SPANS_MAX = 512
"""Most spans of one request."""
PATH = "/v1/traces"
"""What OTLP appends to the base address of a receiver."""
LOG_INTERVAL_S = 60.0
LOG = logging.getLogger("remoting")
Form = Callable[[Sequence[FinishedSpan]], "list[ReadableSpan]"]


class SpanSender:
    """Sends the spans of one tracer until it is closed."""

    def __init__(self, tracer: Tracer, endpoint: str, service: str, *, interval_s: float, timeout_s: float) -> None:
        """`endpoint`: base address of the receiver (`http://127.0.0.1:4318`); `service`: `service.name` of the spans.

        Raises LocalMisuse when OpenTelemetry's packages are not installed.
        """
        self._tracer = tracer
        self._interval_s = interval_s
        self._exporter, self._form = _exporter(endpoint.rstrip("/") + PATH, service, timeout_s)
        self._turn = threading.Condition()
        self._closing = False
        self._asked = self._done = 0
        """Calls of `flush`, and those of them that are answered."""
        self._logged_s = -LOG_INTERVAL_S
        self._thread = threading.Thread(target=self._run, name="lightmq-traces", daemon=True)

    def start(self) -> None:
        """Send from now on what the tracer notes."""
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Send what waits and end; a receiver that does not answer is given up after `timeout_s`."""
        with self._turn:
            self._closing = True
            self._turn.notify_all()
        self._thread.join(timeout_s)
        self._exporter.shutdown()  # ends the repetitions

    def flush(self, timeout_s: float) -> bool:
        """Send what waits now; False when that was not finished after `timeout_s`."""
        with self._turn:
            self._asked += 1
            mine = self._asked
            self._turn.notify_all()
            return self._turn.wait_for(lambda: self._done >= mine, timeout_s)

    def _run(self) -> None:
        closing = False
        while not closing:
            with self._turn:
                self._turn.wait_for(lambda: self._closing or self._asked > self._done, self._interval_s)
                closing, asked = self._closing, self._asked
            self._send_all()
            with self._turn:
                self._done = asked
                self._turn.notify_all()

    def _send_all(self) -> None:
        while spans := self._tracer.take(BATCH_SPANS_MAX):
            if self._sent(spans):
                self._tracer.exported += len(spans)
            else:
                self._tracer.failed += len(spans)
                self._tell(len(spans))

    def _sent(self, spans: list[FinishedSpan]) -> bool:
        """Whether the receiver has taken the spans."""
        try:
            return self._exporter.export(self._form(spans)).name == "SUCCESS"
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays in this thread
            LOG.debug("spans not sent: %s", error)
            return False

    def _tell(self, count: int) -> None:
        now_s = clock.monotonic_s()
        if now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            LOG.warning("the receiver of traces has not taken %d spans; %d so far", count, self._tracer.failed)


def _exporter(address: str, service: str, timeout_s: float) -> tuple[SpanExporter, Form]:
    """The exporter, and what turns our spans into OpenTelemetry's."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, TraceFlags, TraceState
        from opentelemetry.trace import SpanKind as TheirKind
        from opentelemetry.trace.status import Status, StatusCode
    except ImportError as error:
        raise LocalMisuse(
            "traces need OpenTelemetry's packages; install the extra otel, or 'opentelemetry-sdk' and "
            "'opentelemetry-exporter-otlp-proto-http'"
        ) from error
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # failures are counted and logged here
    kinds = {
        SpanKind.SERVER: TheirKind.SERVER,
        SpanKind.PRODUCER: TheirKind.PRODUCER,
        SpanKind.CONSUMER: TheirKind.CONSUMER,
    }
    resource = Resource.create({"service.name": service})
    scope = InstrumentationScope("lightmq")
    flags = TraceFlags(TraceFlags.SAMPLED)

    def form(spans: Sequence[FinishedSpan]) -> list[ReadableSpan]:
        found = []
        for one in spans:
            state = TraceState.from_header([one.state]) if one.state else None
            parent = SpanContext(one.trace_id, one.parent_id, True, flags, state) if one.parent_id else None
            status = Status(StatusCode.ERROR, one.error) if one.error else Status()
            found.append(
                ReadableSpan(
                    one.name,
                    SpanContext(one.trace_id, one.span_id, False, flags, state),
                    parent,
                    resource,
                    dict(one.attributes),
                    kind=kinds[one.kind],
                    status=status,
                    start_time=one.start_ns,
                    end_time=one.end_ns,
                    instrumentation_scope=scope,
                )
            )
        return found

    return OTLPSpanExporter(endpoint=address, timeout=timeout_s), form
