"""TOPIC_LIST and CLUSTER_STATUS as the command line reads them; what topics add to the status."""

from __future__ import annotations

import msgspec
import pytest

from broker.topics import feature
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command


async def test_topics_with_their_messages_and_only_those_one_may_read(running) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"a/2", b"b/1")))
    body = msgspec.json.decode((await connection.request(Command(RequestCode.TOPIC_LIST))).body)
    assert [(item["topic"], item["messages"], len(item["queues"])) for item in body["topics"]] == [
        ("a", 2, 4),
        ("b", 1, 4),
    ]
    running.judge_by(lambda _identity, action, resource: action == "locate" or resource == "b/#")
    body = msgspec.json.decode((await connection.request(Command(RequestCode.TOPIC_LIST))).body)
    assert [item["topic"] for item in body["topics"]] == ["b"]


async def test_the_status_has_positions_and_counts(running) -> None:
    reply = await running.connect().request(Command(RequestCode.CLUSTER_STATUS))
    status = msgspec.json.decode(reply.body)
    assert status["broker"] == "broker-a"
    assert status["confirm"] == running.store.confirm_position
    assert status["sessions"] == 0


async def test_messages_are_counted_while_there_are_few_topics(running, monkeypatch: pytest.MonkeyPatch) -> None:
    await running.connect().request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"b/1")))
    assert running.broker.topics.status() == {"topics": 2, "messages_stored": 2}
    monkeypatch.setattr(feature, "COUNTED_TOPICS_MAX", 1)
    assert running.broker.topics.status() == {"topics": 2}
