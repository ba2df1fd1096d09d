"""How long this process itself stood still: silence of others in that time says nothing about them.

A process without CPU, or stopped, finds all deadlines passed at its first tick, and the heartbeats that came meanwhile
unread in its sockets. Invariant: only what exceeds twice the interval between ticks counts as a pause, so that ordinary
lateness moves no deadline. Pure: time comes in as a number of milliseconds that only grows.
"""

from __future__ import annotations


class OwnPause:
    """Watches the ticks of one table of deadlines."""

    __slots__ = ("_interval_ms", "_last_ms")

    def __init__(self, interval_ms: int) -> None:
        """`interval_ms`: how often `tick` is called by a process that runs; 0: pauses are not looked for."""
        self._interval_ms = interval_ms
        self._last_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        """There is something to watch over from now on: a pause may come before the first tick."""
        if self._last_ms is None:
            self._last_ms = now_ms

    def tick(self, now_ms: int) -> int:
        """Milliseconds by which this tick came too late because the process stood still."""
        last_ms, self._last_ms = self._last_ms, now_ms
        if last_ms is None or not self._interval_ms:
            return 0
        late_ms = now_ms - last_ms - self._interval_ms
        return late_ms if late_ms > self._interval_ms else 0
