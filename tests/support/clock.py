"""A clock for tests: it stands still until the test moves it, and belongs to that test."""

from __future__ import annotations


class ManualClock:
    """A clock that stands still until it is moved."""

    __slots__ = ("_monotonic_ns", "_wall_ms")

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_ns: int = 0) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ns = monotonic_ns

    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970-01-01 UTC."""
        return self._wall_ms

    def now_ns(self) -> int:
        """The same in nanoseconds."""
        return self._wall_ms * 1_000_000

    def monotonic_ns(self) -> int:
        """Nanoseconds since the clock was made, plus its start value."""
        return self._monotonic_ns

    def advance_ms(self, milliseconds: int) -> None:
        """Move both readings forward; a negative step is a bug of the caller."""
        assert milliseconds >= 0, milliseconds
        self._wall_ms += milliseconds
        self._monotonic_ns += milliseconds * 1_000_000

    def set_wall_ms(self, wall_ms: int) -> None:
        """Let the wall clock jump, as an administrator or NTP may do."""
        self._wall_ms = wall_ms
