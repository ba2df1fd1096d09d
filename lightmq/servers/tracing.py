"""The traces of one server process: its tracer, its sender as a service, and what both count.

Invariant: the metrics are declared whether or not traces are on, so that every page has the same names; without an
endpoint there is no tracer and nothing else is made. Loop rule: made and used on one event loop.
"""

from __future__ import annotations

import asyncio

from lightmq.extras import install_command
from remoting.protocol.errors import LocalMisuse
from remoting.tracing.export import SpanSender
from remoting.tracing.spans import Tracer
from runtime.metrics import Registry
from runtime.tracing_config import TracingConfig

STOP_S = 2.0
"""How long a stop waits for spans that are still to be sent."""


class Tracing:
    """The tracer of a process, and the service that sends its spans."""

    def __init__(self, config: TracingConfig, service: str, registry: Registry) -> None:
        """`service`: `service.name` of the spans. Raises LocalMisuse without OpenTelemetry's packages."""
        self.tracer: Tracer | None = None
        """None while traces are off."""
        self._sender: SpanSender | None = None
        spans = registry.counter(
            "rocketmq_trace_spans_total", "Spans of sampled messages, by what became of them", ("outcome",)
        )
        tracer = Tracer(queue_spans_max=config.queue_spans_max, root_ratio=config.root_ratio)
        spans.child("exported", function=lambda: tracer.exported)
        spans.child("dropped", function=lambda: tracer.dropped)
        spans.child("failed", function=lambda: tracer.failed)
        if not config.endpoint:
            return
        try:
            self._sender = SpanSender(
                tracer, config.endpoint, service, interval_s=config.interval_ms / 1_000,
                timeout_s=config.timeout_ms / 1_000,
            )  # fmt: skip
        except LocalMisuse as error:
            raise LocalMisuse(
                f"tracing.endpoint needs further packages; install them with: {install_command('otel')}"
            ) from error
        self.tracer = tracer

    async def start(self) -> None:
        """Begin to send spans."""
        if self._sender is not None:
            self._sender.start()

    async def stop(self) -> None:
        """Send what waits, for `STOP_S` at most."""
        if self._sender is not None:
            await asyncio.to_thread(self._sender.close, STOP_S)
