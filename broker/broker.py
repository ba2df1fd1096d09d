"""The parts of one running broker, built once around one open store.

It decides nothing: it builds the views, rules and waiting rooms of the features; `router` gives each feature's requests
what they need of them. No feature is given this object but publishing, following and the in-process door. Loop thread
only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from broker.delayed.delayed import Delayed
from broker.delayed.due import Diversion
from broker.delayed.timer import DelayTimer
from broker.groups.feature import ConsumerGroups
from broker.history.requests import HistoryRoom
from broker.metrics import BrokerMetrics
from broker.publishing.append import Appender
from broker.publishing.placement import Placement
from broker.reading.long_poll import LongPolls
from broker.requests.access import Authorizer
from broker.requests.answers import ConfirmedAnswers
from broker.requests.identity import BrokerIdentity
from broker.requests.tools import RequestTools
from broker.retained.expiry import RetainedExpiry
from broker.retained.quota import RetainedQuota
from broker.retained.retained import Retained
from broker.rocketmq.rates import Rates
from broker.sessions.handover import Handovers
from broker.sessions.sessions import Sessions
from broker.shared.groups import SharedGroups
from broker.shared.requests import SESSION_ENDED, SharedRoom
from broker.sink.ledger import SinkLedger
from broker.sink.stages import Stages
from broker.subscriptions.dispatch import Dispatcher
from broker.subscriptions.filters import Filters
from broker.subscriptions.follow import Followers
from broker.topics.publication import Publication
from broker.topics.queues import ClientQueues
from broker.topics.retention import TopicRetention
from broker.topics.topics import Topics
from broker.topics.visible import VisibleQueues
from broker.wills.requests import WillRoom
from remoting.batches.unpack import Unpacker
from remoting.protocol.bodies.route_body import TopicRoute

if TYPE_CHECKING:
    from broker.config import BrokerConfig, LimitsConfig
    from broker.store.log_store import LogStore
    from runtime.clock import Clock
    from runtime.metrics import Registry

COUNTED_TOPICS_MAX = 1_000
"""With more parent topics the messages in them are not counted for the status: that would hold up everything else."""


class BrokerParts:
    """The parts of one running broker that requests are answered from."""

    def __init__(
        self,
        config: BrokerConfig,
        store: LogStore,
        clock: Clock,
        registry: Registry,
        log: Any,
        authorizer: Authorizer | None = None,
    ) -> None:
        """`authorizer`: who may do what; without one everybody may do everything."""
        now_ms = clock.now_ms()
        limits = config.limits
        self.config = config
        self.store = store
        self.clock = clock
        self.log = log
        self.identity = BrokerIdentity(epoch=store.epoch, started_ms=now_ms, started_position=store.end_position)
        self.find_route: Callable[[str], Awaitable[TopicRoute | None]] = _no_route
        """The route of a topic over all broker groups; None where no controller is configured."""
        self.metrics = BrokerMetrics(registry)
        self.metrics.watch_store(store)
        self.rates_in, self.rates_out = Rates(), Rates()
        """Of messages taken and messages given out."""
        self.authorizer = authorizer or Authorizer()
        self._open_topics(limits)
        self.answers = ConfirmedAnswers(store, self.metrics, self.publication.when_published)
        self._open_sessions(limits, now_ms)
        self.visible = VisibleQueues(store, self.topics, self.stages.hidden)
        self.tools = RequestTools(config, store, clock, self.metrics, log, self.authorizer, self.answers)
        self._open_rooms(limits)

    def _open_topics(self, limits: LimitsConfig) -> None:
        """Where messages go: topics, filters, dispatch, placement."""
        config, store, now_ms = self.config, self.store, self.identity.started_ms
        self.topics = Topics(store, topics_max=limits.topics_max)
        self.publication = Publication(wait_ms=config.registration_wait_ms, missed=self._unpublished)
        self.topic_retention = TopicRetention(store, self.topics)
        self.filters = Filters(
            store, expiry_ms=config.filter_expiry_s * 1_000, filters_max=limits.filters_max, now_ms=now_ms
        )
        self.dispatcher = Dispatcher(
            store,
            self.topics,
            self.filters,
            cached_topics_max=limits.cached_topics_max,
            queue_count=config.default_queue_count,
            auto_create=config.auto_create_topics,
        )
        self.placement = Placement(
            self.topics,
            self.dispatcher,
            queue_count=config.default_queue_count,
            auto_create=config.auto_create_topics,
            message_size_bytes_max=limits.message_size_bytes_max,
            properties_bytes_max=limits.properties_bytes_max,
        )

    def _open_sessions(self, limits: LimitsConfig, now_ms: int) -> None:
        """What is kept for clients: sessions, retained messages, offsets, groups, the sinks' ledger."""
        config, store = self.config, self.store
        self.shared_groups = SharedGroups(store, now_ms=now_ms)
        self.sessions = Sessions(
            store,
            self.filters,
            shared=self.shared_groups,
            expiry_s_max=config.session_expiry_s,
            will_grace_ms=config.proxy_grace_ms,
            sessions_max=limits.sessions_max,
            subscriptions_max=limits.subscriptions_per_session_max,
            now_ms=now_ms,
        )
        self.retained = Retained(store)
        self.retained_quota = RetainedQuota(
            store, self.retained, messages_max=limits.retained_messages_max, bytes_max=limits.retained_bytes_max
        )
        self.retained_expiry = RetainedExpiry(store, self.log, self.retained_quota.seen)
        self.placement.retained_expiry = lambda topic, expiry_s: self.retained_expiry.note(
            topic, expiry_s, self.clock.now_ms()
        )
        self.stages = Stages(
            store,
            expiry_ms=config.stage_expiry_s * 1_000,
            attempts_max=limits.stage_attempts_max,
            now_ms=now_ms,
        )
        self._open_delayed(limits, now_ms)
        self.ledger = SinkLedger(store, self.stages, self.placement, group_bytes_max=limits.commit_group_bytes_max)

    def _open_delayed(self, limits: LimitsConfig, now_ms: int) -> None:
        """Where messages wait for their time."""
        self.delayed = Delayed(
            self.store,
            self.placement,
            self.stages.hidden,
            delay_ms_max=self.config.delay_s_max * 1_000,
            messages_max=limits.delayed_messages_max,
            now_ms=now_ms,
            log=self.log,
        )
        self.metrics.watch_delayed(self.delayed)
        self.store.retention.keep_from = self.delayed.keep_from

        diversion = Diversion(self.delayed, self.clock)
        self.placement.divert = diversion.divert
        self.placement.check_wait = diversion.check

    def _open_rooms(self, limits: LimitsConfig) -> None:
        """What waits: this turn's messages and commits, followers, long polls, commits at work."""
        self.queues = ClientQueues(self.store, self.topics)
        self.groups = ConsumerGroups(self.tools, topics=self.topics, queues=self.queues)
        self.appender = Appender(self)
        self.will_room = WillRoom(self.sessions.wills, self.clock, verdict_ms=self.config.will_verdict_ms)
        self.handovers = Handovers()
        self.delay_timer = DelayTimer(self.delayed, self.appender, self.clock, self.metrics, self.log)
        self.unpacker = Unpacker()
        self.followers = Followers(self)
        self.shared = SharedRoom(self.tools, groups=self.shared_groups, sessions=self.sessions, visible=self.visible)
        self.history = HistoryRoom(self.tools, topics=self.topics, visible=self.visible)
        self.long_polls = LongPolls(waiters_max=limits.parked_requests_max, wait_ms_max=limits.long_poll_ms_max)
        self.topics.on_change(lambda _name, _created: self.long_polls.wake_all())
        self.store.on_fresh(self.followers.confirmed)
        self.store.on_advance(self.delay_timer.advanced, self.delayed.queues)
        self.store.on_advance(self.followers.advanced)
        self.store.on_advance(self.shared.advanced, self.shared_groups.queues)
        self.store.on_advance(self.long_polls.advanced, self.long_polls.waiters)

    async def route_of(self, topic: str) -> TopicRoute | None:
        """The route of a topic over all broker groups, as the registration of the moment finds it."""
        return await self.find_route(topic)

    def maintain(self, now_ms: int) -> None:
        """Expire what nobody uses any more and look at the rates; called every `maintain_interval_ms`."""
        self.rates_in.sample(now_ms, self.metrics.messages_in.value)
        self.rates_out.sample(now_ms, self.metrics.messages_out.value)
        ended = self.sessions.expire(now_ms)
        self.will_room.run()
        gone = self.filters.expire(now_ms)
        shared = self.shared.maintain(now_ms)
        staged = self.ledger.expire(now_ms)
        stale = self.retained_expiry.step(now_ms)
        self.metrics.read_store(self.store)
        dropped = self.metrics.dropped
        counts = {"session_expired": ended, "filter_expired": gone, "stage_expired": staged}
        counts |= self.groups.maintain(now_ms)
        counts["retained_expired"] = stale
        counts["shared_ended"] = shared
        counts[SESSION_ENDED], self.sessions.shared_lost = self.sessions.shared_lost, 0
        for reason, count in counts.items():
            if count:
                dropped.child(reason).value += count
                self.log.info("expired", reason=reason, count=count)

    def status(self) -> dict[str, Any]:
        """The picture of CLUSTER_STATUS and of the administration page."""
        store = self.store
        return {
            "cluster": self.config.cluster_name,
            "broker": self.config.broker_name,
            "address": self.identity.address,
            "epoch": store.epoch,
            "confirm": store.confirm_position,
            "end": store.end_position,
            "topics": len(self.topics),
            "sessions": len(self.sessions),
            **self._mqtt_numbers(),
            "filters": len(self.filters),
            "followers": len(self.followers),
            "clients": len(self.groups.clients),
            "long_polls": len(self.long_polls),
            "staged_attempts": len(self.stages),
            "store": store.metrics(),
            "quarantined": [
                {"start": each.start, "end": each.end, "reason": each.reason} for each in store.quarantined
            ],
        }

    def _mqtt_numbers(self) -> dict[str, int]:
        """What the `$SYS` tree of a proxy shows of the whole broker."""
        sessions, bounds = self.sessions, self.store.bounds
        numbers = {
            "clients_total": len(sessions),
            "clients_connected": sessions.connected,
            "clients_expired": sessions.expired,
            "retained_messages": len(self.retained),
        }
        if len(self.topics) <= COUNTED_TOPICS_MAX:
            queues = (queue for config in self.topics for queue in self.topics.queue_ids(config.name))
            numbers["messages_stored"] = sum(high - low for low, high in map(bounds, queues))
        return numbers

    def _unpublished(self, reason: str, topics: int) -> None:
        self.metrics.unpublished.child(reason).value += topics


async def _no_route(_topic: str) -> TopicRoute | None:
    return None
