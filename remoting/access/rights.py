"""The right that each request code needs, one table for all deployables: a code without a row cannot be served.

    publish   write under a topic name, or as `$sink/name`
    consume   read everything a filter matches, or `$group/name`
    session   act for the session of an MQTT client
    act_for   send requests on behalf of a client that the sender has authenticated, with that client's rights
    locate    list brokers, and those that have a topic
    inspect   read the state of brokers at the name server and the controllers
    monitor   read the metrics of a part, and why it is not ready
    register  act for a broker name: routes, heartbeats, replication, its part in controller mode
    appoint   assign a role to a broker
    admin     change or see topics, groups, sessions, settings and members of the whole installation

`subject` and `verb` classify the right for readers (docs/request-rights.md); `authorize` checks `action`. A handler
that finds its topics in the request's body checks each of them with that action. Pages of the administration ports have
their own table below. The resource of a check is text: a filter over topics, a consumer group, or a sink.

    RocketMQ topic `orders`          `orders/#`          reading its queues is reading every topic below that name
    light queue `%LMQ%plant%2F7`     `plant/7`           the topic or filter it belongs to
    consumer group `billing`         `$group/billing`    its offsets and members
    sink `etl`                       `$sink/etl`         its staged rows and its ledger

Invariant: tests/arch compares both tables with every table of handlers and pages; no name of a topic, group or sink is
the resource of another kind, and a wildcard or slash in a name widens nothing. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from remoting.protocol.errors import LightMQError, RemoteViolation
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import request_name
from remoting.protocol.records import names
from remoting.protocol.records.record import RecordView

T = TypeVar("T")

PUBLISH = "publish"
CONSUME = "consume"
SESSION = "session"
ACT_FOR = "act_for"
LOCATE = "locate"
INSPECT = "inspect"
MONITOR = "monitor"
REGISTER = "register"
APPOINT = "appoint"
ADMIN = "admin"
ACTIONS = (PUBLISH, CONSUME, SESSION, ACT_FOR, LOCATE, INSPECT, MONITOR, REGISTER, APPOINT, ADMIN)

READ, WRITE, MANAGE = VERBS = ("read", "write", "admin")
SUBJECTS = ("topic", "group", "sink", "client", "session", "broker", "cluster")


@dataclass(frozen=True, slots=True)
class Right:
    """The right that one request code needs."""

    subject: str
    verb: str
    action: str


def _rows(subject: str, verb: str, action: str, *codes: int) -> dict[int, Right]:
    return dict.fromkeys(codes, Right(subject, verb, action))


RIGHTS: dict[int, Right] = {
    **_rows(
        "topic", WRITE, PUBLISH,
        Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.APPEND_MANY, Code.CHECK_PUBLISH,
        Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2, Code.END_TRANSACTION, Code.RECALL_MESSAGE,
        Code.RESCHEDULE_MESSAGE,
    ),
    **_rows(
        "topic", READ, CONSUME,
        Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.MULTI_PULL, Code.RANGE_PULL, Code.FILTERED_PULL,
        Code.RECORDS_AT, Code.QUEUE_BOUNDS, Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET,
        Code.GET_EARLIEST_MSG_STORETIME, Code.VIEW_MESSAGE_BY_ID, Code.QUERY_MESSAGE, Code.QUERY_CONSUME_QUEUE,
        Code.TRACE_MESSAGE, Code.SPARK_REPORT,
    ),
    **_rows("topic", READ, MONITOR, Code.RETAINED_LIST, Code.TOPIC_TREE, Code.TIMERS),
    **_rows(
        "broker", READ, MONITOR, Code.AUDIT_LIST, Code.SPARK_QUERIES, Code.CLUSTER_STATUS, Code.CLIENT_LIST,
        Code.ACCESS_TEST, Code.QUOTAS, Code.ACCESS_RULES, Code.GROUP_LIST,
    ),
    **_rows("group", READ, MONITOR, Code.DEAD_LETTERS),
    **_rows(
        "group", READ, CONSUME,
        Code.QUERY_CONSUMER_OFFSET, Code.GET_CONSUMER_LIST_BY_GROUP, Code.GET_CONSUME_STATS,
        Code.GET_BROKER_CONSUME_STATS, Code.QUERY_ASSIGNMENT, Code.PEEK_MESSAGE, Code.NOTIFICATION, Code.POLLING_INFO,
        Code.GET_SUBSCRIPTIONGROUP_CONFIG,
    ),
    **_rows(
        "group", WRITE, CONSUME,
        Code.UPDATE_CONSUMER_OFFSET, Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ, Code.CONSUMER_SEND_MSG_BACK,
        Code.POP_MESSAGE, Code.ACK_MESSAGE, Code.BATCH_ACK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME,
        Code.POP_LITE_MESSAGE, Code.LITE_SUBSCRIPTION_CTL, Code.ACK_LITE_MESSAGE,
    ),
    **_rows(
        "group", MANAGE, ADMIN,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_CONSUMER_CONNECTION_LIST, Code.GET_PRODUCER_CONNECTION_LIST, Code.INVOKE_BROKER_TO_RESET_OFFSET,
        Code.QUERY_TOPIC_CONSUME_BY_WHO, Code.QUERY_TOPICS_BY_CONSUMER, Code.DELETE_SUBSCRIPTIONGROUP,
        Code.SET_MESSAGE_REQUEST_MODE, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER, Code.QUERY_CONSUME_TIME_SPAN,
        Code.QUERY_CORRECTION_OFFSET, Code.CLONE_GROUP_OFFSET, Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_PRODUCER_INFO,
        Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        Code.GET_LITE_CLIENT_INFO, Code.GET_LITE_GROUP_INFO, Code.TRIGGER_LITE_DISPATCH, Code.RESEND_DEAD_LETTER,
    ),
    **_rows("sink", WRITE, PUBLISH, Code.STAGE, Code.COMMIT_BATCH, Code.ABORT_BATCH),
    **_rows("sink", READ, PUBLISH, Code.LEDGER),
    **_rows("client", READ, ACT_FOR, Code.ADMIT_CLIENT),
    **_rows("client", WRITE, LOCATE, Code.HEART_BEAT, Code.UNREGISTER_CLIENT, Code.CHECK_CLIENT_CONFIG),
    **_rows(
        "session", WRITE, SESSION,
        Code.SESSION_OPEN, Code.SESSION_CLOSE, Code.SUBSCRIBE, Code.UNSUBSCRIBE, Code.SESSION_FLOW, Code.APPEND_OFFSETS,
        Code.WILL_WATCH, Code.WILL_VERDICT, Code.FOLLOW, Code.SHARED_TAKE, Code.SHARED_SETTLE, Code.HISTORY,
        Code.CREATED_USERS, Code.CHECK_USER, Code.PROXY_PRESENT, Code.PROXY_ANSWERED,
    ),
    **_rows("session", READ, MONITOR, Code.SESSION_LIST, Code.MQTT_CLIENTS, Code.PROXY_LIST),
    **_rows("session", MANAGE, ADMIN, Code.MQTT_KICK, Code.SESSION_END),
    **_rows(
        "topic", MANAGE, ADMIN,
        Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_TOPIC_LIST, Code.DELETE_TOPIC_IN_BROKER,
        Code.GET_ALL_TOPIC_CONFIG, Code.GET_TOPIC_STATS_INFO,
        Code.DELETE_TOPIC_IN_NAMESRV, Code.REGISTER_TOPIC_IN_NAMESRV, Code.VIEW_BROKER_STATS_DATA, Code.RETAINED_CLEAR,
        Code.COPY_MESSAGES, Code.COPIED_QUEUES, Code.BEGIN_RETURN, Code.CLAIM_RETURN, Code.TELL_FOLLOWER, Code.FOLLOWER,
        Code.GET_PARENT_TOPIC_INFO, Code.GET_LITE_TOPIC_INFO,
    ),
    **_rows(
        "topic", READ, LOCATE,
        Code.GET_ROUTEINFO_BY_TOPIC, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Code.GET_TOPICS_BY_CLUSTER,
        Code.TOPIC_LIST, Code.GET_TOPIC_CONFIG,
    ),
    **_rows(
        "cluster", READ, LOCATE,
        Code.GET_BROKER_CLUSTER_INFO, Code.SUBSCRIBE_ROUTES, Code.CONTROLLER_GET_METADATA_INFO,
    ),
    **_rows(
        "cluster", READ, INSPECT,
        Code.GET_BROKER_MEMBER_GROUP, Code.GET_KV_CONFIG, Code.GET_KVLIST_BY_NAMESPACE,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, Code.CONTROLLER_GET_SYNC_STATE_DATA, Code.CONTROLLER_GET_REPLICA_INFO,
        Code.GET_BROKER_EPOCH_CACHE, Code.GET_BROKER_HA_STATUS, Code.LIST_CONTROLLERS, Code.MQTT_GROUP,
    ),
    **_rows(
        "broker", WRITE, REGISTER,
        Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.QUERY_DATA_VERSION, Code.BROKER_HEARTBEAT,
        Code.CONTROLLER_ALTER_SYNC_STATE_SET, Code.CONTROLLER_ELECT_MASTER, Code.CONTROLLER_REGISTER_BROKER,
        Code.CONTROLLER_GET_NEXT_BROKER_ID, Code.CONTROLLER_APPLY_BROKER_ID, Code.AGREED_USERS, Code.CHANGE_USERS,
        Code.ELECTION, Code.MERGE_OFFSETS, Code.MERGE_TRANSACTIONS, Code.MERGE_LOCKS,
        Code.AGREE_LOCKS, Code.MERGE_ESCAPED, Code.MERGE_POPS, Code.MERGE_GIVEN,
    ),
    **_rows("broker", WRITE, APPOINT, Code.NOTIFY_BROKER_ROLE_CHANGED),
    **_rows("broker", READ, MONITOR, Code.METRICS),
    **_rows(
        "broker", MANAGE, ADMIN,
        Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER, Code.CLEAN_BROKER_DATA, Code.FORGET_GROUP,
        Code.GET_BROKER_CONFIG, Code.UPDATE_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Code.DELETE_EXPIRED_COMMITLOG,
        Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.CLEAN_UNUSED_TOPIC, Code.GET_BROKER_LITE_INFO,
    ),
    **_rows(
        "cluster", MANAGE, ADMIN,
        Code.PUT_KV_CONFIG, Code.DELETE_KV_CONFIG, Code.UPDATE_NAMESRV_CONFIG, Code.GET_NAMESRV_CONFIG,
        Code.UPDATE_CONTROLLER_CONFIG, Code.GET_CONTROLLER_CONFIG, Code.CHANGE_CONTROLLERS, Code.MOVE_MQTT,
        Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER, Code.AUTH_GET_USER, Code.AUTH_LIST_USER,
        Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL, Code.AUTH_DELETE_ACL, Code.AUTH_GET_ACL, Code.AUTH_LIST_ACL,
    ),
}  # fmt: skip
"""Request code -> right."""

ACTS = frozenset(
    {
        Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_TOPIC_LIST, Code.DELETE_TOPIC_IN_BROKER,
        Code.DELETE_TOPIC_IN_NAMESRV, Code.REGISTER_TOPIC_IN_NAMESRV, Code.RETAINED_CLEAR, Code.BEGIN_RETURN,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Code.DELETE_SUBSCRIPTIONGROUP, Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.SET_MESSAGE_REQUEST_MODE,
        Code.CLONE_GROUP_OFFSET, Code.CONSUME_MESSAGE_DIRECTLY, Code.TRIGGER_LITE_DISPATCH,
        Code.MQTT_KICK, Code.SESSION_END, Code.RESEND_DEAD_LETTER,
        Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER, Code.CLEAN_BROKER_DATA, Code.FORGET_GROUP,
        Code.UPDATE_BROKER_CONFIG, Code.DELETE_EXPIRED_COMMITLOG, Code.CLEAN_EXPIRED_CONSUMEQUEUE,
        Code.CLEAN_UNUSED_TOPIC, Code.PUT_KV_CONFIG, Code.DELETE_KV_CONFIG, Code.UPDATE_NAMESRV_CONFIG,
        Code.UPDATE_CONTROLLER_CONFIG, Code.CHANGE_CONTROLLERS, Code.MOVE_MQTT,
        Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER,
        Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL, Code.AUTH_DELETE_ACL,
    }
)  # fmt: skip
"""Requests that change something for others than who sends them: each becomes a record (docs/howto/operate.md)."""

PAGES: dict[str, Right | None] = {
    "/livez": None,
    "/startupz": None,
    "/readyz": None,
    "/readyz parts": Right("cluster", READ, MONITOR),
    "/metrics": Right("cluster", READ, MONITOR),
    "/status": Right("broker", MANAGE, ADMIN),
}
"""Page of an administration port -> right; None: for probes of supervisors, which have no key and get yes or no. The
status page shows what CLUSTER_STATUS does, and needs the same right."""


def page_actions() -> dict[str, str]:
    """Page -> the action that `authorize` checks; empty for public pages."""
    return {page: "" if right is None else right.action for page, right in PAGES.items()}


def with_rights(handlers: Mapping[int, T]) -> dict[int, T]:
    """Return the table of handlers unchanged. Raises LightMQError for a code without a declared right."""
    missing = sorted(set(handlers) - RIGHTS.keys())
    if missing:
        raise LightMQError(f"no right is declared for {', '.join(map(request_name, missing))}: remoting.access.rights")
    return dict(handlers)


GROUP = "$group/"
SINK = "$sink/"
_NO_LEVEL = re.compile(r"[+#/\x00]|^$")
_LIGHT = names.LMQ_PREFIX.decode()


def of_topic(topic: str) -> str:
    """Return the resource of a RocketMQ topic or a light queue, by its name."""
    if topic.startswith(_LIGHT):
        return names.light_queue_topic(topic.encode()).decode("utf-8", "replace")
    return f"{_first_level(topic)}/#"


def of_record(record: RecordView) -> str:
    """Return the resource of one message: its MQTT topic, else its RocketMQ topic."""
    if record.mqtt_topic is not None:
        return bytes(record.mqtt_topic).decode("utf-8", "replace")
    return of_topic(bytes(record.topic).decode("utf-8", "replace"))


def of_group(group: str) -> str:
    """Return the resource of a consumer group."""
    return GROUP + _one_level(group)


def of_sink(sink: str) -> str:
    """Return the resource of a sink."""
    return SINK + _one_level(sink)


def _first_level(topic: str) -> str:
    """Return the first level of the MQTT topics stored under a topic; its own name if it is no parent topic."""
    try:
        level = names.unescape(topic.encode()).decode()
    except (RemoteViolation, UnicodeError):
        return topic
    return topic if _NO_LEVEL.search(level) else level


def _one_level(name: str) -> str:
    """Escape what would make a name more than one level or a wildcard."""
    return names.escape(name.encode("utf-8", "surrogatepass")).decode()
