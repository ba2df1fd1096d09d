"""Delayed messages as one feature: where they wait, what sends them there, and the timer that wakes them.

The timer runs `Delayed.due` when something is due, or when what was put has been confirmed.
Invariant: one pass at a time, a bounded piece of work each; between two passes everybody else has a turn. What gathers
for the next append is appended before a pass, because `Delayed` must know of all that was put. A pass that fails is
logged and tried again. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from broker.delayed.delayed import Delayed
from broker.delayed.due import Diversion
from broker.requests.tools import Feature, RequestTools
from remoting.protocol.errors import LightMQError

if TYPE_CHECKING:
    from broker.metrics import BrokerMetrics
    from broker.publishing.append import Appender
    from broker.publishing.placement import Placement
    from runtime.clock import Clock
    from runtime.metrics import Registry

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
        queues = self._delayed.buckets.queues
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


class DelayedFeature(Feature):
    """Messages that are delivered later, however they came."""

    def __init__(
        self, tools: RequestTools, placement: Placement, appender: Appender, hidden: set[int], registry: Registry
    ) -> None:
        """`hidden`: queues no reader gets an answer for; those of the waiting messages are added."""
        config, store = tools.config, tools.store
        self.messages = Delayed(
            store,
            placement,
            hidden,
            delay_ms_max=config.delay_s_max * 1_000,
            messages_max=config.limits.delayed_messages_max,
            now_ms=tools.identity.started_ms,
            log=tools.log,
        )
        diversion = Diversion(self.messages, tools.clock)
        placement.divert, placement.check_wait = diversion.divert, diversion.check
        self._timer = DelayTimer(self.messages, appender, tools.clock, tools.metrics, tools.log)
        store.retention.keep_from = self.messages.keep_from
        store.positions.on_advance(self._timer.advanced, self.messages.buckets.queues)
        declare_metrics(registry, self.messages)

    def start(self) -> None:
        """Begin to deliver; what became due while the broker was away goes first."""
        self._timer.start()

    def stop(self) -> None:
        """Deliver nothing more."""
        self._timer.stop()


def declare_metrics(registry: Registry, messages: Delayed) -> None:
    """Declare what the waiting messages count themselves."""
    counter, gauge = registry.counter, registry.gauge
    gauge("rocketmq_delayed_messages", "Messages that wait for their time", function=lambda: messages.waiting)
    counter(
        "rocketmq_delayed_delivered_messages_total",
        "Messages delivered at their time since the start",
        function=lambda: messages.delivered,
    )
    counter(
        "rocketmq_delayed_carried_messages_total",
        "Delayed messages written again since the start because retention reached them",
        function=lambda: messages.carried,
    )
    lost = counter("rocketmq_delayed_lost_messages_total", "Waiting messages that could not be delivered", ("reason",))
    lost.child("undeliverable", function=lambda: messages.undeliverable)
    lost.child("unreadable", function=lambda: messages.unreadable)
