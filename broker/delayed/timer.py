"""Wakes the waiting messages: runs `Delayed.due` when something is due, or when what was put has been confirmed.

Invariant: one pass at a time, a bounded piece of work each; between two passes everybody else has a turn. What gathers
for the next append is appended before a pass, because `Delayed` must know of all that was put. A pass that fails is
tried again and told. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from remoting.protocol.errors import LightMQError

if TYPE_CHECKING:
    from broker.delayed.delayed import Delayed
    from broker.metrics import BrokerMetrics
    from broker.publishing.append import Appender
    from runtime.clock import Clock

PAUSE_S_MAX = 1.0
"""Longest sleep: the wall clock may be set meanwhile."""
PAUSE_S_MIN = 0.005
"""Shortest sleep while something is due that others still hold up."""
RETRY_S = 1.0


class DelayTimer:
    """The clockwork around the waiting messages of one broker."""

    def __init__(self, delayed: Delayed, appender: Appender, clock: Clock, metrics: BrokerMetrics, log: Any) -> None:
        self._delayed = delayed
        self._appender = appender
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._timer: asyncio.Handle | None = None
        self._soon = False
        self._stopped = True

    def start(self) -> None:
        """Begin; what became due while the broker was away goes first."""
        self._stopped = False
        self._plan(0)

    def stop(self) -> None:
        """Make no further pass; one that is under way has ended, because both run on the loop."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def advanced(self, queue_ids: Sequence[int]) -> None:
        """The confirmed ends of these queues moved."""
        queues = self._delayed.queues
        if queues and not self._soon and not self._stopped and not queues.isdisjoint(queue_ids):
            self._plan(0)

    def _plan(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._soon = not pause_s
        self._timer = loop.call_later(pause_s, self._pass) if pause_s else loop.call_soon(self._pass)

    def _pass(self) -> None:
        if self._stopped:
            return
        self._soon = False
        now_ms = self._clock.now_ms()
        try:
            self._appender.flush()
            more = self._delayed.due(now_ms)
        except LightMQError as error:
            self._metrics.delayed_failures.value += 1
            self._log.error("delayed_not_delivered", error=str(error), retry_s=RETRY_S)
            self._plan(RETRY_S)
            return
        except BaseException:
            self._plan(RETRY_S)  # a fault of ours is reported by the loop, and stops nobody's messages
            raise
        if more:
            self._plan(0)
            return
        due_ms = self._delayed.next_due_ms()
        pause_s = PAUSE_S_MAX if due_ms is None else (due_ms - now_ms) / 1_000
        self._plan(min(max(pause_s, PAUSE_S_MIN), PAUSE_S_MAX))
