"""Lite topics in calls of gRPC clients: groups, settings, changes of subscriptions.

They pass `grpc_proxy.mapping.lite`.
"""

from __future__ import annotations

from typing import Any

import pytest

from grpc_proxy.mapping.lite import announce, change, check_group, removal
from grpc_proxy.mapping.statuses import CallRejected
from grpc_proxy.stubs import definition as d
from grpc_proxy.stubs import service as s

Code, Kind, Action = d.Code, d.ClientType, d.LiteSubscriptionAction
TOPIC, GROUP = d.Resource(name="agents", resource_namespace="shop"), d.Resource(name="workers")


def settings(kind: int, *topics: str) -> Any:
    entries = [{"topic": {"name": topic}} for topic in topics]
    return d.Settings(client_type=kind, subscription={"group": GROUP, "subscriptions": entries})


def sync(**asked: Any) -> Any:
    return s.SyncLiteSubscriptionRequest(**{"topic": TOPIC, "group": GROUP, **asked})


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        (settings(Kind.LITE_PUSH_CONSUMER, "agents"), "agents"),
        (settings(Kind.LITE_SIMPLE_CONSUMER), "agents"),
        (settings(Kind.PUSH_CONSUMER, "orders"), "agents"),
        (settings(Kind.PULL_CONSUMER, "agents"), "agents"),
        (settings(Kind.SIMPLE_CONSUMER, "orders"), ""),
    ],
)
def test_a_group_fits_its_clients(given, bound):
    check_group(given, bound)


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        (settings(Kind.LITE_PUSH_CONSUMER, "agents"), ""),
        (settings(Kind.LITE_SIMPLE_CONSUMER, "agents", "orders"), "agents"),
        (settings(Kind.SIMPLE_CONSUMER, "agents"), "agents"),
    ],
)
def test_a_group_that_does_not_fit_is_rejected(given, bound):
    with pytest.raises(CallRejected) as caught:
        check_group(given, bound)
    assert caught.value.code == Code.ILLEGAL_CONSUMER_GROUP


@pytest.mark.parametrize(("quota", "announced"), [(7, 7), (-1, 2**31 - 1), (2**40, 2**31 - 1)])
def test_the_quota_is_announced(quota, announced):
    answer = d.Settings()
    announce(answer, quota=quota, chars_max=64)
    found = answer.subscription
    assert (found.lite_subscription_quota, found.max_lite_topic_size, found.fifo) == (announced, 64, True)


def test_a_change_has_its_action_names_version_and_offset():
    asked = sync(action=Action.PARTIAL_ADD, lite_topic_set=["s-1"], version=3, offset_option={"tail_n": 2})
    assert change("c", asked, 64) == {
        "subscriptionSet": [
            {
                "action": "PARTIAL_ADD", "clientId": "c", "group": "workers", "topic": "shop%agents",
                "liteTopicSet": ["s-1"], "version": 3, "offsetOption": {"type": "TAIL_N", "value": 2},
            }
        ]
    }  # fmt: skip
    assert "offsetOption" not in change("c", sync(), 64)["subscriptionSet"][0]
    (removed,) = removal("c", "workers", "agents")["subscriptionSet"]
    assert (removed["action"], removed["liteTopicSet"]) == ("COMPLETE_REMOVE", [])


@pytest.mark.parametrize(
    ("option", "sent"),
    [
        ({}, ("POLICY", 0)), ({"policy": d.OffsetOption.Policy.MAX}, ("POLICY", 2)), ({"offset": 5}, ("OFFSET", 5)),
        ({"timestamp": 9}, ("TIMESTAMP", 9)),
    ],
)  # fmt: skip
def test_offset_options_keep_their_meaning(option, sent):
    (found,) = change("c", sync(offset_option=option), 64)["subscriptionSet"]
    assert (found["offsetOption"]["type"], found["offsetOption"]["value"]) == sent


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"action": 9}, Code.BAD_REQUEST),
        ({"lite_topic_set": ["s-1", "s/#"]}, Code.ILLEGAL_LITE_TOPIC),
        ({"offset_option": {"offset": -1}}, Code.BAD_REQUEST),
        ({"offset_option": {"policy": 7}}, Code.BAD_REQUEST),
        ({"group": {}}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"topic": {}}, Code.ILLEGAL_TOPIC),
    ],
)
def test_changes_that_cannot_be_made_are_rejected(asked, code):
    with pytest.raises(CallRejected) as caught:
        change("c", sync(**asked), 64)
    assert caught.value.code == code
