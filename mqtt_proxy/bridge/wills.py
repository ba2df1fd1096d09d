"""Wills: published for every connection that ends without DISCONNECT.

Keep-alive time-out, violation, a socket that broke, take-over, a proxy that stops: in each case the will goes the way
of any other publish, behind what the client published before. A will that the broker does not accept is counted and
logged; there is no client left to be told.
Loop rule: on the loop's thread.
"""

from __future__ import annotations

from mqtt_proxy.bridge.publish import Publisher
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.packets import Publish, Will
from runtime.logs import get_logger

LOG = get_logger("proxy.wills")


class WillOrigin:
    """The publisher of one will."""

    __slots__ = ("_client_id", "_metrics")

    def __init__(self, client_id: str, metrics: ProxyMetrics) -> None:
        self._client_id = client_id
        self._metrics = metrics

    def confirmed(self, packet_ids: list[int]) -> None:
        """The will is durable."""
        assert not packet_ids, packet_ids
        self._metrics.wills.value += 1

    def rejected(self, reason: str) -> None:
        """The broker did not accept it."""
        self._metrics.will_failures.child(reason.partition(":")[0]).value += 1
        LOG.warning("will_not_published", client_id=self._client_id, reason=reason)

    def hold(self) -> None:
        """A will publishes once; there is nothing to hold back."""

    def release(self) -> None:
        """Nothing was held."""


def publish_will(publisher: Publisher, client_id: str, will: Will, metrics: ProxyMetrics) -> None:
    """Publish a will on behalf of a connection that has ended."""
    message = Publish(will.topic, will.payload, will.qos, will.retain, dup=False, packet_id=0)
    publisher.publish(WillOrigin(client_id, metrics), client_id.encode(), (message,))
