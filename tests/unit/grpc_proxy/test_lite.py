"""Lite topics through a real port to a real broker: sends, subscriptions, receives and what becomes of the messages.

They pass `grpc_proxy.lite`, and the parts for lite topics of `grpc_proxy.receiving` and `grpc_proxy.clients`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.config import LimitsConfig
from grpc_proxy.service import NAME
from grpc_proxy.stubs import definition as d
from grpc_proxy.stubs import service as s
from remoting import inprocess
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.unit.broker.lite.client import GROUP, PARENT, make_group, make_parent, pop, subscribe
from tests.unit.grpc_proxy.conftest import ENDPOINTS, ProxyBench, message
from tests.unit.grpc_proxy.test_consumers import telemetry

Code, Type = d.Code, d.MessageType
AGENTS, WORKERS = d.Resource(name=PARENT), d.Resource(name=GROUP)


@pytest.fixture
async def lite(tmp_path: Path) -> AsyncIterator[ProxyBench]:
    """A proxy in front of a broker with the parent topic `agents`, of two lite topics at most."""
    bench = ProxyBench(tmp_path / "data", broker_options={"limits": LimitsConfig(lite_topics_max=2)})
    await bench.start()
    bench.remoting = inprocess.connect(bench.broker.router)
    assert (await make_parent(bench.remoting)).code == (await make_group(bench.remoting)).code == 0
    yield bench
    await bench.stop()


def lite_message(lite_topic: str, body: bytes = b"hello", **system: Any) -> Any:
    given = message(body, lite_topic=lite_topic, message_type=Type.LITE, **system)
    given.topic.CopyFrom(AGENTS)
    return given


async def test_a_message_for_a_lite_topic_is_given_to_its_subscribers(lite):
    found = await lite.call("QueryRoute", s.QueryRouteRequest(topic=AGENTS, endpoints=ENDPOINTS))
    assert {tuple(queue.accept_message_types) for queue in found.message_queues} == {(Type.LITE,)}
    assert await subscribe(lite.remoting, "s-1") == 0
    sent = await lite.send(lite_message("s-1", tag="t"), lite_message("s-2"), lite_message("s-1", b"again"))
    assert [entry.status.code for entry in sent.entries] == [Code.OK] * 3
    got = await pop(lite.remoting)
    assert [(one.body, one.lite_topic) for one in got] == [(b"hello", "s-1"), (b"again", "s-1")]
    assert (got[0].properties["TAGS"], got[0].properties["UNIQ_KEY"]) == ("t", "0102")


async def test_lite_topics_have_a_limit_and_parents_of_their_type(lite):
    assert (await lite.send(lite_message("s-1"), lite_message("s-2"))).status.code == Code.OK
    assert (await lite.send(lite_message("s-3"))).status.code == Code.LITE_TOPIC_QUOTA_EXCEEDED
    other = lite_message("s-1")
    other.topic.name = "orders"
    assert (await lite.send(other)).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    other.topic.name = "nothing"
    assert (await lite.send(other)).status.code == Code.TOPIC_NOT_FOUND
    assert (await lite.send(lite_message("s/+"))).status.code == Code.ILLEGAL_LITE_TOPIC


def by(client: str) -> Any:
    """The metadata of a client."""
    return (("x-mq-client-id", client),)


async def sync(lite: ProxyBench, action: str, *lite_topics: str, client: str = "client-1", **asked: Any) -> int:
    """The code of the answer to a SyncLiteSubscription."""
    request = s.SyncLiteSubscriptionRequest(
        action=d.LiteSubscriptionAction.Value(action), lite_topic_set=lite_topics,
        **{"topic": AGENTS, "group": WORKERS, **asked},
    )  # fmt: skip
    return (await lite.call("SyncLiteSubscription", request, by(client))).status.code


async def receive(lite: ProxyBench, client: str = "client-1", **asked: Any) -> list[Any]:
    """The messages of a receive; none when it brings none."""
    given = {"group": WORKERS, "message_queue": {"topic": AGENTS, "id": -1}, **asked}
    answers = await lite.receive(metadata=by(client), **given)
    if answers[0].status.code == Code.MESSAGE_NOT_FOUND:
        return []
    assert answers[0].status.code == Code.OK, answers[0]
    return [one.message for one in answers[1:-1]]


def seen(messages: list[Any]) -> list[tuple[str, bytes, int]]:
    systems = [one.system_properties for one in messages]
    return [(each.lite_topic, one.body, each.delivery_attempt) for one, each in zip(messages, systems, strict=True)]


async def acknowledge(lite: ProxyBench, *messages: Any, group: Any = None) -> list[int]:
    """The codes for these messages."""
    entries = [
        {
            "message_id": one.system_properties.message_id, "receipt_handle": one.system_properties.receipt_handle,
            "lite_topic": one.system_properties.lite_topic,
        }
        for one in messages
    ]  # fmt: skip
    request = s.AckMessageRequest(group=group or WORKERS, topic=AGENTS, entries=entries)
    return [entry.status.code for entry in (await lite.call("AckMessage", request)).entries]


async def test_a_lite_topic_is_given_in_order_and_others_do_not_wait(lite):
    assert await sync(lite, "PARTIAL_ADD", "s-1", "s-2") == Code.OK
    await lite.send(lite_message("s-1", b"1"), lite_message("s-1", b"2"))
    first = await receive(lite, batch_size=1)
    assert seen(first) == [("s-1", b"1", 1)]
    await lite.send(lite_message("s-2", b"3"))
    other = await receive(lite)
    assert seen(other) == [("s-2", b"3", 1)]
    assert (other[0].system_properties.message_type, other[0].topic) == (Type.LITE, AGENTS)
    assert await receive(lite) == []
    assert await acknowledge(lite, *first, *other) == [Code.OK] * 2
    assert await acknowledge(lite, *first) == [Code.INVALID_RECEIPT_HANDLE]
    await lite.revive(2_000)
    assert seen(await receive(lite)) == [("s-1", b"2", 1)]


async def test_what_is_not_acknowledged_comes_again_in_place(lite):
    assert await sync(lite, "PARTIAL_ADD", "s-1") == Code.OK
    await lite.send(lite_message("s-1", b"1"), lite_message("s-1", b"2"))
    old = await receive(lite)
    await lite.revive(31_000)
    again = await receive(lite)
    assert seen(again) == [("s-1", b"1", 2), ("s-1", b"2", 2)]
    assert await acknowledge(lite, *old) == [Code.INVALID_RECEIPT_HANDLE] * 2
    assert await acknowledge(lite, *again, group={"name": "others"}) == [Code.INVALID_RECEIPT_HANDLE] * 2
    assert await acknowledge(lite, *again) == [Code.OK] * 2


async def test_a_lost_answer_is_repeated_for_its_attempt(lite):
    assert await sync(lite, "PARTIAL_ADD", "s-1") == Code.OK
    await lite.send(lite_message("s-1"))
    first, again = await receive(lite, attempt_id="one"), await receive(lite, attempt_id="one")
    assert (len(first), [one.body for one in again]) == (1, [b"hello"])
    assert await receive(lite, attempt_id="two") == []


async def test_a_receive_waits_for_the_first_message_of_a_lite_topic(lite):
    assert await sync(lite, "PARTIAL_ADD", "s-1") == Code.OK
    waiting = asyncio.ensure_future(receive(lite, long_polling_timeout={"seconds": 15}))
    while not lite.broker.broker.reading.long_polls:
        await asyncio.sleep(0)
    await lite.send(lite_message("s-2"), lite_message("s-1", b"mine"))
    assert seen(await waiting) == [("s-1", b"mine", 1)]


async def test_what_a_client_that_left_did_not_take_is_given_to_another(lite):
    assert await sync(lite, "PARTIAL_ADD", "s-1") == await sync(lite, "PARTIAL_ADD", "s-1", client="other") == Code.OK
    asked = s.ReceiveMessageRequest(
        group=WORKERS, message_queue={"topic": AGENTS, "id": -1}, batch_size=1, invisible_duration={"seconds": 3_600},
        long_polling_timeout={"seconds": 15},
    ).SerializeToString()  # fmt: skip
    call = lite.channel.unary_stream(f"/{NAME}/ReceiveMessage")(asked, metadata=by("client-1"))
    while not lite.broker.broker.reading.long_polls:
        await asyncio.sleep(0)
    call.cancel()
    assert (await lite.call("Heartbeat", s.HeartbeatRequest(group=WORKERS))).status.code == Code.OK
    await lite.send(lite_message("s-1"))
    while not lite.broker.registry.values()["rocketmq_grpc_returned_messages_total"]:
        await asyncio.sleep(0)
    await lite.app.settled()
    await lite.revive(1)
    assert [one.body for one in await receive(lite, "other")] == [b"hello"]


async def test_a_changed_time_gives_a_new_handle_and_dead_letters_leave_the_lite_topic(lite):
    assert await sync(lite, "PARTIAL_ADD", "s-1") == Code.OK
    await lite.send(lite_message("s-1", b"poison"), lite_message("s-1", b"good"))
    poison, good = await receive(lite)
    named = {"group": WORKERS, "topic": AGENTS, "message_id": "m", "lite_topic": "s-1"}
    request = s.ChangeInvisibleDurationRequest(
        receipt_handle=poison.system_properties.receipt_handle, invisible_duration={"seconds": 90}, **named
    )
    lite.clock.advance_ms(1)
    changed = await lite.call("ChangeInvisibleDuration", request)
    assert changed.status.code == Code.OK
    assert await acknowledge(lite, poison) == [Code.INVALID_RECEIPT_HANDLE]
    dead = s.ForwardMessageToDeadLetterQueueRequest(
        receipt_handle=changed.receipt_handle, delivery_attempt=1, max_delivery_attempts=16, **named
    )
    assert (await lite.call("ForwardMessageToDeadLetterQueue", dead)).status.code == Code.OK
    assert (await lite.call("ForwardMessageToDeadLetterQueue", dead)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert await acknowledge(lite, good) == [Code.OK]
    await lite.revive(100_000)
    assert await receive(lite) == []
    (found,) = await lite.messages(
        group={"name": "undertaker"}, message_queue={"topic": {"name": "%DLQ%workers"}, "id": -1}
    )
    assert found.body == b"poison"


def lite_settings(kind: int = d.ClientType.LITE_PUSH_CONSUMER, **subscription: Any) -> Any:
    entries = [{"topic": AGENTS, "expression": {"type": d.FilterType.TAG, "expression": "*"}}]
    return d.Settings(client_type=kind, subscription={"group": WORKERS, "subscriptions": entries, **subscription})


async def test_a_consumer_learns_its_quota_and_its_messages_are_renewed_until_it_stops(lite):
    async with telemetry(lite, lite_settings()) as stream:
        found = stream.answer.settings.subscription
        assert (found.lite_subscription_quota, found.max_lite_topic_size, found.fifo) == (2_000, 64, True)
        assert await sync(lite, "COMPLETE_ADD", "s-1") == Code.OK
        await lite.send(lite_message("s-1"))
        got = await receive(lite, auto_renew=True)
        for _ in range(3):
            lite.clock.advance_ms(31_000)
            lite.app.renewal.renew_due()
            await lite.call("Heartbeat", s.HeartbeatRequest(group=WORKERS))
            await lite.revive(0)
        assert await receive(lite) == []
        assert await acknowledge(lite, *got) == [Code.OK]
        ended = await lite.call("NotifyClientTermination", s.NotifyClientTerminationRequest(group=WORKERS))
        assert ended.status.code == Code.OK
        assert lite.broker.registry.values()["rocketmq_lite_subscriptions"] == 0


@pytest.mark.parametrize(
    ("kind", "group"),
    [("LITE_PUSH_CONSUMER", "billing"), ("LITE_SIMPLE_CONSUMER", "billing"), ("PUSH_CONSUMER", "workers")],
)
async def test_a_group_that_does_not_fit_is_refused_at_the_settings(lite, kind, group):
    settings = lite_settings(d.ClientType.Value(kind), group={"name": group})
    async with telemetry(lite, settings) as stream:
        assert stream.answer.status.code == Code.ILLEGAL_CONSUMER_GROUP


async def test_a_client_that_loses_a_lite_topic_is_notified(lite):
    assert (await make_group(lite.remoting, lite_sub_model="Exclusive")).code == 0
    async with telemetry(lite, lite_settings()) as stream:
        assert await sync(lite, "PARTIAL_ADD", "s-1") == Code.OK
        assert await sync(lite, "PARTIAL_ADD", "s-1", client="newer") == Code.OK
        assert (await stream.read()).notify_unsubscribe_lite_command.lite_topic == "s-1"
        await lite.send(lite_message("s-1"))
        assert (await receive(lite), len(await receive(lite, "newer"))) == ([], 1)
    assert await sync(lite, "PARTIAL_ADD", "s-1", client="newest") == Code.OK
    assert lite.counted("rocketmq_grpc_commands_dropped_total") == {"notify_unsubscribe_lite": 1}


async def test_subscriptions_are_added_replaced_and_removed(lite):
    await lite.send(lite_message("s-1"), lite_message("s-2"))
    assert await receive(lite) == []
    assert await sync(lite, "COMPLETE_ADD", "s-1", "s-2", version=2) == Code.OK
    assert await sync(lite, "PARTIAL_REMOVE", "s-1") == Code.OK
    assert [one[0] for one in seen(await receive(lite))] == ["s-2"]
    assert await sync(lite, "COMPLETE_REMOVE") == Code.OK
    await lite.send(lite_message("s-1"))
    assert await receive(lite) == []
    assert await sync(lite, "PARTIAL_ADD", "s-1", offset_option={"policy": d.OffsetOption.Policy.MAX}) == Code.OK
    assert await receive(lite) == []
    await lite.send(lite_message("s-1", b"new"))
    assert seen(await receive(lite)) == [("s-1", b"new", 1)]


async def test_subscriptions_that_cannot_be_made_have_their_codes(lite):
    assert (await make_group(lite.remoting, lite_sub_client_quota="1")).code == 0
    assert await sync(lite, "PARTIAL_ADD", "s-1", "s-2") == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert await sync(lite, "PARTIAL_ADD", "s/#") == Code.ILLEGAL_LITE_TOPIC
    assert await sync(lite, "PARTIAL_ADD", "s-1", group={"name": "nothing"}) == Code.BAD_REQUEST
    assert await sync(lite, "PARTIAL_ADD", "s-1", topic={"name": "orders"}) == Code.BAD_REQUEST
    chosen = {"type": d.FilterType.TAG, "expression": "b"}
    given = {"group": WORKERS, "message_queue": {"topic": AGENTS, "id": -1}, "filter_expression": chosen}
    assert (await lite.receive(**given))[0].status.code == Code.ILLEGAL_FILTER_EXPRESSION


async def test_a_push_consumer_is_assigned_all_lite_topics_at_once(lite):
    body = {"groupName": "workers", "consumeMessageOrderly": True, "attributes": {"+lite.bind.topic": PARENT}}
    changed = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(body).encode())
    assert (await lite.remoting.request(changed)).code == 0
    asked = s.QueryAssignmentRequest(topic=AGENTS, group=WORKERS, endpoints=ENDPOINTS)
    found = await lite.call("QueryAssignment", asked)
    assert [one.message_queue.id for one in found.assignments] == [-1]
