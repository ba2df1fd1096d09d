"""Messages per second over the last 10 s, 60 s and 600 s, and per day, from counters that are looked at now and then.

Invariant: at most one sample a second is kept, for `SPAN_S`; a rate counts what came between the oldest sample of its
span and the newest, so it is right whatever the pauses between samples were. Pure: time comes in.
"""

from __future__ import annotations

from collections import deque

SPANS_S = (10, 60, 600)
SPAN_S = SPANS_S[-1]
DAY_MS = 86_400_000


class Rates:
    """Rates of one counter since the start of the process."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=SPAN_S + 1)
        self._day = 0
        self.yesterday_morning = 0
        """The counter when yesterday began (UTC), 0 before the start."""
        self.today_morning = 0
        """The same of today."""

    def sample(self, now_ms: int, count: int) -> None:
        """The counter as it is now."""
        day = now_ms // DAY_MS
        if self._samples and day != self._day:
            self.yesterday_morning = self.today_morning if day == self._day + 1 else count
            self.today_morning = count
        self._day = day
        if not self._samples or now_ms - self._samples[-1][0] >= 1_000 or now_ms < self._samples[-1][0]:
            self._samples.append((now_ms, count))

    def per_second(self) -> tuple[float, ...]:
        """One rate for each of `SPANS_S`."""
        return tuple(self._over(span_s) for span_s in SPANS_S)

    def _over(self, span_s: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        newest_ms, newest = self._samples[-1]
        for at_ms, count in self._samples:
            if 0 < newest_ms - at_ms <= span_s * 1_000:
                return (newest - count) * 1_000 / (newest_ms - at_ms)
        return 0.0
