"""What unfinished frames cost a remoting port, and whose connections were cut for them, on the metrics page.

Invariant: read when the page is made; nothing is counted twice. Thread rule: the loop's thread.
"""

from __future__ import annotations

from typing import Protocol

from runtime.metrics import Registry


class ReadCounted(Protocol):
    """A port that counts: the remoting server."""

    def read_counts(self) -> dict[str, int]:
        """Bytes of unfinished frames now, by whose they are, and connections cut, by reason."""
        ...


NAMES = {
    "proved": (
        "reserved_bytes",
        "Bytes reserved for requests that arrive, of peers that need no more proof",
    ),
    "unproven": (
        "unproven_bytes",
        "Bytes held of requests that arrive, of peers that have proved no key",
    ),
    "unproven_connection": (
        "cut_unproven_connection_total",
        "Connections cut: too much without a key for one connection",
    ),
    "unproven_address": ("cut_unproven_address_total", "Connections cut: too much without a proof for one address"),
    "unproven_total": ("cut_unproven_all_total", "Connections cut: too much without a proof in all"),
    "budget": ("cut_budget_total", "Connections cut: too many waited for room to read"),
    "deadline": ("cut_deadline_total", "Connections cut: a request was not finished in time"),
    "foreign": ("cut_foreign_total", "Connections closed: they spoke HTTP, gRPC or MQTT"),
    "refusals": ("cut_refusals_total", "Connections cut: refused again and again without a proved key"),
    "silent": ("cut_silent_total", "Connections cut: no key proved, and nothing said for too long"),
    "slow": ("cut_slow_total", "Connections cut: a request arrived too slowly"),
}


def declare_read_metrics(registry: Registry, server: ReadCounted) -> None:
    """Show the counts of a server; one per registry."""
    for key, (name, text) in NAMES.items():
        declare = registry.counter if name.endswith("_total") else registry.gauge
        declare(
            f"rocketmq_remoting_read_{name}",
            text,
            function=lambda key=key: server.read_counts()[key],  # type: ignore[misc]
        )
