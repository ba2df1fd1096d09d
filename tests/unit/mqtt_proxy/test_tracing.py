"""Which publishes begin a trace, and what spans say of the others; a refused one has its reason."""

from __future__ import annotations

from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.codec.publish import images
from mqtt_proxy.tracing import SPANS_PER_RUN_MAX, ProxyTraces
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.records.properties import MessageProperties
from remoting.tracing.context import context_of, traceparent
from remoting.tracing.spans import Tracer
from runtime.metrics import Registry
from tests.unit.mqtt_proxy.publishers import Origin
from tests.unit.mqtt_proxy.rig import publish, running

CONTEXT = (b"traceparent", traceparent(7, 8))


def traces(tracer: Tracer) -> ProxyTraces:
    return ProxyTraces(tracer, ProxyMetrics(Registry()), lambda: 5_000)


def sampled(topic: str = "plant/7", packet_id: int = 1):
    one = publish(topic, b"x", packet_id=packet_id)
    one.properties = MessageProperties(user=[(b"unit", b"c"), CONTEXT])
    return one


def test_publishes_without_a_context_begin_a_trace() -> None:
    plain, own = publish("t", b"x", packet_id=1), sampled()
    traces(Tracer(root_ratio=1.0)).begin([plain, own])
    assert plain.properties is not None
    assert context_of(plain.properties.user) is not None
    assert own.properties == MessageProperties(user=[(b"unit", b"c"), CONTEXT])
    untouched = publish("t", b"x", packet_id=1)
    traces(Tracer()).begin([untouched])
    assert untouched.properties is None


def test_sampled_messages_are_found_among_others() -> None:
    tracer = Tracer()
    made = traces(tracer)
    assert made.found(images([publish("t", b"x", packet_id=1)], b"dev", 0, False)[0]) is None
    assert made.found(images([publish("t", b"traceparent", packet_id=1)], b"dev", 0, False)[0]) is None
    found = made.found(images([publish("t", b"x", packet_id=1), sampled()], b"dev", 0, False)[0])
    assert found is not None
    ((context, topic, client_id, qos),) = found
    assert (context.trace_id, topic, client_id, qos) == (7, "plant/7", "dev", 1)
    many = made.found(images([sampled()] * (SPANS_PER_RUN_MAX + 1), b"dev", 0, False)[0])
    assert many is not None
    assert len(many) == SPANS_PER_RUN_MAX
    made.published(found, 2_000, ProxyMetrics(Registry()).clients("tcp", "5").acknowledge_s)
    (span,) = tracer.take(9)
    assert (span.name, span.start_ns, span.end_ns, span.error) == ("publish plant/7", 2_000, 5_000, "")


async def test_the_publisher_notes_what_became_of_a_message() -> None:
    """Confirmed, refused with its frame, and refused alone."""
    tracer = Tracer()
    async with running(tracer=tracer) as rig:
        publisher = rig.services.publisher
        publisher.publish(Origin(), b"dev", [sampled()])
        await publisher.drain()
        rig.broker.refuse[RequestCode.APPEND_MANY] = [Refused(14, "disk full")]
        publisher.publish(Origin(), b"dev", [sampled()])
        await publisher.drain()
        rig.broker.refuse[RequestCode.APPEND_MANY] = [Refused(13, "too long")] * 2
        publisher.publish(Origin(), b"dev", [sampled("a"), publish("b", b"x", packet_id=2)])
        await publisher.drain()
    errors = [(span.name, span.error.rpartition(": ")[2]) for span in tracer.take(9)]
    assert errors == [("publish plant/7", ""), ("publish plant/7", "disk full"), ("publish a", "too long")]
