"""The names on the metrics page and what they read."""

from __future__ import annotations

from broker.metrics import BrokerMetrics
from runtime.metrics import Registry


def test_gauges_read_the_store(bench) -> None:
    registry = Registry()
    metrics = BrokerMetrics(registry)
    metrics.watch_store(bench.store)
    metrics.messages_in.value += 2
    bench.store.open_queue(b"q")
    values = registry.values()
    assert values["rocketmq_messages_in_total"] == 2
    assert values["rocketmq_storage_bytes"] == bench.store.end_position > 0
    bench.settle()
    assert registry.values()["rocketmq_confirm_lag_bytes"] == 0
    assert b"rocketmq_flush_behind_bytes" in registry.page()
