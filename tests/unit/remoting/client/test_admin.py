"""Operators' requests have the right codes and are answered as values."""

from __future__ import annotations

import pytest

from remoting import inprocess
from remoting.client.admin import AsyncAdmin
from remoting.client.threads import Admin
from remoting.protocol.bodies.controller_body import BrokerData, ClusterInfo, TopicList, TopicRoute, encode_body
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.records.stored_message import StoredMessage, encode_stored
from tests.unit.remoting.client.served import served


async def test_questions_and_answers():
    asked = []
    bodies = {
        RequestCode.GET_BROKER_CLUSTER_INFO: encode_body(ClusterInfo({"b": BrokerData("C", "b", {0: "h:1"})})),
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: encode_body(TopicList(["z", "a"])),
        RequestCode.GET_ROUTEINFO_BY_TOPIC: encode_body(TopicRoute()),
        RequestCode.TOPIC_LIST: b'{"topics":[]}',
        RequestCode.CLUSTER_STATUS: b'{"confirm":7}',
        RequestCode.UPDATE_AND_CREATE_TOPIC: b"",
        RequestCode.GET_TOPIC_CONFIG: b'{"topicName":"t"}',
    }

    def handler(peer, command):
        asked.append(command)
        return command.reply(body=bodies[command.code])

    admin = AsyncAdmin(inprocess.connect(handler))
    assert (await admin.cluster()).broker_addr_table["b"].master() == "h:1"
    assert await admin.topic_names() == ["a", "z"]
    assert (await admin.route("t")).queue_datas == []
    assert await admin.topics() == {"topics": []}
    assert await admin.status() == {"confirm": 7}
    await admin.create_topic("t", 8)
    assert asked[-1].fields["readQueueNums"] == asked[-1].fields["writeQueueNums"] == "8"
    assert asked[-1].fields["perm"] == "6"
    assert "attributes" not in asked[-1].fields
    await admin.create_topic("t", 8, attributes={"queue.type": "BatchCQ"})
    assert asked[-1].fields["attributes"] == "+queue.type=BatchCQ"
    assert await admin.topic_config("t") == {"topicName": "t"}


async def test_a_query_by_key_asks_for_the_newest_and_accepts_none():
    stored = encode_stored(StoredMessage(b"t", b"body", 1, 2, 3, 4, 5, ("10.0.0.1", 1), ("10.0.0.2", 2)))
    asked = []

    def handler(peer, command):
        asked.append(command)
        if command.fields["key"] == "none":
            return command.reply(ResponseCode.QUERY_NOT_FOUND, "can not find message")
        if command.fields["key"] == "bad":
            return command.reply(ResponseCode.NO_PERMISSION, "not you")
        return command.reply(body=stored * 2)

    admin = AsyncAdmin(inprocess.connect(handler))
    assert [message.queue_offset for message in await admin.query("t", "k", count=2, begin_ms=5, end_ms=9)] == [2, 2]
    assert asked[0].code == RequestCode.QUERY_MESSAGE
    assert asked[0].fields == {
        "topic": "t", "key": "k", "maxNum": "2", "beginTimestamp": "5", "endTimestamp": "9"
    }  # fmt: skip
    assert await admin.query("t", "none", unique=True) == []
    assert asked[1].fields["_UNIQUE_KEY_QUERY"] == "true"
    with pytest.raises(Refused, match="not you"):
        await admin.query("t", "bad")


async def test_refusals_and_invalid_answers():
    def refuse(peer, command):
        raise Refused(16, "not you")

    with pytest.raises(Refused, match="not you"):
        await AsyncAdmin(inprocess.connect(refuse)).topics()
    with pytest.raises(RemoteViolation):
        await AsyncAdmin(inprocess.connect(lambda peer, command: command.reply(body=b"[]"))).topics()


def test_threads_get_the_same_answers() -> None:
    """Each call waits for its answer on the caller's thread."""
    asked = []
    stored = StoredMessage(b"t", b"body", 0, 0, 0, 1, 2, ("127.0.0.1", 1), ("127.0.0.1", 2))
    bodies = {
        RequestCode.GET_BROKER_CLUSTER_INFO: encode_body(ClusterInfo({"b": BrokerData("C", "b", {0: "h:1"})})),
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: encode_body(TopicList(["z", "a"])),
        RequestCode.GET_ROUTEINFO_BY_TOPIC: encode_body(TopicRoute()),
        RequestCode.TOPIC_LIST: b'{"topics":[]}',
        RequestCode.CLUSTER_STATUS: b'{"confirm":7}',
        RequestCode.UPDATE_AND_CREATE_TOPIC: b"",
        RequestCode.GET_TOPIC_CONFIG: b'{"topicName":"t"}',
        RequestCode.QUERY_MESSAGE: encode_stored(stored),
    }

    def handler(peer, command):
        asked.append(command)
        return command.reply(body=bodies[command.code])

    with served(handler) as server, Admin(server.address) as admin:
        assert admin.cluster().broker_addr_table["b"].master() == "h:1"
        assert admin.topic_names() == ["a", "z"]
        assert admin.route("t").queue_datas == []
        assert (admin.topics(), admin.status()) == ({"topics": []}, {"confirm": 7})
        admin.create_topic("t", 8, attributes={"queue.type": "BatchCQ"})
        assert asked[-1].fields["attributes"] == "+queue.type=BatchCQ"
        assert admin.topic_config("t") == {"topicName": "t"}
        assert "forWrite" not in asked[-1].fields
        assert [message.body for message in admin.query("t", "k", count=3, begin_ms=1, end_ms=2)] == [b"body"]
        assert [asked[-1].fields[name] for name in ("key", "maxNum", "beginTimestamp", "endTimestamp")] == [
            "k", "3", "1", "2",
        ]  # fmt: skip
