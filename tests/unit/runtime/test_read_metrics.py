"""The counts of a port's unfinished requests are on the page."""

from __future__ import annotations

from runtime.metrics import Registry
from runtime.read_metrics import NAMES, declare_read_metrics


class Port:
    def read_counts(self) -> dict[str, int]:
        return {key: at for at, key in enumerate(NAMES, 1)}


def test_every_count_is_shown() -> None:
    registry = Registry()
    declare_read_metrics(registry, Port())
    page = registry.page().decode()
    for at, (name, _) in enumerate(NAMES.values(), 1):
        assert f"\nrocketmq_remoting_read_{name} {at}" in page
