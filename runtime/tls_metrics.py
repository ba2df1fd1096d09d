"""What TLS of a remoting port did, on the metrics page.

Invariant: read when the page is made; nothing is counted twice. Thread rule: the loop's thread.
"""

from __future__ import annotations

from typing import Protocol

from runtime.metrics import Registry


class TlsCounted(Protocol):
    """A port that counts: the remoting server."""

    def tls_counts(self) -> tuple[int, int, int, int]:
        """Connections on which TLS began, on which it failed; certificates taken into use again, not usable."""
        ...


NAMES = (
    ("rocketmq_remoting_tls_handshakes_total", "Connections at the remoting port on which TLS began, since the start"),
    ("rocketmq_remoting_tls_failures_total", "Connections closed because TLS was not agreed upon or was broken"),
    ("rocketmq_remoting_certificate_reloads_total", "Times the certificate of the remoting port was read again"),
    ("rocketmq_remoting_certificate_failures_total", "Times it could not be used; the old one stayed"),
)


def declare_tls_metrics(registry: Registry, server: TlsCounted) -> None:
    """Show the counts of a server; one per registry."""
    for at, (name, text) in enumerate(NAMES):
        registry.counter(name, text, function=lambda at=at: server.tls_counts()[at])  # type: ignore[misc]
