"""Delayed messages as one feature: where they wait, what sends them there, and the timer that wakes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.delayed.delayed import Delayed
from broker.delayed.due import Diversion
from broker.delayed.timer import DelayTimer
from broker.requests.tools import Feature, RequestTools

if TYPE_CHECKING:
    from broker.publishing.append import Appender
    from broker.publishing.placement import Placement
    from runtime.metrics import Registry


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
        store.on_advance(self._timer.advanced, self.messages.queues)
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
        "Waiting messages said again since the start because retention reached them",
        function=lambda: messages.carried,
    )
    lost = counter("rocketmq_delayed_lost_messages_total", "Waiting messages that could not be delivered", ("reason",))
    lost.child("undeliverable", function=lambda: messages.undeliverable)
    lost.child("unreadable", function=lambda: messages.unreadable)
