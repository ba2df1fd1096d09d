"""Settings: what a client reports on its telemetry stream, and what the server adds for it.

The answer is the client's own settings with the server's part of them: limits for producers, receive sizes and the
pauses between two deliveries for consumers. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from grpc_proxy.mapping.statuses import CallRejected, Code
from grpc_proxy.mapping.values import duration, group_of, topic_of
from grpc_proxy.stubs import definition

ClientType = definition.ClientType
PUSH_OR_SIMPLE = (ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER)
LITE_CONSUMERS = (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER)
CONSUMERS = (*PUSH_OR_SIMPLE, ClientType.PULL_CONSUMER, *LITE_CONSUMERS)
SEND_ATTEMPTS, SEND_PAUSE_MS, SEND_PAUSE_MS_MAX, SEND_FACTOR = 3, 10, 1_000, 2.0
RETRY_PAUSES_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
"""Pause before each repetition: RocketMQ's delay levels."""
TOPICS_MAX = 1_000
"""Most topics or subscriptions of one client."""


def answered(
    settings: Any, *, body_bytes_max: int, batch_max: int, long_poll_ms_max: int, fifo: bool, deliveries_max: int
) -> Any:
    """Return a client's settings, which `check` has passed, with the server's part.

    `fifo`: whether the consumer's group consumes in order; `deliveries_max`: how often it gets a message at most.
    """
    answer = definition.Settings()
    answer.CopyFrom(settings)
    answer.metric.on = False
    if settings.client_type == ClientType.PRODUCER:
        answer.publishing.max_body_size = body_bytes_max
        answer.publishing.validate_message_type = True
        policy = answer.backoff_policy
        policy.max_attempts = SEND_ATTEMPTS
        policy.exponential_backoff.initial.CopyFrom(duration(SEND_PAUSE_MS))
        policy.exponential_backoff.max.CopyFrom(duration(SEND_PAUSE_MS_MAX))
        policy.exponential_backoff.multiplier = SEND_FACTOR
        return answer
    answer.subscription.receive_batch_size = batch_max
    answer.subscription.long_polling_timeout.CopyFrom(duration(long_poll_ms_max))
    answer.subscription.fifo = fifo
    answer.backoff_policy.max_attempts = deliveries_max
    pauses = [duration(seconds * 1_000) for seconds in RETRY_PAUSES_S]
    answer.backoff_policy.customized_backoff.next.extend(pauses)
    return answer


def check(settings: Any) -> None:
    """CallRejected for settings that fit no type of client, or that name too many topics."""
    kind = settings.client_type
    if kind not in (ClientType.PRODUCER, *CONSUMERS):
        raise CallRejected(Code.UNRECOGNIZED_CLIENT_TYPE, f"the client type {kind} is unknown")
    if kind != ClientType.PRODUCER:
        group_of(settings.subscription.group)
    if max(len(settings.publishing.topics), len(settings.subscription.subscriptions)) > TOPICS_MAX:
        raise CallRejected(Code.BAD_REQUEST, f"a client has at most {TOPICS_MAX} topics")


def producer_heartbeat(client_id: str, topics: Iterable[str], release: str = "") -> dict[str, Any]:
    """Return the body of HEART_BEAT for a producer, whose groups are the topics that it may write to.

    `release`: the version of the client as it names it.
    """
    groups = [{"groupName": topic} for topic in topics]
    return {"clientID": client_id, "producerDataSet": groups, "consumerDataSet": [], "grpcRelease": release}


def consumer_heartbeat(client_id: str, group: str, subscription: Any, release: str = "") -> dict[str, Any]:
    """Return the body of HEART_BEAT for a consumer with this part of its settings."""
    kinds = definition.FilterType
    subscriptions: list[dict[str, Any]] = [
        {
            "topic": topic_of(one.topic), "subString": one.expression.expression or "*", "subVersion": 0,
            "expressionType": "SQL92" if one.expression.type == kinds.SQL else "TAG",
            "tagsSet": [], "codeSet": [], "classFilterMode": False,
        }
        for one in subscription.subscriptions
    ]  # fmt: skip
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False,
        "subscriptionDataSet": subscriptions,
    }  # fmt: skip
    return {"clientID": client_id, "producerDataSet": [], "consumerDataSet": [consumer], "grpcRelease": release}


def expression_of(filter_expression: Any) -> tuple[str, str]:
    """Return (type, expression) as the broker knows them. CallRejected for an unknown type."""
    kinds = definition.FilterType
    names = {kinds.FILTER_TYPE_UNSPECIFIED: "TAG", kinds.TAG: "TAG", kinds.SQL: "SQL92"}
    name = names.get(filter_expression.type)
    if name is None:
        raise CallRejected(Code.ILLEGAL_FILTER_EXPRESSION, f"the filter type {filter_expression.type} is unknown")
    return name, filter_expression.expression or "*"
