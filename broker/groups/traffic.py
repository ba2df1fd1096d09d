"""How many messages each consumer group was given: in the last minute, hour and day since the start of this broker.

A few buckets per span, so that one answer costs the same however many there were. What is put into a topic is read from
the log itself (its offsets by time). Invariant: a group and topic without an answer for a day are dropped. Time comes
in. Loop thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
SPANS_MS = (MINUTE_MS, HOUR_MS, DAY_MS)
BUCKETS = 12
"""Buckets of a span: a count leaves it up to one of them late."""
MILLISECONDS = 1_000


@dataclass(slots=True)
class TrafficCount:
    """Messages and bytes given, in how many answers."""

    messages: int = 0
    size_bytes: int = 0
    answers: int = 0


class _Window:
    """What was given within one span."""

    __slots__ = ("_bucket_ms", "_buckets", "_span_ms")

    def __init__(self, span_ms: int) -> None:
        self._span_ms = span_ms
        self._bucket_ms = span_ms // BUCKETS
        self._buckets: deque[tuple[int, TrafficCount]] = deque()

    def add(self, now_ms: int, messages: int, size_bytes: int) -> None:
        start_ms = now_ms - now_ms % self._bucket_ms
        if not self._buckets or self._buckets[-1][0] != start_ms:
            self._drop(now_ms)
            self._buckets.append((start_ms, TrafficCount()))
        counted = self._buckets[-1][1]
        counted.messages += messages
        counted.size_bytes += size_bytes
        counted.answers += 1

    def total(self, now_ms: int) -> TrafficCount:
        self._drop(now_ms)
        found = TrafficCount()
        for _start_ms, counted in self._buckets:
            found.messages += counted.messages
            found.size_bytes += counted.size_bytes
            found.answers += counted.answers
        return found

    def _drop(self, now_ms: int) -> None:
        """Drop buckets that have left the span, and those a clock set back has put into the future."""
        while self._buckets and not 0 <= now_ms - self._buckets[0][0] < self._span_ms:
            self._buckets.popleft()


class GroupTraffic:
    """Messages given to groups, by group and topic."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str], tuple[_Window, ...]] = {}
        self._forgotten_ms = 0

    def gave(self, group: str, topic: str, now_ms: int, messages: int, size_bytes: int) -> None:
        """A group was given messages of a topic."""
        windows = self._windows.get((group, topic))
        if windows is None:
            windows = self._windows[group, topic] = tuple(map(_Window, SPANS_MS))
        for window in windows:
            window.add(now_ms, messages, size_bytes)

    def totals(self, group: str, topic: str, now_ms: int) -> tuple[TrafficCount, ...] | None:
        """What a group was given of a topic, for each of `SPANS_MS`; None when it was given nothing for a day."""
        windows = self._windows.get((group, topic))
        return None if windows is None else tuple(window.total(now_ms) for window in windows)

    def per_second(self, group: str, topic: str, now_ms: int) -> float:
        """Messages per second over the last minute."""
        windows = self._windows.get((group, topic))
        return windows[0].total(now_ms).messages * MILLISECONDS / MINUTE_MS if windows is not None else 0.0

    def expire(self, now_ms: int) -> None:
        """Drop groups that were given nothing for a day; checks once a minute."""
        if 0 <= now_ms - self._forgotten_ms < MINUTE_MS:
            return
        self._forgotten_ms = now_ms
        for key in list(self._idle(now_ms)):
            del self._windows[key]

    def _idle(self, now_ms: int) -> Iterator[tuple[str, str]]:
        return (key for key, windows in self._windows.items() if not windows[-1].total(now_ms).answers)
