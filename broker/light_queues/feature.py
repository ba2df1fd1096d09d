"""Light queues as one feature: the limits for what makes them, and the end of those that nobody uses.

Who makes a topic: the user of the session that the message's client id has, or, for a message without one, who may do
what the request asks (an access key, `anonymous` without one).

Invariant: queues are ended only by a master that is sure of its log, behind everything that was placed. Loop thread
only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from broker.light_queues.quota import TopicQuota
from broker.light_queues.unused import UnusedQueues
from broker.requests import Feature, RequestTools
from broker.store.errors import StoreError
from broker.store.state.state_tables import QUEUE_IDS
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.records import names
from remoting.protocol.records.image import image_views
from remoting.protocol.records.record import CLIENT_ID_KEY, RecordView
from remoting.server.authorizer import ANONYMOUS

if TYPE_CHECKING:
    from broker.publishing.append import Appender
    from broker.reading.bounds import LongPolls
    from broker.retained.feature import Retained
    from broker.sessions.sessions import Sessions
    from broker.shared.groups import SharedGroups
    from broker.subscriptions.feature import SubscriptionFeature
    from broker.subscriptions.filters import Placing
    from broker.topics.topics import Topics
    from remoting.server.authorizer import Authorizer
    from runtime.metrics import Registry

PASS_S, IDLE_S = 0.1, 1.0
"""Pauses between two steps, with and without more to do."""
IDS_LOW = QUEUE_IDS // 10
"""With fewer queue ids left a warning is logged."""
WARN_INTERVAL_MS = 3_600_000


class CountedOpening:
    """Opens the queues of topics that are published to, for whom they count."""

    def __init__(self, quota: TopicQuota, placing: Placing, sessions: Sessions, authorizer: Authorizer) -> None:
        self._quota = quota
        self._placing = placing
        self._sessions = sessions
        self._authorizer = authorizer
        self._images = b""
        self._clients: dict[bytes, str] = {}
        """MQTT topic -> client id, of the images that were looked at last."""

    def open(self, name: bytes, parent: bytes, topic: bytes) -> int:
        """Return the light queue `name` for a message. Refused: it would be one too many.

        What was accepted before (a delayed message, a will, rows of a batch, a half message) is never one too many.
        """
        is_due = self._placing.request is None
        return self._quota.publish(name, parent, self._user(topic), is_due=is_due)

    def check(self, topic: bytes) -> None:
        """Return when the sender may make one more topic. Refused: it has too many."""
        if self._placing.request is not None:
            self._quota.check(self._user(topic))

    def maker(self, topic: bytes) -> str:
        """Return the user for whom a parent topic counts; what was accepted before counts for nobody."""
        return "" if self._placing.request is None else self._user(topic)

    def _user(self, topic: bytes) -> str:
        placing = self._placing
        if placing.images is not self._images:
            self._images = placing.images
            self._clients = {
                one.mqtt_topic or b"": _client_of(one).decode("utf-8", "replace") for one in image_views(placing.images)
            }
        session = self._sessions.get(self._clients.get(topic, ""))
        if session is not None:
            return session.user or ANONYMOUS
        return "" if placing.request is None else self._authorizer.subject(*placing.request)


def _client_of(image: RecordView) -> bytes:
    """The client id that a proxy put behind the topic; empty for rows of Spark and messages of RocketMQ's clients."""
    properties = image.properties()
    return properties[1][1] if len(properties) > 1 and properties[1][0] == CLIENT_ID_KEY else b""


class LightQueueFeature(Feature):
    """How many light queues there are, and which of them end."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: Topics,
        subscriptions: SubscriptionFeature,
        sessions: Sessions,
        shared: SharedGroups,
        retained: Retained,
        long_polls: LongPolls,
        appender: Appender,
        write_commits: Callable[[], None],
        registry: Registry,
    ) -> None:
        """`write_commits` writes the offsets of groups that have gathered."""
        self._tools = tools
        self._topics = topics
        self._subscriptions = subscriptions
        self._shared = shared
        self._retained = retained
        self._long_polls = long_polls
        self._appender = appender
        self._write_commits = write_commits
        limits = tools.config.limits
        self.quota = TopicQuota(
            tools.store,
            per_parent_max=limits.mqtt_topics_per_parent_max,
            per_user_max=limits.mqtt_topics_per_user_max,
            refused=self._refused,
            now_ms=tools.clock.now_ms,
            log=tools.log,
        )
        dispatcher = subscriptions.dispatcher
        dispatcher.opening = CountedOpening(self.quota, dispatcher.placing, sessions, tools.authorizer)
        sessions.exact_topics = self.quota
        self.unused = UnusedQueues(
            tools.store,
            in_use=self._in_use,
            expiry_ms=tools.config.unused_queue_expiry_s * 1_000,
            offset_expiry_ms=tools.config.unused_offset_expiry_s * 1_000,
            now_ms=tools.identity.started_ms,
        )
        subscriptions.subscribers.on_last = self._left
        self._ended = registry.counter(
            "rocketmq_light_queues_ended_total", "Light queues ended because nobody used them"
        )
        registry.gauge(
            "rocketmq_queues",
            "Queues of topics, MQTT topics and filters",
            function=partial(getattr, tools.store.queues, "count"),
        )
        registry.gauge(
            "rocketmq_queue_ids",
            "Queue ids given out, of 4,294,967,293; they are never used again",
            function=partial(getattr, tools.store.queues, "ids_end"),
        )
        self._warned_ms: int | None = None
        self._timer: asyncio.Handle | None = None

    def configure(self) -> None:
        """Take over limits and times."""
        config = self._tools.config
        self.quota.per_parent_max = config.limits.mqtt_topics_per_parent_max
        self.quota.per_user_max = config.limits.mqtt_topics_per_user_max
        self.unused.expiry_ms = config.unused_queue_expiry_s * 1_000
        self.unused.offset_expiry_ms = config.unused_offset_expiry_s * 1_000

    def start(self) -> None:
        """Begin to look for queues that nobody uses."""
        self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._pass)

    def stop(self) -> None:
        """End no more queues."""
        if self._timer is not None:
            self._timer.cancel()

    def status(self) -> dict[str, int]:
        """How many queues have ended since the start."""
        return {"light_queues_ended": int(self._ended.value)}

    def step(self, now_ms: int) -> int:
        """Look at some queues and end those that nobody uses; returns how many. Raises StoreError."""
        if not self._tools.is_sure or not self.unused.due(now_ms):
            return 0
        self._appender.catch_up()
        self._appender.flush()  # what was placed in this turn is in its queue before one is deleted
        self._write_commits()
        ended = self.unused.step(now_ms)
        self._ended.value += ended
        return ended

    def _pass(self) -> None:
        ended = 0
        try:
            ended = self.step(self._tools.clock.now_ms())
        except StoreError as error:
            self._tools.log.warning("queues_not_ended", error=str(error))
        if ended:
            self._tools.log.info("light_queues_ended", count=ended)
        self._watch_ids(self._tools.clock.now_ms())
        self.quota.count_step()
        pause_s = PASS_S if ended or self.unused.working or self.quota.counting else IDLE_S
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._pass)

    def _watch_ids(self, now_ms: int) -> None:
        """Say now and then that soon no queue can be made any more."""
        left = QUEUE_IDS - self._tools.store.queues.ids_end
        if left < IDS_LOW and (self._warned_ms is None or now_ms - self._warned_ms >= WARN_INTERVAL_MS):
            self._warned_ms = now_ms
            self._tools.log.warning("queue_ids_low", left=left, of=QUEUE_IDS)

    def _refused(self, reason: str) -> None:
        self._tools.metrics.refused.child(reason).value += 1

    def _left(self, queue_id: int) -> None:
        self.unused.left(queue_id, self._tools.clock.now_ms())

    def _in_use(self, queue_id: int, name: bytes) -> bool:
        """Whether anybody reads a queue, or what it is for is still there."""
        subscriptions = self._subscriptions
        if subscriptions.subscribers.any(queue_id) or subscriptions.followers.follow(queue_id):
            return True
        if queue_id in self._shared.queues or self._long_polls.waited_for(queue_id):
            return True
        with suppress(RemoteViolation):
            topic = names.light_queue_topic(name)
            if subscriptions.filters.find(topic) == queue_id or topic in self._retained:
                return True
            parent = self._topics.get(names.parent_topic(topic).decode())
            return parent is not None and parent.takes_lite
        return False
