"""Traces of a process: off without an endpoint, on with one, and clear about missing packages."""

from __future__ import annotations

import sys

import pytest

from lightmq.servers.tracing import Tracing
from remoting.protocol.errors import LocalMisuse
from remoting.tracing.context import TraceContext
from remoting.tracing.spans import SpanKind
from runtime.metrics import Registry
from runtime.tracing_config import TracingConfig
from tests.support.otlp_receiver import OtlpReceiver


async def test_off() -> None:
    registry = Registry()
    off = Tracing(TracingConfig(), "lightmq", registry)
    await off.start()
    await off.stop()
    assert off.tracer is None
    assert registry.values()["rocketmq_trace_spans_total{dropped}"] == 0


async def test_on() -> None:
    registry = Registry()
    with OtlpReceiver() as receiver:
        on = Tracing(TracingConfig(endpoint=receiver.endpoint, interval_ms=60_000), "lightmq", registry)
        assert on.tracer is not None
        await on.start()
        on.tracer.note(TraceContext(1, 2, True), "publish", SpanKind.SERVER, 1, 2, {})
        await on.stop()
        assert [service for service, _span in receiver.spans()] == ["lightmq"]
    assert registry.values()["rocketmq_trace_spans_total{exported}"] == 1


def test_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(LocalMisuse, match="pip install"):
        Tracing(TracingConfig(endpoint="http://127.0.0.1:4318"), "lightmq", Registry())
