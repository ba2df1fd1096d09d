"""Lite topics: changes of subscriptions, which groups read them, and the server's part of settings. Pure."""

from __future__ import annotations

from typing import Any

from grpc_proxy.mapping.settings import LITE_CONSUMERS, PUSH_OR_SIMPLE
from grpc_proxy.mapping.statuses import CallRejected, Code
from grpc_proxy.mapping.values import checked_lite_topic, group_of, topic_of
from grpc_proxy.stubs import definition

Action = definition.LiteSubscriptionAction
QUOTA_MAX = 2**31 - 1
"""Announced to clients of a group without a quota."""
_POLICIES = definition.OffsetOption.Policy.values()


def check_group(settings: Any, bound: str) -> None:
    """CallRejected unless a consumer's type fits its group, which reads the lite topics of `bound` if that is given."""
    kind, group = settings.client_type, settings.subscription.group.name
    topics = {topic_of(one.topic) for one in settings.subscription.subscriptions}
    if kind in LITE_CONSUMERS and not bound:
        text = f"the group {group!r} is bound to no topic by its attribute lite.bind.topic"
        raise CallRejected(Code.ILLEGAL_CONSUMER_GROUP, text)
    if kind in LITE_CONSUMERS and topics - {bound}:
        raise CallRejected(Code.ILLEGAL_CONSUMER_GROUP, f"the group {group!r} reads lite topics of {bound!r} only")
    if kind in PUSH_OR_SIMPLE and bound and bound in topics:
        text = f"the group {group!r} reads {bound!r} by lite topics: use a consumer of lite topics"
        raise CallRejected(Code.ILLEGAL_CONSUMER_GROUP, text)


def announce(answer: Any, *, quota: int, chars_max: int) -> None:
    """Put what consumers of lite topics need into the answer to their settings. `quota`: -1 for no limit."""
    answer.subscription.fifo = True
    answer.subscription.lite_subscription_quota = min(quota, QUOTA_MAX) if quota >= 0 else QUOTA_MAX
    answer.subscription.max_lite_topic_size = chars_max


def change(client_id: str, request: Any, chars_max: int) -> dict[str, Any]:
    """Return the body of LITE_SUBSCRIPTION_CTL for a SyncLiteSubscription. CallRejected for its first fault."""
    group, topic = group_of(request.group), topic_of(request.topic)
    if request.action not in Action.values():
        raise CallRejected(Code.BAD_REQUEST, f"the action {request.action} is unknown")
    wanted = [checked_lite_topic(topic, one, chars_max) for one in request.lite_topic_set]
    entry: dict[str, Any] = {"version": request.version, "liteTopicSet": wanted}
    if request.HasField("offset_option"):
        entry["offsetOption"] = _offset_option(request.offset_option)
    return _body(client_id, group, topic, Action.Name(request.action), entry)


def removal(client_id: str, group: str, topic: str) -> dict[str, Any]:
    """Return the body of LITE_SUBSCRIPTION_CTL for a client that stops."""
    return _body(client_id, group, topic, Action.Name(Action.COMPLETE_REMOVE), {"liteTopicSet": []})


def _body(client_id: str, group: str, topic: str, action: str, entry: dict[str, Any]) -> dict[str, Any]:
    return {"subscriptionSet": [{"action": action, "clientId": client_id, "group": group, "topic": topic, **entry}]}


def _offset_option(option: Any) -> dict[str, Any]:
    name = next((name for name in ("policy", "offset", "tail_n", "timestamp") if option.HasField(name)), "policy")
    found = getattr(option, name)
    if found < 0 or (name == "policy" and found not in _POLICIES):
        raise CallRejected(Code.BAD_REQUEST, f"the offset option {name} may not be {found}")
    return {"type": name.upper(), "value": found}
