"""Request code -> handler of this broker: what its features answer, put together; nothing else dispatches.

A feature is given what it needs and answers with a command, or answers later and returns None. What the store refuses
becomes the refusal a client understands, here and for all handlers alike.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.publishing.append import append_many
from broker.reading.bounds import BoundsRequests
from broker.reading.pull_filtered import FilteredPullRequests
from broker.reading.pull_many import PullRequests
from broker.requests.access import ADMIN, LOCATE, SESSION
from broker.requests.refusals import refusal_of
from broker.rocketmq.admin import AdminRequests
from broker.rocketmq.assignment import AssignmentRequests
from broker.rocketmq.consume_stats import ConsumeStatsRequests
from broker.rocketmq.group_admin import GroupAdminRequests
from broker.rocketmq.pull import RocketmqPullRequests
from broker.rocketmq.query import QueryRequests
from broker.rocketmq.reply import ReplyRequests
from broker.rocketmq.send import SendRequests
from broker.rocketmq.traffic_stats import TrafficStatsRequests
from broker.sessions.listing import SessionListRequests
from broker.sessions.requests import SessionRequests
from broker.sink.requests import SinkRequests
from broker.store.errors import StoreError
from broker.topics.listing import ListingRequests
from broker.wills.requests import WillRequests
from remoting.access.rights import with_rights
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.broker import BrokerParts
    from broker.requests.tools import Feature

SESSION_CODES = frozenset(
    {
        Code.APPEND_OFFSETS, Code.SESSION_CLOSE, Code.SUBSCRIBE, Code.UNSUBSCRIBE, Code.SESSION_FLOW, Code.WILL_WATCH,
        Code.WILL_VERDICT, Code.FOLLOW, Code.SHARED_TAKE, Code.SHARED_SETTLE, Code.HISTORY,
    }
)  # fmt: skip
"""What only proxies send, on behalf of sessions."""
ADMIN_CODES = frozenset(
    {
        Code.GET_ALL_TOPIC_CONFIG, Code.GET_BROKER_RUNTIME_INFO, Code.GET_TOPIC_STATS_INFO,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.VIEW_BROKER_STATS_DATA,
    }
)  # fmt: skip
"""What tools ask about everything there is. The other handlers ask for themselves, resource by resource."""
SHARED_CODES = frozenset(
    {
        Code.UNREGISTER_CLIENT, Code.CHECK_CLIENT_CONFIG, Code.HEART_BEAT, Code.TOPIC_LIST, Code.QUEUE_BOUNDS,
        Code.GET_CONSUME_STATS, Code.GET_BROKER_CONSUME_STATS,
    }
)  # fmt: skip
"""What everybody with any right may send; what it shows or names is asked for one by one in the handler."""


def features(broker: BrokerParts) -> list[Feature]:
    """Everything that answers requests, each given what it needs."""
    tools = broker.tools
    return [
        broker.followers,
        broker.shared,
        broker.history,
        broker.groups,
        session_requests(broker),
        ListingRequests(tools, topics=broker.topics, status=broker.status),
        SessionListRequests(tools, sessions=broker.sessions, visible=broker.visible),
        WillRequests(
            tools,
            wills=broker.sessions.wills,
            will_room=broker.will_room,
            appender=broker.appender,
            placement=broker.placement,
        ),
        SinkRequests(
            tools,
            stages=broker.stages,
            ledger=broker.ledger,
            placement=broker.placement,
            quota=broker.retained_quota,
            publication=broker.publication,
        ),
        *_reading(broker),
        *_rocketmq(broker),
        *_tools(broker),
    ]


def session_requests(broker: BrokerParts) -> SessionRequests:
    """What proxies ask on behalf of their clients."""
    return SessionRequests(
        broker.tools,
        sessions=broker.sessions,
        retained=broker.retained,
        shared=broker.shared,
        will_room=broker.will_room,
        handovers=broker.handovers,
        appender=broker.appender,
    )


def _reading(broker: BrokerParts) -> list[Feature]:
    tools = broker.tools
    pulls = PullRequests(tools, visible=broker.visible)
    return [
        pulls,
        FilteredPullRequests(tools, pulls=pulls, visible=broker.visible),
        BoundsRequests(tools, topics=broker.topics, long_polls=broker.long_polls, identity=broker.identity),
    ]


def _rocketmq(broker: BrokerParts) -> list[Feature]:
    tools, topics, identity = broker.tools, broker.topics, broker.identity
    groups, queues = broker.groups, broker.queues
    replies = ReplyRequests(tools, topics=topics, clients=groups.clients, identity=identity)
    return [
        replies,
        SendRequests(
            tools,
            topics=topics,
            groups=groups.groups,
            placement=broker.placement,
            publication=broker.publication,
            appender=broker.appender,
            unpacker=broker.unpacker,
            replies=replies,
            identity=identity,
        ),
        RocketmqPullRequests(
            tools,
            queues=queues,
            groups=groups.groups,
            clients=groups.clients,
            group_commits=groups.commits,
            group_traffic=groups.traffic,
            long_polls=broker.long_polls,
            unpacker=broker.unpacker,
            identity=identity,
        ),
        QueryRequests(
            tools, topics=topics, queues=queues, unpacker=broker.unpacker, visible=broker.visible, identity=identity
        ),
        AssignmentRequests(tools, topics=topics, clients=groups.clients, find_route=broker.route_of),
    ]


def _tools(broker: BrokerParts) -> list[Feature]:
    """What RocketMQ's tools ask."""
    tools, topics, groups, identity = broker.tools, broker.topics, broker.groups, broker.identity
    return [
        AdminRequests(
            tools,
            topics=topics,
            groups=groups.groups,
            placement=broker.placement,
            rates_in=broker.rates_in,
            rates_out=broker.rates_out,
            identity=identity,
        ),
        GroupAdminRequests(
            tools,
            topics=topics,
            groups=groups.groups,
            clients=groups.clients,
            offsets=groups.offsets,
            group_commits=groups.commits,
            identity=identity,
        ),
        ConsumeStatsRequests(
            tools,
            queues=broker.queues,
            offsets=groups.offsets,
            group_commits=groups.commits,
            group_traffic=groups.traffic,
            identity=identity,
        ),
        TrafficStatsRequests(tools, topics=topics, group_traffic=groups.traffic),
    ]


def handlers(broker: BrokerParts) -> dict[int, Handler]:
    """The table a router is made of; `lightmq up` merges it with the controller's."""
    table: dict[int, Handler] = {Code.APPEND_MANY: partial(append_many, broker)}
    for feature in features(broker):
        found = feature.handlers()
        assert not table.keys() & found.keys(), "a request code has one handler"
        table |= found
    table = {code: _guarded(broker, handler) for code, handler in table.items()}
    for action, codes in ((SESSION, SESSION_CODES), (ADMIN, ADMIN_CODES), (LOCATE, SHARED_CODES)):
        table |= {code: _asking(broker, action, table[code]) for code in codes}
    return with_rights(table)


def _asking(broker: BrokerParts, action: str, handler: Handler) -> Handler:
    """The handler, for those who may do such a thing at all."""
    authorizer = broker.authorizer

    def handle(peer: Peer, command: Command) -> Command | None:
        authorizer.authorize(peer, command, action, "" if action == LOCATE else f"request {command.code}")
        return handler(peer, command)

    return handle


def _guarded(broker: BrokerParts, handler: Handler) -> Handler:
    metrics = broker.metrics

    def handle(peer: Peer, command: Command) -> Command | None:
        try:
            return handler(peer, command)
        except StoreError as error:
            raise refusal_of(metrics, error) from error

    return handle
