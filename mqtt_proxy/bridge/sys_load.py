"""Load averages as Mosquitto's users know them: how many per minute, over about 1, 5 and 15 minutes.

Each is an exponentially weighted mean of the rate between two samples; after the window's length two thirds of it come
from within the window. Invariant: the first sample gives rates of 0, time that stands still changes nothing. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

WINDOWS_MIN = (1, 5, 15)


class Loads:
    """Rates of counters that only go up, by name."""

    def __init__(self) -> None:
        self._seen_ms: int | None = None
        self._counts: dict[str, float] = {}
        self._means: dict[tuple[str, int], float] = {}

    def sample(self, counts: Mapping[str, float], now_ms: int) -> None:
        """Take in what the counters say now."""
        if self._seen_ms is not None and now_ms <= self._seen_ms:
            return
        minutes = 0.0 if self._seen_ms is None else (now_ms - self._seen_ms) / 60_000
        for name, count in counts.items():
            rate = (count - self._counts.get(name, count)) / minutes if minutes else 0.0
            for window in WINDOWS_MIN:
                mean = self._means.get((name, window), 0.0)
                self._means[name, window] = rate + (mean - rate) * math.exp(-minutes / window)
        self._counts = dict(counts)
        self._seen_ms = now_ms

    def items(self) -> Iterator[tuple[str, int, float]]:
        """Yield (name, window in minutes, number per minute)."""
        for (name, window), mean in self._means.items():
            yield name, window, mean
