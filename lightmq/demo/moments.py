"""What happened when in one run: named moments since its beginning, for the terminal, the picture and programs.

Invariant: moments are in the order of time, and a name that comes again keeps every time. Thread rule: the main thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened: seconds since the beginning, and the wall clock in milliseconds since 1970."""

    name: str
    at_s: float
    time_ms: int


class Moments:
    """The moments of one run; it begins when this is made."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun_ns = clock.monotonic_ns()
        self.begun_ms = clock.now_ms()
        self.all: list[Moment] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return (self._clock.monotonic_ns() - self._begun_ns) / 1e9

    def add(self, name: str) -> float:
        """Note that it happened now; return the seconds since the beginning."""
        moment = Moment(name, self.elapsed_s, self._clock.now_ms())
        self.all.append(moment)
        return moment.at_s

    def has(self, name: str) -> bool:
        """Whether it has happened."""
        return any(moment.name == name for moment in self.all)

    def seconds(self) -> dict[str, float]:
        """When each happened first."""
        found: dict[str, float] = {}
        for moment in self.all:
            found.setdefault(moment.name, round(moment.at_s, 2))
        return found
