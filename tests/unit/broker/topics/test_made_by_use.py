"""Parent topics and consumer groups that are made by use count for the user who was first, across restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from broker.config import LimitsConfig
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from tests.support.clock import ManualClock
from tests.unit.broker.conftest import BrokerBench
from tests.unit.broker.light_queues.sessions import open_session

REFUSED = "rocketmq_requests_refused_total{topics_per_user}"


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[BrokerBench]:
    bench = BrokerBench(tmp_path / "data", ManualClock(), limits=LimitsConfig(topics_per_user_max=2))
    yield bench
    bench.store.close()


async def publish(running: BrokerBench, topic: bytes, client: bytes) -> int:
    image = encode_mqtt_image(topic, b"x", 1, 1_000, client)
    return (await running.connect().request(Command(Code.APPEND_MANY, body=image))).code


async def join(running: BrokerBench, group: str) -> int:
    body = {"clientID": f"of {group}", "consumerDataSet": [{"groupName": group}]}
    return (await running.connect().request(Command(Code.HEART_BEAT, body=msgspec.json.encode(body)))).code


async def test_one_user_cannot_take_all_topics(limited: BrokerBench) -> None:
    for user in ("ann", "bob"):
        await open_session(limited, f"of {user}", user)
    assert [await publish(limited, topic, b"of ann") for topic in (b"a/1", b"b/1", b"a/2")] == [0, 0, 0]
    assert await publish(limited, b"c/1", b"of ann") == ResponseCode.FLOW_CONTROL
    assert await publish(limited, b"c/1", b"of bob") == 0
    assert await publish(limited, b"c/2", b"of ann") == 0, "the topic is there"
    await limited.restart()
    await open_session(limited, "of ann", "ann")
    assert await publish(limited, b"d/1", b"of ann") == ResponseCode.FLOW_CONTROL
    topics = limited.broker.topics.table
    topics.put(topics.require("a"))  # as an administrator changes it
    assert await publish(limited, b"d/1", b"of ann") == 0
    topics.delete("d")
    assert await publish(limited, b"e/1", b"of ann") == 0
    assert limited.registry.values()[REFUSED] == 1


async def test_groups_that_come_and_go_do_not_take_all_topics(limited: BrokerBench) -> None:
    assert [await join(limited, group) for group in ("g1", "g2", "g1")] == [0, 0, 0]
    assert await join(limited, "g3") == ResponseCode.FLOW_CONTROL
    assert limited.broker.groups.groups.get("g3") is None
    assert limited.registry.values()[REFUSED] == 1
    body = msgspec.json.encode({"groupName": "g4"})
    reply = await limited.connect().request(Command(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))
    assert reply.code == 0, "an administrator's counts for nobody"
    await limited.restart()
    assert await join(limited, "g2") == 0
    assert await join(limited, "g3") == ResponseCode.FLOW_CONTROL


async def test_no_client_is_shown_who_made_a_topic(limited: BrokerBench) -> None:
    await open_session(limited, "of ann", "ann")
    assert await publish(limited, b"a/1", b"of ann") == 0
    reply = await limited.connect().request(Command(Code.GET_TOPIC_CONFIG, fields={"topic": "a"}))
    assert reply.code == 0
    assert b"ann" not in reply.body
