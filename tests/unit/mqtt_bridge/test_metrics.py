from __future__ import annotations

from mqtt_bridge.metrics import BridgeMetrics
from runtime.metrics import Registry


def test_each_has_the_connection_as_its_first_label() -> None:
    registry = Registry()
    BridgeMetrics(registry)
    declared = list(registry.metrics())
    assert len(declared) == 11
    assert all(metric.labels[0] == "connection" and metric.name.startswith("rocketmq_bridge_") for metric in declared)
