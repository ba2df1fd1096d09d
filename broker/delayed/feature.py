"""Delayed messages as one feature: which messages wait, and the timer that delivers them.

When a message is due is in its properties, MQTT's or RocketMQ's (`remoting.protocol.records.delay`). Most messages that
wait are placed by the walk over images (`Times`); `Diversion` has those that this does not take, and refuses.

The timer runs `Delayed.due` when something is due, or when what was put has been confirmed. What gathers for the next
append is appended before a pass, because `Delayed` must know of all that was put. A pass that fails is logged and tried
again. Invariants: a value that is not a number in decimal digits is refused, never taken for "now"; one pass at a time,
of bounded work, and between two passes the loop does everything else. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.delayed.delayed import CONGESTED, LATENESS_S, TOO_FAR, TOO_MANY, WITHIN, Delayed, DelayLimits
from broker.delayed.listing import TimerRequests
from broker.delayed.merging import EscapeMerge
from broker.delayed.recall import MessageFinder, RecallHandles, RecallRequests
from broker.requests import Feature, RequestTools
from remoting.native.contracts import Times
from remoting.protocol.errors import LightMQError, Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import delay
from remoting.protocol.records.record import RecordView

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.metrics import BrokerMetrics
    from broker.publishing.append import Appender
    from broker.publishing.placement import Placement
    from broker.topics.feature import TopicFeature
    from remoting.transport.contracts import Handler
    from runtime.clock import Clock
    from runtime.metrics import Registry

NOT_A_NUMBER = "not_a_number"
"""Why a message was not accepted; other reasons are those of `Delayed`."""


class Diversion:
    """Diverts images that name a later time to the waiting messages."""

    def __init__(self, delayed: Delayed, clock: Clock) -> None:
        self._delayed = delayed
        self._clock = clock
        self.times = delayed.times(clock.now_ms)
        """Has images wait, many at a time."""
        self.none_wait = Times(self.times.spans, self.times.opened, lambda: (0, 0, 0, 0, 0))
        """Has none wait."""
        self.took, self.gave_back = delayed.took, delayed.gave_back

    def divert(self, image: RecordView) -> tuple[bytes, tuple[int, ...]] | None:
        """The waiting image and its queue; None for a message that is due now. Raises Refused if it may not wait."""
        now_ms = self._clock.now_ms()
        at_ms = self._due_ms(image, now_ms)
        return None if at_ms is None else self._delayed.put(image, at_ms, now_ms)

    def check(self, image: RecordView) -> None:
        """Raise Refused when the message names a later time and may not wait for it."""
        now_ms = self._clock.now_ms()
        at_ms = self._due_ms(image, now_ms)
        if at_ms is not None:
            self._delayed.admit(at_ms, now_ms)

    def _due_ms(self, image: RecordView, now_ms: int) -> int | None:
        try:
            return delay.due_ms(image, now_ms)
        except RemoteViolation as error:
            refused = self._delayed.counts.refused
            refused[NOT_A_NUMBER] = refused.get(NOT_A_NUMBER, 0) + 1
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, error.reason) from error


PAUSE_S_MAX = 1.0
"""Longest sleep, because the wall clock may be set meanwhile."""
PAUSE_S_MIN = 0.005
"""Shortest sleep while something is due that cannot be delivered yet."""
RETRY_S = 1.0
HOLD_S = 3.0
"""How long a new master delivers nothing where a replica may have: it learns meanwhile what that was."""
COUNTED_PER_PASS = 5_000
"""Records that waited at the start and are counted by second in one pass of upkeep."""


class DelayTimer:
    """Runs `Delayed.due` at the right times."""

    def __init__(self, delayed: Delayed, appender: Appender, clock: Clock, metrics: BrokerMetrics, log: Any) -> None:
        self._delayed = delayed
        self._appender = appender
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._timer: asyncio.Handle | None = None
        self._soon = False
        self._stopped = True
        self._held_until_ns = 0

    def start(self, hold_s: float) -> None:
        """Begin after `hold_s`; what became due while the broker was down is delivered first."""
        self._stopped = False
        self._held_until_ns = self._clock.monotonic_ns() + int(hold_s * 1e9)
        self._plan(0)

    def stop(self) -> None:
        """Make no further pass; none is under way, because passes run on the loop too."""
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
        held_s = (self._held_until_ns - self._clock.monotonic_ns()) / 1e9
        if held_s > 0:
            self._plan(min(held_s, PAUSE_S_MAX))
            return
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
            self._plan(RETRY_S)  # the loop reports a defect; deliveries continue
            raise
        if more:
            self._plan(0)
            return
        due_ms = self._delayed.next_due_ms()
        pause_s = PAUSE_S_MAX if due_ms is None else (due_ms - now_ms) / 1_000
        self._plan(min(max(pause_s, PAUSE_S_MIN), PAUSE_S_MAX))


class DelayedFeature(Feature):
    """Messages that are delivered later, from any protocol."""

    def __init__(
        self, tools: RequestTools, placement: Placement, appender: Appender, topics: TopicFeature, registry: Registry
    ) -> None:
        """`placement`: of what is due. The queues of the waiting messages are added to the hidden ones of `topics`."""
        self._config = config = tools.config
        store = tools.store
        self.messages = Delayed(
            store,
            placement,
            topics.hidden,
            limits=delay_limits(config),
            lateness=registry.histogram(
                "rocketmq_delayed_lateness_seconds", "How long after their time messages were delivered", LATENESS_S
            ),
            now_ms=tools.identity.started_ms,
            log=tools.log,
        )
        self.diversion = Diversion(self.messages, tools.clock)
        """Where images that name a later time go."""
        self._timer = DelayTimer(self.messages, appender, tools.clock, tools.metrics, tools.log)
        store.retention.carried.keep(self.messages.keep_from)
        store.positions.on_advance(self._timer.advanced, self.messages.buckets.queues)
        self.handles = RecallHandles(self.messages, config.broker_name)
        """What producers get to recall their messages by."""
        finder = MessageFinder(tools, self.messages, registry)
        self.recalls = RecallRequests(tools, self.messages, topics.table, finder, registry)
        self.merge = EscapeMerge(tools, self.messages)
        self._listing = TimerRequests(tools, self.messages, finder)
        declare_metrics(registry, self.messages)

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler: RECALL_MESSAGE, RESCHEDULE_MESSAGE, TIMERS, MERGE_ESCAPED."""
        return self.recalls.handlers() | self._listing.handlers() | self.merge.handlers()

    def configure(self) -> None:
        """Take over what may wait."""
        self.messages.configure(delay_limits(self._config))

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Count by second what waited at the start, a part at a time."""
        del now_ms
        self.messages.seconds.count_earlier(COUNTED_PER_PASS)
        return {}

    def start(self) -> None:
        """Begin to deliver; what became due while the broker was down is delivered first."""
        settings = self._config.replication
        self._timer.start(HOLD_S if settings.enabled and settings.escape else 0)

    def stop(self) -> None:
        """Stop delivering."""
        self._timer.stop()


def delay_limits(config: BrokerConfig) -> DelayLimits:
    """What may wait, as the broker is configured."""
    limits = config.limits
    return DelayLimits(
        config.delay_s_max * 1_000,
        limits.delayed_messages_max,
        limits.delayed_per_second_max,
        config.delay_precision_ms,
    )


def _refused(messages: Delayed, reason: str) -> int:
    return messages.counts.refused.get(reason, 0)


def declare_metrics(registry: Registry, messages: Delayed) -> None:
    """Declare the metrics of the waiting messages."""
    counter, gauge = registry.counter, registry.gauge
    gauge("rocketmq_delayed_messages", "Messages that wait for their time", function=lambda: messages.waiting)
    counter(
        "rocketmq_delayed_delivered_messages_total",
        "Messages delivered at their time since the start",
        function=lambda: messages.counts.delivered,
    )
    counter(
        "rocketmq_delayed_carried_messages_total",
        "Delayed messages written again since the start because retention reached them",
        function=lambda: messages.counts.carried,
    )
    by_delay = gauge("rocketmq_delayed_messages_by_delay", "Waiting messages by how far away they are due", ("within",))
    for _within_s, label in WITHIN:
        by_delay.child(label, function=lambda label=label: messages.by_delay[label])  # type: ignore[misc]
    gauge(
        "rocketmq_delayed_second_messages_max",
        "Messages due in the second in which most are due",
        function=lambda: messages.seconds.fullest()[1],
    )
    counter(
        "rocketmq_delayed_escaped_messages_total",
        "Delayed messages passed over since the start because a replica delivered them to another group",
        function=lambda: messages.counts.escaped,
    )
    refused = counter(
        "rocketmq_delayed_refused_messages_total", "Messages refused because of the time they named", ("reason",)
    )
    for reason in (NOT_A_NUMBER, TOO_FAR, TOO_MANY, CONGESTED):
        refused.child(reason, function=partial(_refused, messages, reason))
    lost = counter("rocketmq_delayed_lost_messages_total", "Waiting messages that could not be delivered", ("reason",))
    lost.child("undeliverable", function=lambda: messages.counts.undeliverable)
    lost.child("unreadable", function=lambda: messages.counts.unreadable)
