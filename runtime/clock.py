"""Time as an object that is handed in; `remoting.clock` reads it.

Everything that depends on the time gets a :class:`Clock`, so that tests and simulations control the time.
Invariant: ``monotonic_ns`` never goes back; ``now_ms`` is wall time since the epoch and may jump. Thread rule: a
:class:`SystemClock` may be shared by all threads.
"""

from __future__ import annotations

from typing import Protocol

from remoting import clock


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

    monotonic_ns = staticmethod(clock.monotonic_ns)
    """Called with every read of a socket, so it is the function itself without a wrapper, like the next one."""
    now_ns = staticmethod(clock.now_ns)

    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970-01-01 UTC."""
        return clock.now_ms()
