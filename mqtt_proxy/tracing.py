"""Spans of MQTT messages: a publish from its receipt to the broker's confirmation, a delivery to each subscriber.

    publish   from the read of the socket until the broker has confirmed the message, or why it refused it
    deliver   from the storing of the message until its packet was handed to the subscriber's connection

Only messages whose `traceparent` is sampled have spans; their trace ids also become exemplars of the histograms of both
times. With a ratio some messages without a context begin a trace: they get a `traceparent` as a user property, which
their subscribers see as any other. Invariant: without a tracer nothing of this is made or asked; with one, a run of
publishes costs a search for the word `traceparent` in its bytes. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.codec.publish import Publish
from remoting.protocol.records.image import iter_images
from remoting.protocol.records.properties import MessageProperties
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_QOS_MASK, MQTT_TOPIC_KEY, RecordView
from remoting.tracing.context import TRACEPARENT, TraceContext, context_of, traceparent
from remoting.tracing.spans import SpanKind, Tracer, fresh_root
from runtime.metrics import Histogram

SPANS_PER_RUN_MAX = 64
"""Most spans of one client's publishes of one turn."""
_NS_OF_MS = 1_000_000


class TracedPublish(NamedTuple):
    """A sampled message between its receipt and its confirmation."""

    context: TraceContext
    topic: str
    client_id: str
    qos: int


class ProxyTraces:
    """Notes the spans of one proxy."""

    def __init__(self, tracer: Tracer, metrics: ProxyMetrics, now_ns: Callable[[], int]) -> None:
        self._tracer = tracer
        self._now_ns = now_ns
        self._delivery_s = metrics.deliveries.delivery_s

    def begin(self, publishes: Sequence[Publish]) -> None:
        """Give a new context to those of the publishes that begin a trace."""
        if not self._tracer.begins:
            return
        for number in self._tracer.begin(len(publishes)):
            one = publishes[number]
            properties = one.properties or MessageProperties()
            if any(key == TRACEPARENT for key, _value in properties.user):
                continue
            root = fresh_root()
            properties.user = [*properties.user, (TRACEPARENT, traceparent(root.trace_id, root.span_id))]
            one.properties = properties

    def found(self, images: bytes) -> list[TracedPublish] | None:
        """Return the sampled messages among record images; None when there are none."""
        if TRACEPARENT not in images:
            return None
        traced = []
        for image in iter_images(images):
            properties = image.properties()
            context = context_of(properties)
            if context is not None and context.sampled:
                own = dict(properties)
                topic, client_id = _text(own.get(MQTT_TOPIC_KEY)), _text(own.get(CLIENT_ID_KEY))
                traced.append(TracedPublish(context, topic, client_id, image.flags & FLAG_QOS_MASK))
                if len(traced) == SPANS_PER_RUN_MAX:
                    break
        return traced or None

    def published(
        self, traced: Sequence[TracedPublish], taken_ns: int, acknowledge_s: Histogram, error: str = ""
    ) -> None:
        """The broker has confirmed these messages, whose time belongs to this histogram, or refused them."""
        ended_ns = self._now_ns()
        for context, topic, client_id, qos in traced:
            attributes = _attributes("publish", topic, client_id, qos)
            self._tracer.note(context, f"publish {topic}", SpanKind.SERVER, taken_ns, ended_ns, attributes, error)
            if not error:
                _exemplify(acknowledge_s, context, taken_ns, ended_ns)

    def delivered(self, record: RecordView, topic: bytes, client_id: str, qos: int) -> None:
        """A message was handed to a subscriber's connection."""
        if TRACEPARENT not in bytes(record.meta):
            return
        context = context_of(record.properties())
        if context is None or not context.sampled:
            return
        stored_ns, ended_ns = record.store_ms * _NS_OF_MS, self._now_ns()
        name = _text(topic)
        attributes = _attributes("deliver", name, client_id, qos)
        self._tracer.note(context, f"deliver {name}", SpanKind.PRODUCER, stored_ns, ended_ns, attributes)
        _exemplify(self._delivery_s, context, stored_ns, ended_ns)


def _text(value: bytes | None) -> str:
    return "" if value is None else bytes(value).decode("utf-8", "replace")


def _attributes(operation: str, topic: str, client_id: str, qos: int) -> dict[str, str | int]:
    return {
        "messaging.system": "mqtt", "messaging.operation.name": operation, "messaging.destination.name": topic,
        "messaging.client.id": client_id, "messaging.mqtt.qos": qos,
    }  # fmt: skip


def _exemplify(histogram: Histogram, context: TraceContext, start_ns: int, end_ns: int) -> None:
    histogram.exemplify(max(0, end_ns - start_ns) / 1e9, f"{context.trace_id:032x}", end_ns / 1e9)
