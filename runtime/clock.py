"""Time, the one module that reads it.

Everything that needs the time is handed a :class:`Clock`, so that tests and simulations decide what time it is.
Invariant: ``monotonic_ns`` never goes back; ``now_ms`` is wall time since the epoch and may jump. Thread rule: a
:class:`SystemClock` may be shared by all threads, a :class:`ManualClock` belongs to the test that moves it.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The source of time of a component."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970-01-01 UTC."""
        ...

    def now_ns(self) -> int:
        """The same in nanoseconds, for callers that need it with every message."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary moment; never goes back."""
        ...


class SystemClock:
    """The clock of the machine."""

    __slots__ = ()

    monotonic_ns = staticmethod(time.monotonic_ns)
    """Asked for with every read of a socket, so there is no call of ours around it; nor around the next."""
    now_ns = staticmethod(time.time_ns)

    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000


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
