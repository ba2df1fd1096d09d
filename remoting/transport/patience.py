"""Time limits that measure the peer alone: time in which this side's loop was late is not charged to it.

    PatientTimer   one limit, in steps: how late a step comes is not counted      a handshake, a request
    late_s         for a sweep over many limits: how late it comes                frames, silent connections

Invariant: a peer has at least the time of its limit less one step in which this side could serve it. Loop rule: on the
loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

STEPS = 4
"""Steps of a timer, of equal length."""
LATE_S = 0.2
"""From what on a sweep is late; a busy loop is always a little."""


class PatientTimer:
    """Calls back when a peer has had its time."""

    __slots__ = ("_callback", "_left", "_loop", "_step_s", "_timer")

    def __init__(self, seconds: float, callback: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._step_s = seconds / STEPS
        self._left = STEPS
        self._timer = self._loop.call_later(self._step_s, self._over)

    def cancel(self) -> None:
        """End without a call: what was waited for has come."""
        self._timer.cancel()

    def _over(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(self._step_s, self._over)
        else:
            self._callback()


def late_s(due_s: float, now_s: float) -> float:
    """How late a sweep is that was due at a time, 0 when it is not."""
    return now_s - due_s if now_s - due_s >= LATE_S else 0.0
