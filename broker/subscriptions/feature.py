"""Subscriptions as one feature: wildcard filters with their queues, subscribers by queue, and followers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.requests import Feature, RequestTools
from broker.subscriptions.filters import Dispatcher, Filters, Subscribers
from broker.subscriptions.follow import Followers

if TYPE_CHECKING:
    from broker.topics.feature import TopicFeature
    from remoting.transport.contracts import Handler


class SubscriptionFeature(Feature):
    """The queues a message is delivered through, and their followers."""

    def __init__(self, tools: RequestTools, topics: TopicFeature) -> None:
        config, limits, store = tools.config, tools.config.limits, tools.store
        self._config = config
        self.filters = Filters(
            store,
            expiry_ms=config.filter_expiry_s * 1_000,
            filters_max=limits.filters_max,
            per_user_max=limits.filters_per_user_max,
            now_ms=tools.identity.started_ms,
        )
        self.dispatcher = Dispatcher(
            store,
            topics.table,
            self.filters,
            cached_topics_max=limits.cached_topics_max,
            queue_count=config.default_queue_count,
            auto_create=config.auto_create_topics,
        )
        self.subscribers = Subscribers()
        self.followers = Followers(store, tools.authorizer, topics.visible, topics.hidden)
        store.positions.on_fresh(self.followers.confirmed)
        store.positions.on_advance(self.followers.advanced)

    def configure(self) -> None:
        """Take over how topics are created by use."""
        self.dispatcher.configure(self._config.default_queue_count, auto_create=self._config.auto_create_topics)

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler: FOLLOW."""
        return self.followers.handlers()

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Delete queues of wildcard filters that have no subscriber any more."""
        return {"filter_expired": self.filters.expire(now_ms)}

    def status(self) -> dict[str, int]:
        """How many wildcard filters and following proxies there are."""
        return {"filters": len(self.filters), "followers": len(self.followers)}
