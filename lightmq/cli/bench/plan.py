"""What load is wanted, when each message is due, and when to stop waiting for the rest.

Invariant: messages are sent at the times of an even rate, and what could not be sent in time is sent as soon as it can
be, so a slow server shows as a lower rate and longer latencies, never as a load that was not offered. Pure.
"""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

from remoting import clock

TURN_S = 0.002
"""Pause between two looks at what is due."""
WINDOW = 256
"""Unanswered messages of a publisher with a rate of 0, which sends as fast as it is answered."""
WINDOW_MAX = 10_000
"""The same of one with a rate: what it holds when the server does not keep up."""
DRAIN_S = 5.0
"""How long nothing may arrive before what is missing counts as lost."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The load: `rate` in messages a second of all publishers together, 0: as fast as they are answered."""

    publishers: int
    subscribers: int
    rate: float
    seconds: float
    size_bytes: int
    topic: str
    run: int = field(default_factory=lambda: secrets.randbits(63))

    def upto(self, passed_s: float, sent: int, unanswered: int) -> int:
        """The number of messages that should have been sent by now, as far as a window has room for them."""
        window = self.publishers * (WINDOW_MAX if self.rate else WINDOW)
        room = sent + window - unanswered
        if not self.rate:
            return room if passed_s < self.seconds else sent
        return min(room, int(passed_s * self.rate) + 1, round(self.seconds * self.rate))


def announce(plan: LoadPlan) -> None:
    """Say on standard error that the sending begins."""
    pace = f"{plan.rate:,g} messages a second" if plan.rate else "as fast as it is acknowledged"
    sys.stderr.write(f"sending to {plan.topic} for {plan.seconds:g} s, {pace}; Ctrl-C ends early\n")
    sys.stderr.flush()


@contextmanager
def ended_by_ctrl_c() -> Iterator[Event]:
    """An event that Ctrl-C sets instead of its usual effect, so that no message is cut off in the middle."""
    ended = Event()
    before = signal.signal(signal.SIGINT, lambda *_: ended.set())
    try:
        yield ended
    finally:
        signal.signal(signal.SIGINT, before)


class Drain:
    """Says when to stop waiting for messages: all are there, or none has come for too long."""

    def __init__(self, left: Callable[[], int]) -> None:
        self._left = left
        self._before = -1
        self._until_s = 0.0

    def over(self) -> bool:
        """Whether to wait no longer."""
        left, now_s = self._left(), clock.monotonic_s()
        if left <= 0:
            return True
        if left != self._before:
            self._before, self._until_s = left, now_s + DRAIN_S
        return now_s >= self._until_s
