"""The wall clock of a task: the one place where the connector reads what time it is.

It is the publisher's clock, as `born_ms` asks for; the broker adds its own store time. Pauses and deadlines use the
monotonic clock where they are. Thread rule: any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Returns milliseconds since 1970."""


def wall_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000
