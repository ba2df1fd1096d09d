"""Lite topics from the send to the acknowledgement, over a broker on a real store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.config import LimitsConfig
from broker.lite.feature import LiteFeature
from broker.store.errors import StoreFull
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from remoting.protocol.records.stored_message import iter_stored
from tests.support.clock import ManualClock
from tests.unit.broker.conftest import BrokerBench
from tests.unit.broker.lite.client import (
    GROUP,
    INVISIBLE_MS,
    PARENT,
    ack,
    change,
    make_group,
    make_parent,
    messages_of,
    pop,
    popping,
    send,
    subscribe,
)


@pytest.fixture
async def lite(running: BrokerBench) -> BrokerBench:
    """A broker with a parent topic and a group."""
    connection = running.connect()
    assert (await make_parent(connection)).code == 0
    assert (await make_group(connection)).code == 0
    return running


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[BrokerBench]:
    """The same where a parent topic has two lite topics at most, and three subscriptions are possible."""
    limits = LimitsConfig(lite_topics_max=2, lite_subscriptions_max=3)
    bench = BrokerBench(tmp_path / "limited", ManualClock(), limits=limits)
    await make_parent(bench.connect())
    await make_group(bench.connect())
    yield bench
    bench.store.close()


def feature(running: BrokerBench) -> LiteFeature:
    return next(each for each in running.broker.features if isinstance(each, LiteFeature))


async def expire(running: BrokerBench, ms: int = INVISIBLE_MS) -> None:
    """Let time pass, and free what is overdue."""
    running.clock.advance_ms(ms)
    feature(running).maintain(running.clock.now_ms())
    await running.settle()


def counted(running: BrokerBench, name: str) -> float:
    return running.registry.values().get(f"rocketmq_lite_{name}", 0)


async def test_a_message_of_a_subscribed_lite_topic_is_given_once_and_acknowledged(lite: BrokerBench) -> None:
    connection = lite.connect()
    assert await subscribe(connection, "s-1") == 0
    assert await send(connection, "s-1", b"hello", more="colour\x01red\x02TAGS\x01t\x02") == 0
    assert await send(connection, "other", b"no") == 0
    (message,) = await pop(connection)
    assert (message.body, message.lite_topic, message.times) == (b"hello", "s-1", 0)
    assert message.stored.topic == PARENT.encode()
    assert message.properties["INNER_MULTI_DISPATCH"] == f"%LMQ%${PARENT}$s-1"
    assert (message.properties["colour"], message.properties["TAGS"]) == ("red", "t")
    assert await pop(connection) == []
    assert await ack(connection, message) == 0
    assert await ack(connection, message) == ResponseCode.NO_MESSAGE
    await expire(lite)
    assert await pop(connection) == []
    assert counted(lite, "acknowledged_total") == 1


async def test_the_messages_of_one_lite_topic_come_in_order_and_block_only_each_other(lite: BrokerBench) -> None:
    connection = lite.connect()
    await subscribe(connection, "a", "b")
    await send(connection, "a", *(b"a%d" % number for number in range(4)))
    await send(connection, "b", b"b0")
    first = await pop(connection, maxMsgNum=2)
    assert [each.body for each in first] == [b"a0", b"a1"]
    (other,) = await pop(connection)
    assert other.body == b"b0"  # what is behind a0 and a1 waits
    assert await ack(connection, first[1]) == 0
    assert await pop(connection) == []
    assert await ack(connection, first[0]) == 0
    assert [each.body for each in await pop(connection)] == [b"a2", b"a3"]


async def test_what_is_not_acknowledged_in_time_comes_again_in_place_and_is_counted(lite: BrokerBench) -> None:
    connection = lite.connect()
    await subscribe(connection, "a")
    await send(connection, "a", b"0", b"1", b"2")
    first = await pop(connection, maxMsgNum=2)
    await ack(connection, first[0])
    await expire(lite)
    for times in (1, 2):
        (again,) = await pop(connection)
        assert (again.body, again.times) == (b"1", times)
        await expire(lite)
    assert await ack(connection, again) == 0, "its time is over, but nobody else has it"
    assert [each.body for each in await pop(connection)] == [b"2"]
    assert counted(lite, "repeated_total") == 2


async def test_a_longer_time_keeps_the_lite_topic_blocked_and_none_frees_it(lite: BrokerBench) -> None:
    connection = lite.connect()
    await subscribe(connection, "a")
    await send(connection, "a", b"0", b"1")
    (message,) = await pop(connection, maxMsgNum=1)
    longer = message.command(Code.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=3 * INVISIBLE_MS)
    answer = await connection.request(longer)
    assert answer.code == 0
    await expire(lite)
    assert await pop(connection) == []
    assert await ack(connection, message) == ResponseCode.NO_MESSAGE, "the handle is the old one"
    now = message.command(Code.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=0)
    now.fields["extraInfo"] = f"0 {answer.fields['popTime']} {answer.fields['invisibleTime']} 999 0 broker-a 0 0"
    assert (await connection.request(now)).code == 0
    await expire(lite, 0)
    assert [each.body for each in await pop(connection)] == [b"0"]


async def test_a_pop_waits_for_the_first_message_or_its_time(lite: BrokerBench) -> None:
    connection = lite.connect()
    await subscribe(connection, "a")
    waiting = asyncio.ensure_future(connection.request(popping(pollTime=5_000)))
    await asyncio.sleep(0)
    await send(lite.connect(), "other", b"no")
    await send(lite.connect(), "a", b"yes")
    assert [each.body for each in messages_of(await asyncio.wait_for(waiting, 4))] == [b"yes"]
    assert (await connection.request(popping(pollTime=20))).code == ResponseCode.POLLING_TIMEOUT


async def test_an_acknowledgement_wakes_the_pop_that_waits_for_what_is_behind(lite: BrokerBench) -> None:
    connection = lite.connect()
    await subscribe(connection, "a")
    await send(connection, "a", b"0", b"1")
    (message,) = await pop(connection, maxMsgNum=1)
    waiting = asyncio.ensure_future(lite.connect().request(popping(pollTime=5_000)))
    await asyncio.sleep(0)
    await ack(connection, message, code=Code.ACK_LITE_MESSAGE)
    assert [each.body for each in messages_of(await asyncio.wait_for(waiting, 4))] == [b"1"]


async def test_acknowledgements_that_arrive_together_are_one_record(lite: BrokerBench) -> None:
    connection = lite.connect()
    await subscribe(connection, "a", "b")
    await send(connection, "a", b"0", b"1", b"2")
    await send(connection, "b", b"3")
    messages = await pop(connection)
    end = lite.store.end_position
    asked = [message.command() for message in [*messages, messages[0]]]
    answers = await asyncio.gather(*(connection.request(command) for command in asked))
    assert [answer.code for answer in answers] == [0, 0, 0, 0, ResponseCode.NO_MESSAGE]
    together = lite.store.end_position - end
    assert (counted(lite, "acknowledged_total"), len(feature(lite)._ownership)) == (4, 0)
    await send(connection, "a", b"4", b"5", b"6")
    await send(connection, "b", b"7")
    again = await pop(connection)
    end = lite.store.end_position
    assert await ack(connection, *again) == 0
    assert together < lite.store.end_position - end, "four records for as many requests one after the other"


async def test_a_full_disk_refuses_all_acknowledgements_that_arrive_together(lite: BrokerBench, monkeypatch) -> None:
    connection = lite.connect()
    await subscribe(connection, "a")
    await send(connection, "a", b"0", b"1")
    messages = await pop(connection)

    def full(*_changes: object) -> int:
        raise StoreFull("disk")

    with monkeypatch.context() as patch:
        patch.setattr(lite.store, "append_state", full)
        answers = await asyncio.gather(*(connection.request(message.command()) for message in messages))
    assert all(answer.code not in (0, ResponseCode.NO_MESSAGE) for answer in answers)
    assert counted(lite, "acknowledged_total") == 0
    assert await ack(connection, *messages) == 0, "the group has them still"


async def test_pops_that_arrive_together_are_one_record(lite: BrokerBench, monkeypatch) -> None:
    connection = lite.connect()
    await subscribe(connection, "a", "b", "c")
    for each in "abc":
        await send(connection, each, each.encode())
    appended, append = [], lite.store.append_state

    def full(*_changes: object) -> int:
        raise StoreFull("disk")

    with monkeypatch.context() as patch:
        patch.setattr(lite.store, "append_state", full)
        answers = await asyncio.gather(*(connection.request(popping(maxMsgNum=1)) for _ in range(2)))
    assert all(answer.code not in (0, ResponseCode.POLLING_TIMEOUT) for answer in answers)
    monkeypatch.setattr(lite.store, "append_state", lambda changes: (appended.append(len(changes)), append(changes))[1])
    found = await asyncio.gather(*(pop(connection, maxMsgNum=1) for _ in range(4)))
    assert sorted(message.body for messages in found for message in messages) == [b"a", b"b", b"c"]
    assert appended == [6], "a batch and an offset of each"
    assert await ack(connection, *(message for messages in found for message in messages)) == 0


async def test_a_repeated_attempt_gets_the_same_messages(lite: BrokerBench) -> None:
    connection = lite.connect()
    await subscribe(connection, "a", "b")
    await send(connection, "a", b"0", b"1")
    lost = await pop(connection, attemptId="x")
    await send(connection, "b", b"2")
    again = await pop(connection, attemptId="x")
    assert [(each.body, each.times) for each in again] == [(b"0", 0), (b"1", 0)]
    assert [each.body for each in await pop(connection, attemptId="y")] == [b"2"]
    assert await ack(connection, *again) == 0
    assert len(lost) == 2


async def test_an_mqtt_topic_below_the_parent_is_the_lite_topic_of_that_name(lite: BrokerBench) -> None:
    connection = lite.connect()
    await subscribe(connection, "room/7")
    image = encode_mqtt_image(f"{PARENT}/room/7".encode(), b"from MQTT", 1, 5, b"device")
    assert (await connection.request(Command(Code.APPEND_MANY, body=image))).code == 0
    (message,) = await pop(connection)
    assert (message.body, message.lite_topic) == (b"from MQTT", "room/7")
    await send(connection, "room/7", b"from RocketMQ")
    fields = {"consumerGroup": "reader", "topic": f"%LMQ%{PARENT}%2Froom%2F7", "queueId": "0", "queueOffset": "0",
              "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "subscription": "*"}  # fmt: skip
    pulled = await connection.request(Command(Code.PULL_MESSAGE, fields=fields))
    assert [bytes(each.body) for each in iter_stored(pulled.body)] == [b"from MQTT", b"from RocketMQ"], "one queue"


async def test_every_client_of_a_shared_group_may_take_a_message_but_one_does(lite: BrokerBench) -> None:
    connection = lite.connect()
    for client in ("c1", "c2"):
        await subscribe(connection, "a", client=client)
    await send(connection, "a", b"0", b"1")
    (message,) = await pop(connection, "c2", maxMsgNum=1)
    assert await pop(connection, "c1") == []
    await ack(connection, message)
    assert [each.body for each in await pop(connection, "c1")] == [b"1"]


async def test_a_newer_client_of_an_exclusive_group_takes_the_lite_topic_over(running: BrokerBench) -> None:
    older, newer = running.connect(), running.connect()
    notified: list[Command] = []
    older.on_push(notified.append)
    await make_parent(older)
    await make_group(older, lite_sub_model="Exclusive")
    await subscribe(older, "a", "b")
    assert await subscribe(newer, "a", client="c2") == 0
    await send(newer, "a", b"0")
    await send(newer, "b", b"1")
    assert [each.body for each in await pop(newer, "c2")] == [b"0"]
    assert [each.body for each in await pop(older, "c1")] == [b"1"]
    assert (await older.request(change("COMPLETE_ADD", "a", "b"))).code == 0  # it did not get the notification
    await send(newer, "a", b"2")
    assert await pop(older, "c1") == []
    assert [(each.code, each.fields["liteTopic"]) for each in notified] == [(Code.NOTIFY_UNSUBSCRIBE_LITE, "a")] * 2
    assert notified[0].fields | {"liteTopic": ""} == {"clientId": "c1", "consumerGroup": GROUP, "liteTopic": ""}


async def test_a_wildcard_group_reads_all_lite_topics_and_shares_them(running: BrokerBench) -> None:
    connection = running.connect()
    await make_parent(connection)
    await make_group(connection, lite_sub_wildcard="true")
    await send(connection, "before", b"0")
    assert (await connection.request(change("COMPLETE_ADD"))).code == 0
    assert (await connection.request(change("COMPLETE_ADD", client="c2"))).code == 0
    assert await subscribe(connection, "a") == ResponseCode.ILLEGAL_OPERATION
    await send(connection, "after", b"1")
    one = await pop(connection, "c1", maxMsgNum=1)
    two = await pop(connection, "c2")
    assert [each.body for each in (*one, *two)] == [b"0", b"1"]
    assert await ack(connection, *one, *two) == 0


async def test_a_complete_subscription_replaces_the_former_unless_it_is_older(lite: BrokerBench) -> None:
    connection = lite.connect()
    await subscribe(connection, "a", "b")
    await connection.request(change("COMPLETE_ADD", "b", "c", version=7))
    await connection.request(change("COMPLETE_ADD", "a", version=6))
    for name in "abc":
        await send(connection, name, name.encode())
    assert [each.body for each in await pop(connection)] == [b"b", b"c"]
    await connection.request(change("PARTIAL_REMOVE", "c"))
    assert counted(lite, "subscriptions") == 1
    await connection.request(change("COMPLETE_REMOVE"))
    assert counted(lite, "subscriptions") == 0


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (None, [b"2", b"3"]),
        ({"type": "POLICY", "value": 0}, [b"2", b"3"]),
        ({"type": "POLICY", "value": 1}, [b"0", b"1", b"2", b"3"]),
        ({"type": "POLICY", "value": 2}, []),
        ({"type": "OFFSET", "value": 3}, [b"3"]),
        ({"type": "OFFSET", "value": 99}, []),
        ({"type": "TAIL_N", "value": 1}, [b"1", b"2", b"3"]),
        ({"type": "TIMESTAMP", "value": 0}, [b"0", b"1", b"2", b"3"]),
    ],
)
async def test_a_subscription_says_where_the_group_continues(
    lite: BrokerBench, option: dict[str, object] | None, expected: list[bytes]
) -> None:
    connection = lite.connect()
    await subscribe(connection, "a")
    await send(connection, "a", b"0", b"1", b"2", b"3")
    for _ in range(2):
        await ack(connection, *await pop(connection, maxMsgNum=1))
    await connection.request(change("COMPLETE_REMOVE"))
    more = {} if option is None else {"offsetOption": option}
    assert await subscribe(connection, "a", **more) == 0
    assert [each.body for each in await pop(connection)] == expected


async def test_a_client_that_takes_over_or_leaves_can_send_the_group_back_to_the_beginning(
    running: BrokerBench,
) -> None:
    connection = running.connect()
    await make_parent(connection)
    await make_group(
        connection, lite_sub_model="Exclusive", lite_sub_reset_offset_exclusive="true",
        lite_sub_reset_offset_unsubscribe="true",
    )  # fmt: skip
    await subscribe(connection, "a")
    await send(connection, "a", b"0")
    await ack(connection, *await pop(connection))
    await subscribe(connection, "a", client="c2")
    (message,) = await pop(connection, "c2")
    assert await ack(connection, message) == 0
    await connection.request(change("PARTIAL_REMOVE", "a", client="c2"))
    await subscribe(connection, "a", client="c3")
    assert [each.body for each in await pop(connection, "c3")] == [b"0"]


async def test_everything_in_flight_survives_a_restart(lite: BrokerBench) -> None:
    connection = lite.connect()
    await subscribe(connection, "a", "b")
    await send(connection, "a", b"0", b"1", b"2")
    await send(connection, "b", b"3")
    given = await pop(connection, maxMsgNum=2)
    await ack(connection, given[0])
    await lite.restart()
    connection = lite.connect()
    assert await pop(connection) == [], "no subscription yet"
    await subscribe(connection, "a", "b")
    assert [each.body for each in await pop(connection)] == [b"3"], "b; what is in flight of a is so still"
    assert await ack(connection, given[1]) == 0
    assert [each.body for each in await pop(connection)] == [b"2"]
    await lite.restart()
    connection = lite.connect()
    await subscribe(connection, "a", "b")
    await expire(lite)
    assert sorted(each.body for each in await pop(connection)) == [b"2", b"3"]


async def test_a_silent_client_loses_its_subscriptions(lite: BrokerBench) -> None:
    connection = lite.connect()
    await subscribe(connection, "a")
    lite.clock.advance_ms(170_000)
    await pop(connection)
    await expire(lite, 170_000)
    assert counted(lite, "subscriptions") == 1
    await expire(lite, 11_000)
    assert counted(lite, "subscriptions") == 0


async def test_quotas_refuse_with_their_codes(limited: BrokerBench) -> None:
    connection = limited.connect()
    assert await send(connection, "a", b"0") == await send(connection, "b", b"1") == 0
    assert await send(connection, "c", b"2") == ResponseCode.LMQ_QUOTA_EXCEEDED
    assert await send(connection, "a", b"3") == 0
    assert await subscribe(connection, "a", "b", "c") == 0
    assert await subscribe(connection, "a", client="c2") == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    await make_group(connection, lite_sub_client_quota="2")
    assert await subscribe(connection, "a", "b", "c") == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    refused = await connection.request(change("COMPLETE_ADD", "a", "b", "c"))
    assert refused.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert await subscribe(connection, "a", "b") == 0
    assert counted(limited, "refused_total{quota}") == 3


@pytest.mark.parametrize(
    ("topic", "lite_topic", "more", "code"),
    [
        (PARENT, "a+b", "", ResponseCode.MESSAGE_ILLEGAL),
        (PARENT, "a" * 256, "", ResponseCode.MESSAGE_ILLEGAL),
        (PARENT, "a", "DELAY\x013\x02", ResponseCode.MESSAGE_ILLEGAL),
        ("plain", "a", "", ResponseCode.INVALID_PARAMETER),
        ("absent", "a", "", ResponseCode.TOPIC_NOT_EXIST),
    ],
)
async def test_what_cannot_be_sent_is_refused(
    lite: BrokerBench, topic: str, lite_topic: str, more: str, code: int
) -> None:
    connection = lite.connect()
    await make_parent(connection, "plain", "")
    assert await send(connection, lite_topic, b"x", topic=topic, more=more) == code
    assert lite.broker.topics.table.get("absent") is None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"maxMsgNum": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNum": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 2**32}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "absent"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "plain"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "another"}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": "absent"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"consumerGroup": "unbound"}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_a_pop_that_cannot_be_is_refused(lite: BrokerBench, fields: dict[str, object], code: int) -> None:
    connection = lite.connect()
    await make_parent(connection, "plain", "")
    await make_parent(connection, "another")
    await connection.request(Command(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"unbound"}'))
    assert (await connection.request(popping(**fields))).code == code


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"action": "NONE"}, ResponseCode.INVALID_PARAMETER),
        ({"group": "absent"}, ResponseCode.ILLEGAL_OPERATION),
        ({"topic": "absent"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"liteTopicSet": ["#"]}, ResponseCode.INVALID_PARAMETER),
        ({"liteTopicSet": [""]}, ResponseCode.INVALID_PARAMETER),
        ({"liteTopicSet": 7}, ResponseCode.INVALID_PARAMETER),
        ({"clientId": ""}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_a_subscription_that_cannot_be_is_refused(lite: BrokerBench, entry: dict[str, object], code: int) -> None:
    body = {"action": "PARTIAL_ADD", "clientId": "c1", "group": GROUP, "topic": PARENT, "liteTopicSet": ["a"]} | entry
    command = Command(Code.LITE_SUBSCRIPTION_CTL, body=json.dumps({"subscriptionSet": [body]}).encode())
    assert (await lite.connect().request(command)).code == code


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"extraInfo": "x"}, ResponseCode.INVALID_PARAMETER),
        ({"offset": 1}, ResponseCode.NO_MESSAGE),
        ({"liteTopic": "b"}, ResponseCode.NO_MESSAGE),
        ({"consumerGroup": "absent"}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_an_acknowledgement_of_what_the_group_does_not_have_is_refused(
    lite: BrokerBench, fields: dict[str, object], code: int
) -> None:
    connection = lite.connect()
    await subscribe(connection, "a")
    await send(connection, "a", b"0", b"1")
    (message,) = await pop(connection, maxMsgNum=1)
    assert await ack(connection, message, **fields) == code
    assert await ack(connection, message) == 0


@pytest.mark.parametrize(
    ("name", "attributes", "code"),
    [
        ("a%b", "+message.type=LITE", ResponseCode.INVALID_PARAMETER),
        ("a|b", "+message.type=LITE", ResponseCode.INVALID_PARAMETER),
        ("ok", "+message.type=LITE,+lite.topic.expiration=43201", ResponseCode.INVALID_PARAMETER),
        ("ok", "+message.type=LITE,+lite.topic.expiration=43200", ResponseCode.SUCCESS),
        ("ok", "+message.type=LITE,+lite.topic.expiration=-1", ResponseCode.SUCCESS),
    ],
)
async def test_a_parent_topic_is_an_mqtt_level_as_it_stands(
    running: BrokerBench, name: str, attributes: str, code: int
) -> None:
    assert (await make_parent(running.connect(), name, attributes)).code == code


async def test_a_full_disk_keeps_what_could_not_be_given_for_the_next_pop(lite: BrokerBench) -> None:
    connection = lite.connect()
    await subscribe(connection, "a")
    await send(connection, "a", b"0")
    lite.store.disk._set_full()
    assert (await connection.request(popping())).code == ResponseCode.SERVICE_NOT_AVAILABLE
    lite.store.disk.full = False
    assert [each.body for each in await pop(connection)] == [b"0"]


@pytest.mark.parametrize("topic", [PARENT, f"%LMQ%{PARENT}%2Fa", f"%LMQ%{PARENT}%2F%23"])
async def test_a_group_of_lite_topics_cannot_bypass_its_subscriptions(running: BrokerBench, topic: str) -> None:
    connection = running.connect()
    await make_parent(connection)
    await make_group(connection, lite_sub_model="Exclusive")
    await send(connection, "a", b"0")

    async def asked(code: int, group: str, **fields: object) -> int:
        named = {"consumerGroup": group, "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4,
                 "commitOffset": 1, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}  # fmt: skip
        shown = {name: str(value) for name, value in (named | fields).items()}
        return (await connection.request(Command(code, fields=shown))).code

    for code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.UPDATE_CONSUMER_OFFSET):
        assert await asked(code, GROUP) == ResponseCode.ILLEGAL_OPERATION
        assert await asked(code, "others") != ResponseCode.ILLEGAL_OPERATION
    popping_it = {"invisibleTime": 1_000, "pollTime": 0, "bornTime": 0, "initMode": 0}
    if topic == PARENT:
        assert await asked(Code.POP_MESSAGE, GROUP, **popping_it) == ResponseCode.ILLEGAL_OPERATION
    counts = {name: value for name, value in running.registry.values().items() if "pop_refused" in name}
    assert sum(counts.values()) >= 3, counts
    await subscribe(connection, "a")
    assert [each.body for each in await pop(connection)] == [b"0"], "the group is where it was"
