"""Requests that a port was asked and does not know: counted by code for the metrics page, and logged now and then.

The label `code` is one of RocketMQ's or our own numbers, everything else counts as `other`; so a peer that tries all
numbers cannot make the page grow. The log names the client's language and version, because it is clients that have to
be told: at most one line per code and `LOG_INTERVAL_S`. Thread rule: the loop's thread.
"""

from __future__ import annotations

from typing import Any

from remoting.protocol.frames.codes import NAMES, request_name
from remoting.protocol.frames.commands import Command
from runtime.clock import Clock
from runtime.metrics import Registry

LOG_INTERVAL_S = 60
OTHER = "other"


class UnsupportedRequests:
    """Hears of each request without a handler."""

    def __init__(self, registry: Registry, clock: Clock, log: Any) -> None:
        self._counter = registry.counter(
            "rocketmq_unsupported_requests_total",
            "Requests refused because nothing here answers their code",
            labels=("code",),
        )
        self._clock = clock
        self._log = log
        self._logged: dict[str, tuple[int, int]] = {}

    def heard(self, address: str, command: Command) -> None:
        """One more of them, from the client at this address."""
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
