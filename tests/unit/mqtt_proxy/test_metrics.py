"""Counters have valid, distinct names, are shared within a process, and rare ones are distinguished by reason."""

from __future__ import annotations

import pytest

from mqtt_proxy.metrics import AccessCounters, FrontCounters, ProxyMetrics
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
    ProxyMetrics(registry)  # a restarted proxy reuses its counters


@pytest.mark.parametrize(
    ("kind", "counter", "labels"),
    [(FrontCounters, "refused", ("connections_max",)), (AccessCounters, "denials", ("publish", "no_rule"))],
)
def test_declared_once_and_again(
    kind: type[FrontCounters | AccessCounters], counter: str, labels: tuple[str, ...]
) -> None:
    """A second listener or gate in one process shares the counters of the first."""
    registry = Registry()
    first, second = kind(registry), kind(registry)
    getattr(first, counter).child(*labels).value += 1
    assert getattr(second, counter).child(*labels).value == 1
    names = {getattr(first, slot).name for slot in kind.__slots__}
    assert len(names) == len(kind.__slots__)
