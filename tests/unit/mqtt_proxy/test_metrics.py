"""Counters are declared once and rare ones are told apart by reason."""

from __future__ import annotations

from mqtt_proxy.metrics import ProxyMetrics
from runtime.metrics import Registry


def test_reasons_are_words_without_details() -> None:
    """What follows the colon is for the log, not for a label."""
    registry = Registry()
    metrics = ProxyMetrics(registry)
    metrics.sessions.closed("broker_lost: somewhere").value += 1
    metrics.sessions.closed("broker_lost: elsewhere").value += 1
    metrics.deliveries.skipped("retention").value += 5
    values = registry.values()
    assert values["rocketmq_mqtt_closes_total{broker_lost}"] == 2
    assert values["rocketmq_mqtt_messages_skipped_total{retention}"] == 5
    ProxyMetrics(registry)  # a restarted proxy takes its counters over
