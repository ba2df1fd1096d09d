"""POP as one feature: requests about single messages, revival of what was not acknowledged, figures.

A timer looks for messages whose time is over, several times a second while some are in flight. Invariant: one pass at a
time, of bounded work; between two passes the loop does everything else. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.pop.acknowledgements import LITE_TOPIC, AckRequests, LiteHandlers
from broker.pop.in_flight import MessagesInFlight
from broker.pop.merging import PopMerge
from broker.pop.modes import ModeRequests
from broker.pop.queues import PopQueues
from broker.pop.requests import PopRequests
from broker.pop.revival import Revival
from broker.requests import Feature, RequestTools
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.reading.bounds import LongPolls
    from broker.topics.feature import TopicFeature
    from runtime.metrics import Registry

PASS_S, IDLE_S = 0.1, 1.0
"""Pauses between two passes, with and without messages in flight."""
REASONS: dict[int, str] = {
    ResponseCode.INVALID_PARAMETER: "malformed",
    ResponseCode.TOPIC_NOT_EXIST: "topic",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "group",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "filter",
    ResponseCode.NO_PERMISSION: "access",
    ResponseCode.SYSTEM_BUSY: "busy",
}
OTHER = "other"
"""Reasons of refusals that are not of POP alone, by code."""


class PopFeature(Feature):
    """Consumption with ownership of single messages."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: TopicFeature,
        groups: ConsumerGroups,
        long_polls: LongPolls,
        registry: Registry,
        lite: LiteHandlers,
        expect_mqtt_requests: Callable[[], None],
    ) -> None:
        """`lite` answers acknowledgements that name a lite topic; `expect_mqtt_requests` makes ready for the answers to
        requests of MQTT clients that are given."""
        self._tools = tools
        self.in_flight = in_flight = MessagesInFlight(tools.store)
        self._refused = registry.counter(
            "rocketmq_pop_refused_total", "Requests of POP consumers that were refused, by reason", ("reason",)
        )
        registry.gauge(
            "rocketmq_pop_in_flight", "Messages given by POP and neither acknowledged nor revived",
            function=lambda: len(in_flight),
        )  # fmt: skip
        acknowledged = registry.counter("rocketmq_pop_acknowledged_total", "Messages acknowledged by POP consumers")
        outcomes = registry.counter(
            "rocketmq_pop_expired_total", "Messages whose time with a POP consumer was over, by outcome", ("outcome",)
        )
        by_priority = registry.counter(
            "rocketmq_pop_by_priority_total",
            "Messages of topics with priorities that were given, by priority",
            ("priority",),
        )
        queues = PopQueues(
            tools, topics=topics.table, queues=topics.queues, groups=groups, in_flight=in_flight,
            long_polls=long_polls, refuse=self._refuse,
        )  # fmt: skip
        self._queues, self._long_polls = queues, long_polls
        self._revival = Revival(
            tools, topics=topics.table, groups=groups.groups, queues=queues, in_flight=in_flight, outcomes=outcomes,
        )  # fmt: skip
        self.merge = PopMerge(tools, topics=topics.table, groups=groups.groups, queues=queues, in_flight=in_flight)
        self._requests = (
            PopRequests(
                tools, queues=queues, groups=groups, long_polls=long_polls, in_flight=in_flight,
                outcomes=outcomes, by_priority=by_priority, refuse=self._refuse,
                expect_mqtt_requests=expect_mqtt_requests,
            ),
            AckRequests(
                tools, topics=topics.table, queues=queues, in_flight=in_flight, acknowledged=acknowledged,
                refuse=self._refuse, lite=lite,
            ),
            ModeRequests(tools, topics=topics.table, groups=groups, in_flight=in_flight),
            self.merge,
        )  # fmt: skip
        groups.groups.modes.refuse = self._refuse
        self._counted: Refused | None = None
        """The last refusal that was counted."""
        self._timer: asyncio.Handle | None = None

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            code: self._counting(handler)
            for requests in self._requests
            for code, handler in requests.handlers().items()
        }

    def start(self) -> None:
        """Begin to look for messages whose time is over, once nothing is held."""
        self._begin()

    def stop(self) -> None:
        """Make no further pass."""
        if self._timer is not None:
            self._timer.cancel()

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Revive some of what was not acknowledged in time."""
        if not self._queues.held_ms:
            self._revival.run(now_ms)
        return {}

    def status(self) -> dict[str, int]:
        """How many messages are in flight."""
        return {"pop_in_flight": len(self.in_flight)}

    def _begin(self) -> None:
        loop, held_ms = asyncio.get_running_loop(), self._queues.held_ms
        if held_ms:
            self._timer = loop.call_later(held_ms / 1_000, self._begin)
        else:
            self._long_polls.wake_all()
            self._timer = loop.call_soon(self._pass)

    def _pass(self) -> None:
        loop = asyncio.get_running_loop()
        in_flight = len(self.in_flight)
        self._timer = loop.call_later(PASS_S if in_flight else IDLE_S, self._pass)
        if in_flight and self._revival.run(self._tools.clock.now_ms()):
            self._timer.cancel()
            self._timer = loop.call_soon(self._pass)

    def _counting(self, handler: Handler) -> Handler:
        """The handler, with every refusal counted once."""

        def handle(peer: Peer, command: Command) -> Command | None:
            try:
                return handler(peer, command)
            except Refused as refused:
                if refused is not self._counted and not command.fields.get(LITE_TOPIC):
                    self._refused.child(REASONS.get(refused.code, OTHER)).value += 1
                raise

        return handle

    def _refuse(self, reason: str, code: int, remark: str) -> Refused:
        """A refusal, counted."""
        self._refused.child(reason).value += 1
        self._counted = Refused(code, remark)
        return self._counted
