"""The counters of access control are declared with valid, distinct names."""

from __future__ import annotations

from mqtt_proxy.access.counters import AccessCounters
from runtime.metrics import Registry


def test_declared_once_and_again() -> None:
    """A second gate in one process shares the counters of the first."""
    registry = Registry()
    first, second = AccessCounters(registry), AccessCounters(registry)
    first.denials.child("publish", "no_rule").value += 1
    assert second.denials.child("publish", "no_rule").value == 1
    names = {getattr(first, slot).name for slot in AccessCounters.__slots__}
    assert len(names) == len(AccessCounters.__slots__)
