"""Each figure of TLS under its name."""

from __future__ import annotations

from runtime.metrics import Registry
from runtime.tls_metrics import NAMES, declare_tls_metrics


class Port:
    counts = (0, 0, 0, 0)

    def tls_counts(self) -> tuple[int, int, int, int]:
        return self.counts


def test_what_the_port_counts_is_shown_as_it_is_now() -> None:
    """Read anew for each page."""
    registry, port = Registry(), Port()
    declare_tls_metrics(registry, port)
    port.counts = (5, 2, 1, 3)
    assert [registry.values()[name] for name, _ in NAMES] == [5, 2, 1, 3]
