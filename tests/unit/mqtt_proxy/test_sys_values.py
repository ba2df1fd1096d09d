"""The values under the names that Mosquitto's users know."""

from __future__ import annotations

import pytest

from mqtt_proxy import sys_topics
from mqtt_proxy.metrics import FrontCounters, ProxyMetrics
from mqtt_proxy.sys_topics import SysValues
from runtime.metrics import Registry
from tests.support.clock import ManualClock


class Parts:
    """Values over counters set by the test."""

    def __init__(self) -> None:
        registry = Registry()
        self.metrics, self.front, self.clock = ProxyMetrics(registry), FrontCounters(registry), ManualClock()
        self.connected = 2
        self.values = SysValues(self.metrics, self.front, self.clock, lambda: self.connected)

    def read(self, name: str) -> str | None:
        found = self.values.read().get(f"$SYS/broker/{name}".encode())
        return None if found is None else found.decode()


def test_counters_of_the_proxy() -> None:
    """Messages of any kind, publishes, bytes, subscriptions."""
    parts = Parts()
    deliveries = parts.metrics.deliveries
    deliveries.acknowledged.value, deliveries.retained.value = 3, 1
    for listener, confirmed, sent, opened in (("tcp", 4, 6, 1), ("tls", 1, 1, 1)):
        clients = parts.metrics.clients(listener, "5")
        clients.confirmed.value, clients.sent.value, clients.opened.value = confirmed, sent, opened
    parts.metrics.publishes.refused.child("not_authorized").value = 4
    parts.metrics.subscriptions.open.value = 9
    parts.front.bytes_in.value, parts.front.bytes_out.value = 100, 200
    assert parts.read("messages/received") == "10"
    assert parts.read("messages/sent") == "15"
    assert parts.read("publish/messages/received") == "5"
    assert parts.read("publish/messages/sent") == "8"
    assert parts.read("publish/messages/dropped") == "4"
    assert parts.read("bytes/received") == "100"
    assert parts.read("bytes/sent") == "200"
    assert parts.read("subscriptions/count") == "9"


def test_version_uptime_and_memory() -> None:
    """Text as Mosquitto writes it."""
    parts = Parts()
    parts.clock.advance_ms(90_000)
    assert (parts.read("version") or "").startswith("LightMQ ")
    assert parts.read("uptime") == "90 seconds"
    assert int(parts.read("heap/current") or 0) > 1_000_000
    assert int(parts.read("heap/maximum") or 0) > 1_000_000


def test_the_maximum_memory_is_never_below_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's maximum is not of the same moment as its present figure; a maximum does not fall either."""
    parts, much = Parts(), 1 << 50
    monkeypatch.setattr(sys_topics, "_resident_bytes", lambda: much)
    assert (parts.read("heap/current"), parts.read("heap/maximum")) == (str(much), str(much))
    monkeypatch.setattr(sys_topics, "_resident_bytes", lambda: 5)
    assert (parts.read("heap/current"), parts.read("heap/maximum")) == ("5", str(much))


def test_the_brokers_figures_replace_the_proxys() -> None:
    """None of them is shown before."""
    parts = Parts()
    assert parts.read("clients/connected") == "2"
    assert parts.read("clients/total") is None
    parts.values.set_broker_status(
        {"clients_total": 8, "clients_connected": 5, "clients_expired": 1, "retained_messages": 4, "messages_stored": 6}
    )
    shown = {name: parts.read(f"clients/{name}") for name in ("connected", "disconnected", "total", "maximum")}
    assert shown == {"connected": "5", "disconnected": "3", "total": "8", "maximum": "5"}
    assert parts.read("clients/expired") == "1"
    assert parts.read("retained messages/count") == "4"
    assert parts.read("messages/stored") == "6"


def test_the_maximum_number_of_clients() -> None:
    """Sampled, not only read on demand."""
    parts = Parts()
    parts.connected = 7
    parts.values.sample()
    parts.connected = 1
    assert parts.read("clients/maximum") == "7"


def test_load_averages() -> None:
    """Per minute, two digits."""
    parts = Parts()
    parts.front.bytes_in.value = 6_000
    parts.clock.advance_ms(60_000)
    parts.values.sample()
    assert parts.read("load/bytes/received/1min") == "3792.72"
    assert parts.read("load/publish/received/15min") == "0.00"
    assert parts.read("load/sockets/5min") == "0.00"
    assert parts.read("sockets") is None
