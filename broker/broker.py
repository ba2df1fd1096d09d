"""The features of one running broker, built once around one open store.

Construction follows the dependencies: first the views of the log, then the features that answer from them. Each feature
gets what it needs and never this object. No decisions are made here. Loop thread only.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from broker.access.feature import AccessFeature
from broker.audit.feature import AuditFeature
from broker.delayed.feature import DelayedFeature
from broker.figures import Backlog, GroupLag, SharedLag, declare_figures
from broker.groups.feature import ConsumerGroups
from broker.history.feature import HistoryFeature
from broker.light_queues.feature import LightQueueFeature
from broker.lite.feature import LiteFeature
from broker.metrics import AppendTimes, BrokerMetrics, watch_store
from broker.migration.feature import MigrationFeature
from broker.operating.feature import OperatingFeature
from broker.options.feature import OptionFeature, OptionsInForce
from broker.pop.feature import PopFeature
from broker.publishing.append import Appender
from broker.publishing.feature import PublishingFeature, queue_choice
from broker.publishing.placement import Placement
from broker.reading.feature import ReadingFeature
from broker.registration import Registration
from broker.requests import BrokerIdentity, ConfirmedAnswers, Feature, RequestTools
from broker.retained.feature import RetainedFeature
from broker.rocketmq.feature import RocketmqFeature
from broker.rocketmq.refusals import Refusals
from broker.sessions.feature import SessionFeature
from broker.sessions.sessions import Sessions
from broker.shared.feature import SharedFeature
from broker.shared.groups import SharedGroups
from broker.sink.feature import SinkFeature
from broker.subscriptions.feature import SubscriptionFeature
from broker.topics.feature import TopicFeature
from broker.topics.topics import Publication
from broker.transactions.feature import TransactionFeature
from broker.wills.feature import WillFeature, Wills
from remoting.access.rights import MONITOR
from remoting.client.connection import dial
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.transport.contracts import Dial, Handler, Peer

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.store.log_store import LogStore
    from runtime.clock import Clock
    from runtime.metrics import Registry


class BrokerParts:
    """The features that requests are answered from, and their upkeep."""

    def __init__(
        self,
        config: BrokerConfig,
        store: LogStore,
        clock: Clock,
        registry: Registry,
        log: Any,
        authorizer: Authorizer | None = None,
        connect: Dial = dial,
        may_answer: Callable[[], bool] = lambda: True,
    ) -> None:
        """`authorizer`: access control; without one every request is allowed. `connect` dials controllers.

        `may_answer`: whether this broker's state is current; while it is not, no long poll ends empty.
        """
        metrics = BrokerMetrics(registry)
        watch_store(registry, store)
        options = OptionsInForce(config, store, log)
        config = options.value
        publication = Publication(wait_ms=config.registration_wait_ms, missed=metrics.count_unpublished)
        answers = ConfirmedAnswers(store, metrics, publication.when_published)
        identity = BrokerIdentity(epoch=store.epoch, started_ms=clock.now_ms(), started_position=store.end_position)
        self.tools = RequestTools(config, store, clock, metrics, log, authorizer or Authorizer(), answers, identity)
        self.topics = TopicFeature(self.tools, publication)
        self.registration = Registration(self.tools, self.topics, make_connection=connect)
        self.subscriptions = SubscriptionFeature(self.tools, self.topics)
        self.retained = RetainedFeature(self.tools)
        self._open_mqtt(registry)
        self.reading = ReadingFeature(self.tools, self.topics, may_answer, registry)
        self.groups = ConsumerGroups(self.tools, self.topics)
        self.sink = SinkFeature(self.tools, self.topics, placement=self.publishing.placement, quota=self.retained.quota)
        self.transactions = TransactionFeature(
            self.tools,
            topics=self.topics,
            placement=self.publishing.placement,
            clients=self.groups.clients,
            registry=registry,
        )
        lite = LiteFeature(
            self.tools,
            topics=self.topics,
            groups=self.groups,
            subscriptions=self.subscriptions,
            appender=self.publishing.appender,
            long_polls=self.reading.long_polls,
            registry=registry,
        )
        self.features = [
            *self._gathered(registry, lite),
            AccessFeature(self.tools, registry),
            AuditFeature(self.tools, self.topics.hidden, registry),
            MigrationFeature(self.tools, topics=self.topics, registry=registry),
            OptionFeature(self.tools, options, self.topics.table, self._configure),
        ]
        self.status = BrokerStatus(self.tools, self.features, registry)
        backlog = Backlog(store, self.sessions.table)
        self.features.append(backlog)
        declare_figures(
            registry, lag=GroupLag(store, self.groups.offsets, self.topics.queues), backlog=backlog,
            shared=SharedLag(self.shared.groups), sessions=self.sessions.table, retained=self.retained.table,
        )  # fmt: skip

    def _open_mqtt(self, registry: Registry) -> None:
        """Sessions with the parts of other features they use, and publishing, which checks their packet ids."""
        tools, subscriptions, limits = self.tools, self.subscriptions, self.tools.config.limits
        config, store, now_ms = tools.config, tools.store, tools.identity.started_ms
        groups = SharedGroups(store, now_ms=now_ms)
        wills = Wills(store, grace_ms=config.proxy_grace_ms, now_ms=now_ms)
        sessions = Sessions(
            store,
            subscriptions.filters,
            shared=groups,
            wills=wills,
            subscribers=subscriptions.subscribers,
            expiry_s_max=config.session_expiry_s,
            sessions_max=limits.sessions_max,
            subscriptions_max=limits.subscriptions_per_session_max,
            filters_max=limits.filters_per_session_max,
            now_ms=now_ms,
        )
        choice = queue_choice(tools, self.topics, subscriptions, self.retained)
        appender, visible = (
            Appender(store, tools.metrics, AppendTimes(registry, tools.clock.monotonic_ns)),
            self.topics.visible,
        )
        self.delayed = DelayedFeature(tools, Placement(choice), appender, self.topics, registry)
        placement = Placement(choice, self.delayed.diversion)
        self.publishing = PublishingFeature(
            tools, self.topics, subscriptions, self.retained, sessions, placement, appender
        )
        self.wills = WillFeature(tools, wills, appender=appender, placement=placement)
        self.shared = SharedFeature(tools, groups=groups, sessions=sessions, visible=visible)
        self.sessions = SessionFeature(
            tools,
            sessions,
            retained=self.retained.table,
            shared=self.shared,
            verdicts=self.wills.verdicts,
            appender=appender,
            visible=visible,
        )

    def _gathered(self, registry: Registry, lite: LiteFeature) -> list[Feature]:
        """Every feature, in the order of start and upkeep: sessions expire before their wills and subscriptions."""
        tools, topics = self.tools, self.topics
        rocketmq = RocketmqFeature(
            tools,
            topics=topics,
            publishing=self.publishing,
            reading=self.reading,
            groups=self.groups,
            shared=self.shared.groups,
            routes=self.registration,
            transactions=self.transactions.messages,
            handles=self.delayed.handles,
            recalls=self.delayed.recalls,
            refusals=Refusals(registry),
            lite=lite,
        )
        return [
            rocketmq,
            self.transactions,
            PopFeature(
                tools,
                topics=topics,
                groups=self.groups,
                long_polls=self.reading.long_polls,
                registry=registry,
                lite=lite.acks,
                expect_mqtt_requests=rocketmq.expect_mqtt_requests,
            ),
            lite,
            topics,
            self.publishing,
            self.sink,
            self.sessions,
            self.wills,
            self._operating(registry, lite),
            self.subscriptions,
            self.shared,
            self.retained,
            self.delayed,
            self.reading,
            self.groups,
            HistoryFeature(tools, topics=topics.table, visible=topics.visible),
            self._light_queues(registry),
        ]

    def _light_queues(self, registry: Registry) -> LightQueueFeature:
        """The limits and the end of light queues: what may be using one."""
        return LightQueueFeature(
            self.tools,
            topics=self.topics.table,
            subscriptions=self.subscriptions,
            sessions=self.sessions.table,
            shared=self.shared.groups,
            retained=self.retained.table,
            long_polls=self.reading.long_polls,
            appender=self.publishing.appender,
            write_commits=self.groups.commits.flush,
            registry=registry,
        )

    def _operating(self, registry: Registry, lite: LiteFeature) -> OperatingFeature:
        """What operators ask for, over the parts of the others."""
        return OperatingFeature(
            self.tools,
            sessions=self.sessions.table,
            shared=self.shared,
            verdicts=self.wills.verdicts,
            appender=self.publishing.appender,
            topics=self.topics,
            retained=self.retained.table,
            groups=self.groups,
            lite=lite,
            registry=registry,
        )

    def _configure(self) -> None:
        """Make every part take over the options in force."""
        self.registration.configure()
        for feature in self.features:
            feature.configure()

    @property
    def refusals(self) -> Refusals:
        """Which clients asked for what is not offered."""
        return next(one.refusals for one in self.features if isinstance(one, RocketmqFeature))

    @property
    def access(self) -> AccessFeature:
        """The users and rules made by requests."""
        return next(one for one in self.features if isinstance(one, AccessFeature))

    @property
    def pop(self) -> PopFeature:
        """What groups have by POP."""
        return next(one for one in self.features if isinstance(one, PopFeature))

    @property
    def audit(self) -> AuditFeature:
        """The record of administrative acts."""
        return next(one for one in self.features if isinstance(one, AuditFeature))

    @property
    def merges(self) -> Mapping[int, Callable[[bytes], int]]:
        """Request code -> what takes over the body of such a request: what was kept while a replica stood in for the
        master. It returns the log position to wait for."""
        return {
            RequestCode.MERGE_ESCAPED: self.delayed.merge.take,
            RequestCode.MERGE_OFFSETS: self.groups.merge.take,
            RequestCode.MERGE_TRANSACTIONS: self.transactions.merge.take,
            RequestCode.MERGE_LOCKS: self.groups.locks.take,
            RequestCode.MERGE_POPS: self.pop.merge.take,
            RequestCode.MERGE_GIVEN: self.pop.merge.take_given,
        }

    def start(self) -> None:
        """Start every feature."""
        for feature in self.features:
            feature.start()

    def stop(self) -> None:
        """Stop every feature, which ends its timers."""
        for feature in self.features:
            feature.stop()

    def maintain(self, now_ms: int) -> None:
        """Expire what is no longer used and sample the rates; called every `maintain_interval_ms`."""
        tools = self.tools
        tools.metrics.read_store(tools.store)
        for feature in self.features:
            for reason, count in feature.maintain(now_ms).items():
                if count:
                    tools.metrics.dropped.child(reason).value += count
                    tools.log.info("expired", reason=reason, count=count)


class BrokerStatus(Feature):
    """The status of the whole broker, for the command line, the administration page and the console."""

    def __init__(self, tools: RequestTools, features: Sequence[Feature], registry: Registry) -> None:
        self._registry = registry
        self._clock = tools.clock
        self._config = tools.config
        self._store = tools.store
        self._authorizer = tools.authorizer
        self._identity = tools.identity
        self._features = features

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler: CLUSTER_STATUS, METRICS."""
        return {RequestCode.CLUSTER_STATUS: self.cluster_status, RequestCode.METRICS: self.metrics}

    def cluster_status(self, peer: Peer, command: Command) -> Command:
        """Answer CLUSTER_STATUS with `picture` as JSON."""
        self._authorizer.authorize(peer, command, MONITOR, "status")
        return command.reply(body=msgspec.json.encode(self.picture()))

    def metrics(self, peer: Peer, command: Command) -> Command:
        """Answer METRICS with the status, and the metrics of this process by name, as JSON."""
        self._authorizer.authorize(peer, command, MONITOR, "metrics")
        found = {
            "broker": self._config.broker_name,
            "cluster": self._config.cluster_name,
            "started_ms": self._identity.started_ms,
            "time_ms": self._clock.now_ms(),
            "flush_mode": self._config.store.flush,
            "disk_total_bytes": shutil.disk_usage(self._config.data_directory).total,
            "status": self.picture(),
            "metrics": self._registry.values(),
        }
        return command.reply(body=msgspec.json.encode(found))

    def picture(self) -> dict[str, Any]:
        """Names, log positions, the numbers of every feature, the store's own, and what is damaged."""
        store = self._store
        found: dict[str, Any] = {
            "cluster": self._config.cluster_name,
            "broker": self._config.broker_name,
            "address": self._identity.address,
            "epoch": store.epoch,
            "confirm": store.confirm_position,
            "end": store.end_position,
        }
        for feature in self._features:
            found |= feature.status()
        found["store"] = store.metrics()
        found["quarantined"] = [
            {"start": each.start, "end": each.end, "reason": each.reason} for each in store.quarantined
        ]
        return found
