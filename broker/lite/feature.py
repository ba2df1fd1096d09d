"""Lite topics as one feature: subscriptions, pops, upkeep and figures; and what is sent with a lite topic.

A timer lets lite topics be given again whose messages were not acknowledged in time, several times a second while some
are in flight. Invariant: one pass at a time, of bounded work. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from broker.lite.info import LiteInfo
from broker.lite.registry import LiteRegistry, mqtt_topic, parent_of, problem_of
from broker.lite.requests import LiteAcks, LiteEvents, LitePops, LiteSubscriptions
from broker.lite.state import DUE_PER_PASS, LiteTopics, Ownership, expire
from broker.requests import Feature, RequestTools
from broker.rocketmq.mqtt_messages import PROPERTIES_WITHOUT_MQTT
from remoting.access.visibility import LITE_TOPIC
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.rocketmq_form import INNER_MULTI_DISPATCH
from remoting.transport.contracts import Handler

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.pop.check_points import Owned
    from broker.publishing.append import Appender
    from broker.reading.bounds import LongPolls
    from broker.subscriptions.feature import SubscriptionFeature
    from broker.topics.feature import TopicFeature
    from runtime.metrics import Registry

PASS_S, IDLE_S = 0.1, 1.0
"""Pauses between two passes, with and without messages in flight."""


class LiteFeature(Feature):
    """Lite topics and their consumers."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: TopicFeature,
        groups: ConsumerGroups,
        subscriptions: SubscriptionFeature,
        appender: Appender,
        long_polls: LongPolls,
        registry: Registry,
    ) -> None:
        self._tools = tools
        self._groups = groups.groups
        self._appender = appender
        self._registry = LiteRegistry()
        self._topics = LiteTopics(
            tools.store,
            topics.table,
            groups.groups,
            subscribers=subscriptions.subscribers,
            topics_max=tools.config.limits.lite_topics_max,
        )
        self._ownership = ownership = Ownership(tools.store)
        self._refused = registry.counter(
            "rocketmq_lite_refused_total",
            "Requests of clients of lite topics that were refused, by reason",
            ("reason",),
        )
        acknowledged = registry.counter("rocketmq_lite_acknowledged_total", "Messages of lite topics acknowledged")
        again = registry.counter(
            "rocketmq_lite_repeated_total", "Messages of lite topics given again because their time was over"
        )
        self._declare_figures(registry)
        self._events = events = LiteEvents(
            tools, registry=self._registry, topics=self._topics, ownership=ownership, groups=groups.groups,
            long_polls=long_polls,
        )  # fmt: skip
        self.acks = LiteAcks(
            tools, topics=self._topics, ownership=ownership, events=events, acknowledged=acknowledged,
            refuse=self._refuse,
        )  # fmt: skip
        self._requests = (
            self.acks,
            LitePops(
                tools, registry=self._registry, topics=self._topics, ownership=ownership, events=events, groups=groups,
                long_polls=long_polls, again=again, refuse=self._refuse,
            ),
            LiteSubscriptions(
                tools, registry=self._registry, topics=self._topics, ownership=ownership, events=events, groups=groups,
                refuse=self._refuse,
            ),
            LiteInfo(
                tools, registry=self._registry, topics=self._topics, ownership=ownership, events=events,
                groups=groups.groups, table=topics.table,
            ),
        )  # fmt: skip
        tools.store.positions.on_advance(events.grew, self._topics.expirations)
        self._timer: asyncio.Handle | None = None

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {code: handler for requests in self._requests for code, handler in requests.handlers().items()}

    def lite_topic(self, topic: str, properties: dict[bytes, bytes], *, alone: bool) -> bytes | None:
        """The MQTT topic of a message that is sent to a lite topic of `topic`, None for another message.

        The property is removed: the MQTT topic says the same. `alone` False: it is part of a batch or transaction.

        Raises:
            Refused: MESSAGE_ILLEGAL, it is not valid or asks for what lite topics do not have; TOPIC_NOT_EXIST or
                INVALID_PARAMETER, there is no parent topic of that name; LMQ_QUOTA_EXCEEDED, it has too many.
        """
        value = properties.pop(LITE_TOPIC, None)
        if not value:
            return None
        wanted = value.decode("utf-8", "replace")
        self._topics.require(topic)
        problem = problem_of(topic, wanted)
        if problem is None and not alone:
            problem = "messages for lite topics are sent one by one, not in a batch or a transaction"
        if problem is None and not PROPERTIES_WITHOUT_MQTT.isdisjoint(properties):
            problem = "a message for a lite topic has no delay level, timer or transaction"
        if problem is not None:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"lite topic {wanted!r}: {problem}")
        properties.pop(INNER_MULTI_DISPATCH, None)
        self._topics.open(topic, wanted, self._tools.clock.now_ms())
        return mqtt_topic(topic, wanted)

    def progress(self, queue_id: int, offset: int) -> Iterator[tuple[str, int, Owned | None]]:
        """Each group that reads a lite topic: (group, offset of the next message it is given, whether and since when
        it has the message at `offset` in flight). Nothing for a queue of anything else."""
        name = self._tools.store.queues.name(queue_id)
        parent = parent_of(name)
        if parent is not None:
            for group in self._topics.groups_of(parent):
                yield group, self._ownership.front(group, name, queue_id), self._ownership.find(group, queue_id, offset)

    def start(self) -> None:
        """Begin to look for messages whose time is over."""
        self._timer = asyncio.get_running_loop().call_soon(self._pass)

    def stop(self) -> None:
        """Make no further pass."""
        if self._timer is not None:
            self._timer.cancel()

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Forget silent clients, delete some of the lite topics whose time is over, give others again."""
        self._free(now_ms)
        silent = self._registry.expire(now_ms, self._tools.config.lite_client_expiry_s * 1_000)
        expired = 0
        if self._topics.due(now_ms):
            self._appender.flush()  # what was placed in this turn is in its queue before one is deleted
            expired = expire(self._topics, self._ownership, now_ms)
        return {"lite_client_silent": silent, "lite_topic_expired": expired}

    def status(self) -> dict[str, int]:
        """How many lite topics and subscriptions there are, and how many messages are in flight."""
        return {
            "lite_topics": sum(self._topics.counts.values()),
            "lite_subscriptions": self._registry.subscriptions,
            "lite_in_flight": len(self._ownership),
        }

    def _declare_figures(self, registry: Registry) -> None:
        for name, about in (
            ("topics", "Lite topics of all parent topics"),
            ("subscriptions", "Subscriptions of clients to lite topics"),
            ("in_flight", "Messages of lite topics given to a client and not acknowledged"),
        ):
            registry.gauge(f"rocketmq_lite_{name}", about, function=partial(self._figure, f"lite_{name}"))
        passed_over = registry.counter(
            "rocketmq_lite_passed_over_total", "Messages of lite topics that could not be given, by reason", ("reason",)
        )
        counts = self._ownership.passed_over
        for why in counts:
            passed_over.child(why.value, function=partial(counts.__getitem__, why))

    def _figure(self, name: str) -> int:
        return self.status()[name]

    def _pass(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(PASS_S if len(self._ownership) else IDLE_S, self._pass)
        if self._free(self._tools.clock.now_ms()):
            self._timer.cancel()
            self._timer = loop.call_soon(self._pass)

    def _free(self, now_ms: int) -> bool:
        """Let some lite topics be given again whose time is over; True when there may be more."""
        found = self._ownership.overdue(now_ms, lambda group: self._groups.get(group) is not None)
        for group, name in found:
            if name:
                self._events.freed(group, name)
        return len(found) >= DUE_PER_PASS

    def _refuse(self, reason: str, code: int, remark: str) -> Refused:
        """A refusal, counted."""
        self._refused.child(reason).value += 1
        return Refused(code, remark)
