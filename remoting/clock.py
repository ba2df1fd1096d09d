"""The machine's clocks: the one module of the product that reads them.

    from remoting import clock
    begun_ns = clock.monotonic_ns()

Objects that are handed a `runtime.clock.Clock` use that; everything else reads here. A simulation or a test replaces a
clock by assigning another function to its name. Invariant: nothing keeps one of these functions, by importing its name
or otherwise, because it would not be replaced (`tests/arch/test_clock.py`): callers look it up with each read, which
costs as much as `time.monotonic_ns()` does. `monotonic_*` never goes back; `now_*` is wall time and may jump. It stands
below all packages: remoting and the connector read clocks too, and import no `runtime`. Thread rule: any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

monotonic_ns: Callable[[], int] = time.monotonic_ns
"""Nanoseconds since an arbitrary moment."""
monotonic_s: Callable[[], float] = time.monotonic
"""Seconds since the same moment."""
now_ns: Callable[[], int] = time.time_ns
"""Nanoseconds since 1970-01-01 UTC."""


def now_ms() -> int:
    """Milliseconds since 1970-01-01 UTC."""
    return now_ns() // 1_000_000
