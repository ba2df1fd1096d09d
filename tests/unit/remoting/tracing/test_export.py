"""Spans reach a real receiver; one that is away or refuses is counted and holds nobody up."""

from __future__ import annotations

import time

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Exported

from remoting.tracing.context import TraceContext
from remoting.tracing.export import SpanSender
from remoting.tracing.spans import SpanKind, Tracer
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.ports import free_port

CONTEXT = TraceContext(7, 8, True, "a=1")


def sender(tracer: Tracer, endpoint: str) -> SpanSender:
    return SpanSender(tracer, endpoint, "tested", interval_s=0.01, timeout_s=0.1)


def test_a_span_arrives_with_all_it_has() -> None:
    tracer = Tracer()
    with OtlpReceiver() as receiver:
        running = sender(tracer, f"{receiver.endpoint}/")
        running.start()
        tracer.note(CONTEXT, "publish plant", SpanKind.SERVER, 10, 20, {"messaging.mqtt.qos": 1}, "broker_refused")
        ((service, span),) = receiver.until(lambda spans: len(spans) == 1)
        tracer.note(CONTEXT, "deliver plant", SpanKind.PRODUCER, 20, 30, {})
        running.close(5)
        assert len(receiver.spans()) == 2, "a stop sends what waits"
    assert (service, span.name, span.kind) == ("tested", "publish plant", Exported.SPAN_KIND_SERVER)
    assert (int.from_bytes(span.trace_id), int.from_bytes(span.parent_span_id), span.trace_state) == (7, 8, "a=1")
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (10, 20)
    assert (span.status.message, span.attributes[0].value.int_value) == ("broker_refused", 1)
    assert (tracer.exported, tracer.failed) == (2, 0)


def test_what_waits_is_sent_when_somebody_waits_for_it() -> None:
    tracer = Tracer()
    with OtlpReceiver() as receiver:
        running = SpanSender(tracer, receiver.endpoint, "tested", interval_s=600, timeout_s=5)
        running.start()
        for number in (1, 2):
            tracer.note(CONTEXT, "publish", SpanKind.SERVER, 1, 2, {})
            assert running.flush(20)
            assert len(receiver.spans()) == number
        running.close(5)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_receiver_that_takes_nothing(is_there: bool, caplog: pytest.LogCaptureFixture) -> None:
    tracer = Tracer()
    with OtlpReceiver() as receiver:
        receiver.status = 400
        running = sender(tracer, receiver.endpoint if is_there else f"http://127.0.0.1:{free_port()}")
        running.start()
        began_s = time.monotonic()
        for _ in range(3):
            tracer.note(CONTEXT, "publish", SpanKind.SERVER, 1, 2, {})
        assert time.monotonic() - began_s < 1
        running.close(10)
    assert (tracer.failed, tracer.exported, len(tracer)) == (3, 0, 0)
    assert any("has not taken" in line for line in caplog.messages)
