"""What every remoting port shows on the metrics page: TLS, unfinished frames, requests that nothing here answers.

Invariant: counts are read when the page is made; nothing is counted twice. The label `code` of an unsupported request
is one of RocketMQ's or our own numbers and `other` for the rest, so a peer that tries all numbers cannot make the page
grow. Thread rule: the loop's thread.
"""

from __future__ import annotations

from typing import Any, Protocol

from remoting.protocol.frames.codes import NAMES, request_name
from remoting.protocol.frames.commands import Command
from runtime.clock import Clock
from runtime.metrics import Registry

TLS = (
    ("tls_handshakes_total", "Connections at the remoting port on which TLS began, since the start"),
    ("tls_failures_total", "Connections closed because TLS was not agreed upon or was broken"),
    ("certificate_reloads_total", "Times the certificate of the remoting port was read again"),
    ("certificate_failures_total", "Times it could not be used; the old one stayed"),
)
"""In the order of `PortCounts.tls_counts`."""
READ = {
    "proved": ("reserved_bytes", "Bytes reserved for requests that arrive, of peers that need no more proof"),
    "unproven": ("unproven_bytes", "Bytes held of requests that arrive, of peers that have proved no key"),
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
    "silent": ("cut_silent_total", "Connections cut: no key proved, and silent for too long"),
    "slow": ("cut_slow_total", "Connections cut: a request arrived too slowly"),
}
"""By the keys of `PortCounts.read_counts`."""
LOG_INTERVAL_S = 60
OTHER = "other"


class PortCounts(Protocol):
    """The remoting server's counts."""

    def tls_counts(self) -> tuple[int, int, int, int]:
        """Connections on which TLS began, on which it failed; certificates taken into use again, not usable."""
        ...

    def read_counts(self) -> dict[str, int]:
        """Bytes of unfinished frames now, by whether the peer proved a key, and connections cut, by reason."""
        ...


def declare_port_metrics(registry: Registry, server: PortCounts) -> None:
    """Show the counts of a server; at most one server per registry."""
    for at, (name, text) in enumerate(TLS):
        registry.counter(
            f"rocketmq_remoting_{name}",
            text,
            function=lambda at=at: server.tls_counts()[at],  # type: ignore[misc]
        )
    for key, (name, text) in READ.items():
        declare = registry.counter if name.endswith("_total") else registry.gauge
        declare(
            f"rocketmq_remoting_read_{name}",
            text,
            function=lambda key=key: server.read_counts()[key],  # type: ignore[misc]
        )


class UnsupportedRequests:
    """Counts each request without a handler, and logs one line per code and `LOG_INTERVAL_S` for the operator."""

    def __init__(self, registry: Registry, clock: Clock, log: Any) -> None:
        self._counter = registry.counter(
            "rocketmq_unsupported_requests_total",
            "Requests refused because nothing here answers their code",
            labels=("code",),
        )
        self._clock = clock
        self._log = log
        self._logged: dict[str, tuple[int, int]] = {}

    def record(self, address: str, command: Command) -> None:
        """Count a request from the client at this address."""
        label = str(command.code) if command.code in NAMES else OTHER
        child = self._counter.child(label)
        child.value += 1
        now_s = self._clock.monotonic_ns() // 1_000_000_000
        last_s, count = self._logged.get(label, (now_s - LOG_INTERVAL_S, 0))
        if now_s - last_s >= LOG_INTERVAL_S:
            self._logged[label] = now_s, child.value
            self._log.warning(
                "request_not_supported", code=command.code, name=request_name(command.code), client=address,
                language=command.language, version=command.version, since_last=child.value - count,
            )  # fmt: skip
