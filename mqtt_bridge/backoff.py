"""How long to wait before the next attempt: doubling pauses with a spread, short again after success.

Invariant: a pause is at least half of its step and at most the step, so that many bridges do not dial in time with each
other. Pure; the spread comes from outside.
"""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Pauses in milliseconds, from `first_ms` to `last_ms`."""

    def __init__(self, first_ms: int, last_ms: int, spread: Callable[[], float]) -> None:
        """`spread` gives numbers 0..1."""
        self._first_ms = min(first_ms, last_ms)
        self._last_ms = last_ms
        self._step_ms = self._first_ms
        self._spread = spread

    def succeeded(self) -> None:
        """The next failure is a first one."""
        self._step_ms = self._first_ms

    def pause_ms(self) -> float:
        """How long to wait now."""
        step_ms, self._step_ms = self._step_ms, min(2 * self._step_ms, self._last_ms)
        return step_ms * (0.5 + 0.5 * self._spread())
