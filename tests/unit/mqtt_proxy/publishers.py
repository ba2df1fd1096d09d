"""Publishing clients for the proxy's tests, and brokers that answer or are lost with the request."""

from __future__ import annotations

from mqtt_proxy.metrics import ClientCounters, ProxyMetrics
from mqtt_proxy.mqtt.codec.packets import Publish
from runtime.metrics import Registry
from tests.unit.mqtt_proxy.rig import Rig, publish


class Origin:
    """A connection that publishes."""

    def __init__(self, counters: ClientCounters | None = None) -> None:
        self.counters = counters or ProxyMetrics(Registry()).clients("tcp", "5")
        self.confirmed_ids: list[int] = []
        self.reason: str | None = None
        self.held = False
        self.refusals: list[tuple[int, int]] = []
        self.asks = True
        self.unwanted_ids: list[int] = []

    def unwanted(self, packet_ids: list[int]) -> None:
        assert not set(packet_ids) & set(self.confirmed_ids), "acknowledged before they are confirmed"
        self.unwanted_ids += packet_ids

    def refused(self, packet_id: int, code: int, reason: str) -> None:
        self.refusals.append((packet_id, code))

    def confirmed(self, packet_ids: list[int]) -> None:
        self.confirmed_ids += packet_ids

    def rejected(self, reason: str) -> None:
        self.reason = reason

    def pause(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False


def some(topic: str, *packet_ids: int, size: int = 1) -> list[Publish]:
    """QoS 1 publishes with these ids."""
    return [publish(topic, b"x" * size, packet_id=packet_id) for packet_id in packet_ids]


async def lose(rig: Rig) -> None:
    """The broker is lost with its requests, and another one connects."""
    rig.broker.held.clear()
    rig.broker.holding = False
    await rig.broker.connections[-1].close()
