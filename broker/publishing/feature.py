"""Publishing as one feature: where a message goes, what gathers in a turn, and APPEND_MANY."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.publishing.append import AppendRequests
from broker.publishing.placement import QueueChoice
from broker.requests import Feature, RequestTools
from remoting.protocol.frames.codes import RequestCode

if TYPE_CHECKING:
    from broker.publishing.append import Appender, PublisherSessions
    from broker.publishing.placement import Placement
    from broker.retained.feature import RetainedFeature
    from broker.subscriptions.feature import SubscriptionFeature
    from broker.topics.feature import TopicFeature
    from remoting.transport.contracts import Handler


def queue_choice(
    tools: RequestTools, topics: TopicFeature, subscriptions: SubscriptionFeature, retained: RetainedFeature
) -> QueueChoice:
    """The choice of queues as the broker is configured."""
    config, limits = tools.config, tools.config.limits
    return QueueChoice(
        topics.table,
        subscriptions.dispatcher,
        queue_count=config.default_queue_count,
        auto_create=config.auto_create_topics,
        message_size_bytes_max=limits.message_size_bytes_max,
        properties_bytes_max=limits.properties_bytes_max,
        retained_expiry=retained.note_expiry,
    )


class PublishingFeature(Feature):
    """From an append request to the log."""

    def __init__(
        self,
        tools: RequestTools,
        topics: TopicFeature,
        subscriptions: SubscriptionFeature,
        retained: RetainedFeature,
        sessions: PublisherSessions,
        placement: Placement,
        appender: Appender,
    ) -> None:
        self._config = tools.config
        self.placement = placement
        self.appender = appender
        self._requests = AppendRequests(
            tools,
            placement=placement,
            appender=appender,
            sessions=sessions,
            quota=retained.quota,
            subscribers=subscriptions.subscribers,
            publication=topics.publication,
        )

    def configure(self) -> None:
        """Take over how topics are created by use."""
        config = self._config
        self.placement.choice.configure(config.default_queue_count, auto_create=config.auto_create_topics)

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler: APPEND_MANY."""
        return {RequestCode.APPEND_MANY: self._requests.handle}
