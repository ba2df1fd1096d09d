"""Request code -> handler of this broker; nothing else dispatches.

A handler is a function of (broker, peer, command) that answers with a command, or answers later and returns None. What
the store refuses becomes the refusal a client understands, here and for all handlers alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from broker.api import (
    admin,
    assignment,
    bounds,
    clients,
    consume_stats,
    group_admin,
    offsets,
    permission,
    pull,
    pull_filtered,
    pull_many,
    query,
    reply,
    send,
    session_list,
    sessions,
    sink,
    topic_list,
    traffic_stats,
    wills,
)
from broker.api.access import ADMIN, LOCATE, SESSION
from broker.api.append import append_many, refusal_of
from broker.store.errors import StoreError
from remoting.access.rights import with_rights
from remoting.protocol.codes import RequestCode as Code
from remoting.protocol.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.api.context import Broker

BrokerHandler = Callable[["Broker", Peer, Command], Command | None]

TABLE: dict[int, BrokerHandler] = {
    Code.APPEND_MANY: append_many,
    Code.MULTI_PULL: pull_many.multi_pull,
    Code.RANGE_PULL: pull_many.range_pull,
    Code.RECORDS_AT: pull_many.records_at,
    Code.FILTERED_PULL: pull_filtered.filtered_pull,
    Code.QUEUE_BOUNDS: bounds.queue_bounds,
    Code.APPEND_OFFSETS: sessions.append_offsets,
    Code.SESSION_OPEN: sessions.session_open,
    Code.SESSION_CLOSE: sessions.session_close,
    Code.SUBSCRIBE: sessions.subscribe,
    Code.UNSUBSCRIBE: sessions.unsubscribe,
    Code.SESSION_FLOW: sessions.session_flow,
    Code.WILL_WATCH: wills.will_watch,
    Code.WILL_VERDICT: wills.will_verdict,
    Code.SESSION_LIST: session_list.session_list,
    Code.STAGE: sink.stage,
    Code.COMMIT_BATCH: sink.commit_batch,
    Code.ABORT_BATCH: sink.abort_batch,
    Code.LEDGER: sink.ledger,
    Code.CHECK_PUBLISH: permission.check_publish,
    Code.TOPIC_LIST: topic_list.topic_list,
    Code.CLUSTER_STATUS: topic_list.cluster_status,
    Code.SEND_MESSAGE: send.send_message,
    Code.SEND_MESSAGE_V2: send.send_message,
    Code.SEND_BATCH_MESSAGE: send.send_message,
    Code.CONSUMER_SEND_MSG_BACK: send.send_back,
    Code.SEND_REPLY_MESSAGE: reply.send_reply,
    Code.SEND_REPLY_MESSAGE_V2: reply.send_reply,
    Code.PULL_MESSAGE: pull.pull_message,
    Code.LITE_PULL_MESSAGE: pull.pull_message,
    Code.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
    Code.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset,
    Code.GET_MAX_OFFSET: offsets.max_offset,
    Code.GET_MIN_OFFSET: offsets.min_offset,
    Code.GET_EARLIEST_MSG_STORETIME: offsets.earliest_store_time,
    Code.VIEW_MESSAGE_BY_ID: query.view_message,
    Code.QUERY_MESSAGE: query.query_message,
    Code.QUERY_CONSUME_QUEUE: query.query_consume_queue,
    Code.HEART_BEAT: clients.heartbeat,
    Code.UNREGISTER_CLIENT: clients.unregister,
    Code.CHECK_CLIENT_CONFIG: clients.check_client,
    Code.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_list,
    Code.QUERY_ASSIGNMENT: assignment.query_assignment,
    Code.LOCK_BATCH_MQ: clients.lock_batch,
    Code.UNLOCK_BATCH_MQ: clients.unlock_batch,
    Code.UPDATE_AND_CREATE_TOPIC: admin.update_topic,
    Code.DELETE_TOPIC_IN_BROKER: admin.delete_topic,
    Code.GET_ALL_TOPIC_CONFIG: admin.all_topics,
    Code.GET_TOPIC_CONFIG: admin.topic_config,
    Code.UPDATE_BROKER_CONFIG: admin.update_config,
    Code.GET_BROKER_CONFIG: admin.get_config,
    Code.GET_BROKER_RUNTIME_INFO: admin.runtime_info,
    Code.GET_TOPIC_STATS_INFO: admin.topic_stats,
    Code.VIEW_BROKER_STATS_DATA: traffic_stats.view_stats,
    Code.GET_CONSUME_STATS: consume_stats.consume_stats,
    Code.GET_BROKER_CONSUME_STATS: consume_stats.broker_consume_stats,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: admin.update_group,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.all_groups,
    Code.DELETE_SUBSCRIPTIONGROUP: group_admin.delete_group,
    Code.GET_CONSUMER_CONNECTION_LIST: group_admin.consumer_connections,
    Code.GET_PRODUCER_CONNECTION_LIST: group_admin.producer_connections,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: group_admin.reset_offsets,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: group_admin.groups_of_topic,
    Code.QUERY_TOPICS_BY_CONSUMER: group_admin.topics_of_group,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: group_admin.system_topics,
}


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


def handlers(broker: Broker) -> dict[int, Handler]:
    """The table a router is made of; `lightmq up` merges it with the controller's."""
    table = {code: _guarded(broker, handler) for code, handler in TABLE.items()}
    table[Code.FOLLOW] = broker.followers.handle
    table[Code.SHARED_TAKE] = broker.shared.take
    table[Code.SHARED_SETTLE] = broker.shared.settle
    table[Code.HISTORY] = broker.history.handle
    for action, codes in ((SESSION, SESSION_CODES), (ADMIN, ADMIN_CODES), (LOCATE, SHARED_CODES)):
        table |= {code: _asking(broker, action, table[code]) for code in codes}
    return with_rights(table)


def _asking(broker: Broker, action: str, handler: Handler) -> Handler:
    """The handler, for those who may do such a thing at all."""

    def handle(peer: Peer, command: Command) -> Command | None:
        broker.authorizer.authorize(peer, command, action, "" if action == LOCATE else f"request {command.code}")
        return handler(peer, command)

    return handle


def _guarded(broker: Broker, handler: BrokerHandler) -> Handler:
    bound = partial(handler, broker)

    def handle(peer: Peer, command: Command) -> Command | None:
        try:
            return bound(peer, command)
        except StoreError as error:
            raise refusal_of(broker.metrics, error) from error

    return handle
