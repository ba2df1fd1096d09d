"""Reads the few figures that the view shows from the servers' metrics pages.

Invariant: a page that does not answer leaves the last figures as they were; the demo never fails because of its view.
"""

from __future__ import annotations

import http.client
from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 1.0
MESSAGES_IN = "rocketmq_messages_in_total"
MESSAGES_OUT = "rocketmq_messages_out_total"
CONFIRM_LAG = "rocketmq_confirm_lag_bytes"


def fetch(port: int) -> str:
    """Text of one metrics page; empty when it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except OSError:
        return ""
    finally:
        connection.close()


def totals(text: str) -> dict[str, float]:
    """Sum of the samples of each name."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


class BrokerFigures:
    """Messages in, messages out and bytes not yet durable, over all servers of the stack."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        self._last: tuple[int, int, int] = (0, 0, 0)

    def read(self) -> tuple[int, int, int]:
        """Read the pages once."""
        sums: dict[str, float] = {}
        for port in self._ports:
            for name, value in totals(fetch(port)).items():
                sums[name] = sums.get(name, 0.0) + value
        if sums:
            self._last = (int(sums.get(MESSAGES_IN, 0)), int(sums.get(MESSAGES_OUT, 0)), int(sums.get(CONFIRM_LAG, 0)))
        return self._last
