"""RocketMQ's own requests as one feature: sends and pulls of its clients, and the requests of its tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.requests import Feature, RequestTools
from broker.rocketmq.admin import AdminRequests
from broker.rocketmq.group_requests import AssignmentRequests, GroupAdminRequests
from broker.rocketmq.group_state import GroupStateRequests
from broker.rocketmq.pull import MessageViews, QueryRequests, RocketmqPullRequests
from broker.rocketmq.refusals import ClientListRequests, Refusals
from broker.rocketmq.relays import RelayRequests
from broker.rocketmq.replies import ReplyRequests
from broker.rocketmq.send import SendRequests
from broker.rocketmq.statistics import ConsumeStatsRequests, Rates, TrafficStatsRequests

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.publishing.feature import PublishingFeature
    from broker.publishing.placement import Placement
    from broker.reading.feature import ReadingFeature
    from broker.rocketmq.group_requests import RouteFinder
    from broker.rocketmq.send import HalfMessages, HandleSource, KeyRecalls, LiteSends
    from broker.shared.groups import SharedGroups
    from broker.topics.feature import TopicFeature
    from remoting.transport.contracts import Handler


class _Requests(Protocol):
    """Requests about one subject."""

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        ...


class RocketmqFeature(Feature):
    """The requests of RocketMQ's clients and tools."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: TopicFeature,
        publishing: PublishingFeature,
        reading: ReadingFeature,
        groups: ConsumerGroups,
        shared: SharedGroups,
        routes: RouteFinder,
        transactions: HalfMessages,
        handles: HandleSource,
        recalls: KeyRecalls,
        refusals: Refusals,
        lite: LiteSends,
    ) -> None:
        self._metrics, self.refusals = tools.metrics, refusals
        self._rates_in, self._rates_out, placement = Rates(), Rates(), publishing.placement
        replies = ReplyRequests(
            tools, topics=topics, clients=groups.clients, placement=placement, appender=publishing.appender
        )
        self.expect_mqtt_requests = replies.expect_mqtt_requests
        """To be called when requests of MQTT clients are given to a consumer."""
        messages = MessageViews(tools, topics=topics.table, unpacker=reading.unpacker, visible=topics.visible)
        self._requests: tuple[_Requests, ...] = (
            replies,
            messages,
            QueryRequests(tools, topics=topics.table, queues=topics.queues, views=messages),
            SendRequests(
                tools,
                topics=topics.table,
                groups=groups.groups,
                placement=placement,
                publication=topics.publication,
                appender=publishing.appender,
                unpacker=reading.unpacker,
                replies=replies,
                transactions=transactions,
                handles=handles,
                lite=lite,
                recalls=recalls,
            ),
            RocketmqPullRequests(
                tools,
                queues=topics.queues,
                groups=groups,
                long_polls=reading.long_polls,
                unpacker=reading.unpacker,
                replies=replies,
                prove=reading.prove,
            ),
            RelayRequests(tools, topics=topics.table, groups=groups, messages=messages),
            AssignmentRequests(
                tools, topics=topics.table, clients=groups.clients, modes=groups.groups.modes, routes=routes
            ),
            *self._for_tools(tools, topics, groups, shared, placement),
        )

    def _for_tools(
        self,
        tools: RequestTools,
        topics: TopicFeature,
        groups: ConsumerGroups,
        shared: SharedGroups,
        placement: Placement,
    ) -> tuple[_Requests, ...]:
        """The requests that only RocketMQ's tools send."""
        return (
            AdminRequests(
                tools,
                topics=topics.table,
                groups=groups,
                placement=placement,
                rates_in=self._rates_in,
                rates_out=self._rates_out,
            ),
            GroupAdminRequests(tools, topics=topics.table, groups=groups),
            GroupStateRequests(tools, topics=topics.table, groups=groups),
            ConsumeStatsRequests(tools, queues=topics.queues, groups=groups, shared=shared),
            TrafficStatsRequests(tools, topics=topics.table, group_traffic=groups.traffic),
            ClientListRequests(tools, clients=groups.clients, refusals=self.refusals),
        )

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {code: handler for requests in self._requests for code, handler in requests.handlers().items()}

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Sample the rates that RocketMQ's tools show."""
        self._rates_in.sample(now_ms, self._metrics.messages_in.value)
        self._rates_out.sample(now_ms, self._metrics.messages_out.value)
        return {}
