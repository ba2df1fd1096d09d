"""Rates from counters that only grow, by broker process.

Invariant: a rate is that of an interval of at least `INTERVAL_S_MIN`; a process whose counters were seen once, or that
was started again, has none yet. Pure; times in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.reasons import REFUSALS

COUNTED = {
    "messages_in": ("status", "store.messages_total"),
    "messages_out": ("metrics", "rocketmq_messages_out_total"),
    "bytes_in": ("status", "store.bytes_total"),
}
"""Figure -> where its counter is in an answer to METRICS."""
REFUSING = tuple(REFUSALS)
"""Beginnings of the names of counters of what was refused or dropped."""

INTERVAL_S_MIN = 0.5
"""Counters that are seen sooner after the last ones are left to the next look."""


class CounterRates:
    """Rates of the counters of some brokers."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], tuple[int, float, float]] = {}
        """(broker, name) -> start of its process, time, value."""
        self._rates: dict[tuple[str, str], float] = {}

    def take(self, broker: str, started_ms: int, metrics: Mapping[str, float], status: Any, now_s: float) -> None:
        """Note a broker's counters."""
        for figure, (table, path) in COUNTED.items():
            self._note(broker, started_ms, figure, _at(status if table == "status" else metrics, path), now_s)
        for name, value in metrics.items():
            if name.startswith(REFUSING):
                self._note(broker, started_ms, name, value, now_s)

    def rate(self, broker: str, figure: str) -> float:
        """Return the rate of one counter per second, 0 while it is not known."""
        return self._rates.get((broker, figure), 0.0)

    def total(self, figure: str) -> float | None:
        """Return the rate over all brokers whose rate is known; None while there is none."""
        known = [rate for (_, name), rate in self._rates.items() if name == figure]
        return round(sum(known), 2) if known else None

    def _note(self, broker: str, started_ms: int, name: str, value: float, now_s: float) -> None:
        key = (broker, name)
        before = self._counters.get(key)
        if before is not None and before[0] == started_ms and now_s - before[1] < INTERVAL_S_MIN:
            return
        self._counters[key] = started_ms, now_s, value
        if before is None or before[0] != started_ms:
            self._rates.pop(key, None)
            return
        self._rates[key] = max(0.0, value - before[2]) / (now_s - before[1])


def refusals(rates: CounterRates, brokers: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return every counter of refusals that is not 0, with its rate, summed over the brokers."""
    found: dict[str, tuple[float, float]] = {}
    for broker, answer in brokers.items():
        for name, value in answer["metrics"].items():
            if value and name.startswith(REFUSING):
                total, rate = found.get(name, (0.0, 0.0))
                found[name] = total + value, rate + rates.rate(broker, name)
    return found


def _at(table: Any, path: str) -> float:
    for name in path.split("."):
        table = table.get(name, 0) if isinstance(table, Mapping) else 0
    return float(table)
