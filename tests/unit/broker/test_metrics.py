"""The names on the metrics page and their sources."""

from __future__ import annotations

from broker.metrics import BrokerMetrics, watch_store
from runtime.metrics import Registry


def test_gauges_read_the_store(bench) -> None:
    registry = Registry()
    metrics = BrokerMetrics(registry)
    watch_store(registry, bench.store)
    metrics.messages_in.value += 2
    bench.store.queues.open(b"q")
    values = registry.values()
    assert values["rocketmq_messages_in_total"] == 2
    assert values["rocketmq_storage_bytes"] == bench.store.end_position > 0
    bench.settle()
    assert registry.values()["rocketmq_confirm_lag_bytes"] == 0
    assert b"rocketmq_flush_behind_bytes" in registry.page()[1]


def test_expired_records_are_counted_by_reason(bench, monkeypatch) -> None:
    """Totals of the store become counters with a reason."""
    registry = Registry()
    metrics = BrokerMetrics(registry)
    found = {**bench.store.metrics(), "segments_expired_size_bytes_total": 7, "topics_expired_age_messages_total": 3}
    monkeypatch.setattr(type(bench.store), "metrics", lambda _self: {**found, "retention_cut_short_bytes_total": 5})
    metrics.read_store(bench.store)
    metrics.read_store(bench.store)
    page = registry.page()[1].decode()
    assert 'rocketmq_expired_bytes_total{reason="size"} 7' in page
    assert 'rocketmq_expired_messages_total{reason="age"} 3' in page
    assert "rocketmq_retention_cut_short_bytes_total 5" in page
