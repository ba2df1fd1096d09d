"""What RocketMQ's tools ask about lite topics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from tests.unit.broker.conftest import BrokerBench
from tests.unit.broker.lite.client import GROUP, PARENT, ack, change, make_group, make_parent, pop, send, subscribe


@pytest.fixture
async def lite(running: BrokerBench) -> BrokerBench:
    """A client `c1` has a and b; of a's three messages one is done, one in flight."""
    connection = running.connect()
    await make_parent(connection, attributes="+message.type=LITE,+lite.topic.expiration=30")
    await make_group(connection)
    await subscribe(connection, "a", "b")
    await send(connection, "a", b"0", b"1", b"2")
    await ack(connection, *await pop(connection, maxMsgNum=1))
    await pop(connection, maxMsgNum=1)
    return running


async def ask(running: BrokerBench, code: int, **fields: object) -> dict[str, Any]:
    answer = await running.connect().request(Command(code, fields={key: str(value) for key, value in fields.items()}))
    assert answer.code == 0, answer.remark
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def test_the_broker_and_the_parent_topic(lite: BrokerBench) -> None:
    broker = await ask(lite, Code.GET_BROKER_LITE_INFO)
    assert (broker["currentLmqNum"], broker["liteSubscriptionCount"], broker["orderInfoCount"]) == (1, 2, 1)
    assert broker["topicMeta"] == {PARENT: 30}
    assert broker["groupMeta"] == {PARENT: [GROUP]}
    parent = await ask(lite, Code.GET_PARENT_TOPIC_INFO, topic=PARENT)
    assert parent == {"topic": PARENT, "ttl": 30, "groups": [GROUP], "lmqNum": 1, "liteTopicCount": 1}


async def test_a_lite_topic_with_its_subscribers(lite: BrokerBench) -> None:
    found = await ask(lite, Code.GET_LITE_TOPIC_INFO, parentTopic=PARENT, liteTopic="a")
    assert found["subscriber"] == [{"clientId": "c1", "group": GROUP}]
    assert (found["topicOffset"]["minOffset"], found["topicOffset"]["maxOffset"]) == (0, 3)
    assert found["topicOffset"]["lastUpdateTimestamp"] == lite.clock.now_ms()
    empty = await ask(lite, Code.GET_LITE_TOPIC_INFO, parentTopic=PARENT, liteTopic="b")
    assert empty["topicOffset"] == {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0}


async def test_a_client(lite: BrokerBench) -> None:
    fields = {"parentTopic": PARENT, "group": GROUP, "maxCount": 10}
    found = await ask(lite, Code.GET_LITE_CLIENT_INFO, clientId="c1", **fields)
    assert sorted(found["liteTopicSet"]) == [f"%LMQ%${PARENT}$a", f"%LMQ%${PARENT}$b"]
    assert (found["liteTopicCount"], found["lastAccessTime"], found["lastConsumeTime"]) == (
        2,
        *[lite.clock.now_ms()] * 2,
    )
    assert (await ask(lite, Code.GET_LITE_CLIENT_INFO, clientId="c2", **fields))["liteTopicCount"] == -1
    few = await ask(lite, Code.GET_LITE_CLIENT_INFO, clientId="c1", **(fields | {"maxCount": 1}))
    assert (len(few["liteTopicSet"]), few["liteTopicCount"]) == (1, 2)


async def test_how_far_a_group_is_behind(lite: BrokerBench) -> None:
    await send(lite.connect(), "b", b"3")
    one = await ask(lite, Code.GET_LITE_GROUP_INFO, group=GROUP, liteTopic="a", topK=5)
    assert one["totalLagCount"] == 2
    wrapper = one["liteTopicOffsetWrapper"]
    assert (wrapper["brokerOffset"], wrapper["consumerOffset"], wrapper["pullOffset"]) == (3, 1, 2)
    everything = await ask(lite, Code.GET_LITE_GROUP_INFO, group=GROUP, topK=1)
    assert everything["totalLagCount"] == 3
    assert [(lag["liteTopic"], lag["lagCount"]) for lag in everything["lagCountTopK"]] == [("a", 2)]
    assert len(everything["lagTimestampTopK"]) == 1
    absent = await ask(lite, Code.GET_LITE_GROUP_INFO, group=GROUP, liteTopic="z", topK=5)
    assert absent["totalLagCount"] == -1


async def test_lag_of_a_wildcard_group_and_a_dispatch_on_request(lite: BrokerBench) -> None:
    connection = lite.connect()
    await make_group(connection, "all", lite_sub_wildcard="true")
    await send(connection, "z", b"4")
    found = await ask(lite, Code.GET_LITE_GROUP_INFO, group="all", topK=5)
    assert found["totalLagCount"] == 4
    await connection.request(change("COMPLETE_ADD", group="all"))
    for group in ("all", GROUP):
        answer = await connection.request(Command(Code.TRIGGER_LITE_DISPATCH, fields={"group": group}))
        assert answer.code == 0
    assert len(await pop(connection, consumerGroup="all")) == 4


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (Code.GET_PARENT_TOPIC_INFO, {"topic": "absent"}, ResponseCode.TOPIC_NOT_EXIST),
        (Code.GET_LITE_TOPIC_INFO, {"parentTopic": "plain", "liteTopic": "a"}, ResponseCode.INVALID_PARAMETER),
        (Code.GET_LITE_GROUP_INFO, {"group": "absent", "topK": "1"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        (Code.TRIGGER_LITE_DISPATCH, {"group": "unbound"}, ResponseCode.INVALID_PARAMETER),
        (
            Code.GET_LITE_CLIENT_INFO,
            {"parentTopic": "another", "group": GROUP, "clientId": "c1", "maxCount": "1"},
            ResponseCode.INVALID_PARAMETER,
        ),
    ],
)
async def test_questions_about_what_is_not_there_are_refused(
    lite: BrokerBench, code: int, fields: dict[str, str], expected: int
) -> None:
    connection = lite.connect()
    await make_parent(connection, "plain", "")
    await make_parent(connection, "another")
    await connection.request(Command(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"unbound"}'))
    assert (await connection.request(Command(code, fields=fields))).code == expected
