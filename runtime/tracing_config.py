"""Configuration of traces: where spans are sent, which messages have some, and how many may wait.

Invariant: an address that is none is refused when it is read, not when the first span is sent. Values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from runtime.config import setting


@dataclass(frozen=True, kw_only=True)
class TracingConfig:
    """Spans of sampled messages, sent to an OpenTelemetry receiver (docs/howto/traces.md). Off without an endpoint."""

    endpoint: str = ""
    """Base address of a receiver of OTLP over HTTP, such as `http://127.0.0.1:4318`. Empty: no traces, at no cost. The
    extra `otel` must be installed."""
    root_ratio: float = setting(0.0, minimum=0, maximum=1)
    """Share of the MQTT messages without a `traceparent` that begin a trace, 0 to 1; they get one as a user property.
    Messages with a `traceparent` have spans exactly if its flag says sampled."""
    queue_spans_max: int = setting(2_048, minimum=1, maximum=1_000_000)
    """Spans that may wait to be sent; further ones are dropped and counted."""
    interval_ms: int = setting(1_000, minimum=10, maximum=60_000)
    """How often spans are sent."""
    timeout_ms: int = setting(10_000, minimum=100, maximum=60_000)
    """How long a receiver may take, repetitions included, before the spans of a request count as failed."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint)
        if self.endpoint and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError(f"endpoint must be http://host:port or https://host:port, not {self.endpoint!r}")
        if parts.username is not None or parts.password is not None:
            raise ValueError("endpoint must hold no password; use OTEL_EXPORTER_OTLP_HEADERS")
