"""The front's counters are declared with valid, distinct names."""

from __future__ import annotations

from mqtt_proxy.listening.counters import FrontCounters
from runtime.metrics import Registry


def test_declared_once_and_again() -> None:
    """A second front in one process shares the counters of the first."""
    registry = Registry()
    first, second = FrontCounters(registry), FrontCounters(registry)
    first.refused.child("connections_max").value += 1
    assert second.refused.child("connections_max").value == 1
    names = {getattr(first, slot).name for slot in FrontCounters.__slots__}
    assert len(names) == len(FrontCounters.__slots__)
