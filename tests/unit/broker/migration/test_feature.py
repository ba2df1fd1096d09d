"""Copied queues: what is kept of a message, repeats, crashes, order, refusals, and what is shown of it."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.migration.feature import SOURCE_CHARS_MAX
from broker.topics.topics import TopicSettings
from remoting.client.connection import Connection
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import StoredMessage, encode_stored, iter_stored

SOURCE = "old/broker-a/0"


def message(offset: int, **changes: Any) -> StoredMessage:
    """A message as RocketMQ delivers it."""
    fields: dict[str, Any] = {
        "topic": b"orders", "body": b"%d" % offset, "queue_id": 0, "queue_offset": offset, "position": 77,
        "born_ms": 5_000, "store_ms": 6_000, "born_host": ("10.0.0.7", 4711), "store_host": ("10.0.0.1", 10911),
        "properties": [(b"UNIQ_KEY", b"7F%d" % offset)],
    }  # fmt: skip
    return StoredMessage(**fields | changes)


def copying(*offsets: int, expected: int | None = None, **fields: str) -> Command:
    named = {"topic": "orders", "queueId": "1", "source": SOURCE} | fields
    named["expected"] = str(offsets[0] if expected is None else expected)
    body = b"".join(encode_stored(message(offset)) for offset in offsets)
    return Command(RequestCode.COPY_MESSAGES, fields=named, body=body)


async def pulled(connection: Connection, offset: int = 0) -> list[StoredMessage]:
    fields = {"consumerGroup": "g", "topic": "orders", "queueId": "1", "queueOffset": str(offset), "sysFlag": "4",
              "maxMsgNums": "32", "subscription": "*"}  # fmt: skip
    reply = await connection.request(Command(RequestCode.PULL_MESSAGE, fields=fields))
    return list(iter_stored(reply.body)) if reply.code == 0 else []


async def shown(connection: Connection, **fields: str) -> list[dict[str, Any]]:
    answer = await connection.request(Command(RequestCode.COPIED_QUEUES, fields=fields))
    found: list[dict[str, Any]] = json.loads(answer.body)["queues"]
    return found


@pytest.fixture
def topic(running: Any) -> Any:
    """A topic that takes no writes from producers, as before they have moved."""
    running.broker.topics.table.put(TopicSettings(name="orders", permission=4))
    return running


async def test_a_copied_message_is_what_it_was(topic: Any) -> None:
    connection = topic.connect()
    properties = [(b"UNIQ_KEY", b"7F01"), (b"TAGS", b"red"), (b"KEYS", b"k1 k2"), (b"own", b"v"), (b"DELAY", b"3")]
    given_message = message(
        9, flag=7, reconsume_times=2, properties=properties, sys_flag=0x9, born_host=("::7", 1), body=b"\0\xff"
    )
    command = copying(9, expected=0)
    command.body = encode_stored(given_message)
    reply = await connection.request(command)
    assert (reply.code, reply.fields) == (0, {"next": "10", "count": "1"})
    assert reply.body == b'{"runs":[[9,0,1,1]],"returned":[]}'
    (found,) = await pulled(connection)
    for name in ("body", "flag", "reconsume_times", "born_ms", "born_host"):
        assert getattr(found, name) == getattr(given_message, name), name
    assert (found.queue_id, found.queue_offset, found.sys_flag & 0xF) == (1, 0, 1)
    assert set(properties) <= set(found.properties)


async def test_a_repeated_copy_changes_nothing_and_a_gap_is_refused(topic: Any) -> None:
    connection = topic.connect()
    for command in (copying(5, 6, 7, expected=0), copying(5, 6, 7, expected=0), copying(6, 7, 8)):
        assert (await connection.request(command)).code == 0
    reply = await connection.request(copying(12, 13))
    assert (reply.code, reply.fields["next"]) == (ResponseCode.ILLEGAL_OPERATION, "9")
    assert [one.body for one in await pulled(connection)] == [b"5", b"6", b"7", b"8"]
    assert (await connection.request(copying(12, expected=9))).fields["next"] == "13"  # 9 to 11 were deleted there
    counts = topic.registry.page()[1].decode()
    assert "rocketmq_migrated_messages_total 5.0" in counts
    assert "rocketmq_migrated_repeats_total 5.0" in counts
    (queue,) = await shown(connection, source="old/")
    assert (queue["topic"], queue["queue"], queue["source"]) == ("orders", 1, SOURCE)
    assert queue["runs"] == [[5, 0, 4, 4], [12, 4, 1, 1]]
    assert await shown(connection, source="new/") == await shown(connection, topic="other") == []


async def test_another_producers_messages_lie_between(topic: Any) -> None:
    topic.broker.topics.table.put(TopicSettings(name="orders"))
    connection = topic.connect()
    await connection.request(copying(0, 1))
    fields = {"topic": "orders", "producerGroup": "p", "queueId": "1"}
    await connection.request(Command(RequestCode.SEND_MESSAGE, fields=fields, body=b"own"))
    assert (await connection.request(copying(2))).body == b'{"runs":[[2,3,1,1]],"returned":[]}'
    assert [one.body for one in await pulled(connection)] == [b"0", b"1", b"own", b"2"]
    assert (await shown(connection))[0]["runs"] == [[0, 0, 2, 2], [2, 3, 1, 1]]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans()), min_size=1, max_size=8), st.integers(0, 9))
async def test_every_message_is_copied_once_over_restarts(
    topic: Any, steps: list[tuple[int, bool, bool]], number: int
) -> None:
    """A copier that has lost an answer or was restarted, and a broker that was restarted; each example is a source."""
    source = f"{number}/{len(await shown(topic.connect()))}/{id(steps)}"
    first = len(await pulled_all(topic))
    done, known = 0, 0
    for count, is_answered, restarts in steps:
        connection = topic.connect()
        reply = await connection.request(copying(*range(known, done + count), source=source))
        done += count
        if restarts:
            await topic.restart()
        if is_answered:
            known = int(reply.fields["next"])
            assert known == done
    assert [one.body for one in await pulled_all(topic, first)] == [b"%d" % offset for offset in range(done)]
    (queue,) = await shown(topic.connect(), source=source)
    assert queue["runs"] == [[0, first, done, done]]


async def pulled_all(running: Any, offset: int = 0) -> list[StoredMessage]:
    connection, found = running.connect(), []
    while messages := await pulled(connection, offset):
        found += messages
        offset += len(messages)
    return found


async def test_a_write_that_fails_leaves_no_record_of_a_copy(topic: Any) -> None:
    connection = topic.connect()
    await connection.request(copying(0))
    topic.faults.arm("log.write", OSError(errno.ENOSPC, "full"), times=None)
    reply = await connection.request(copying(1))
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (await shown(connection))[0]["runs"] == [[0, 0, 1, 1]]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "4"}, ResponseCode.INVALID_PARAMETER),
        ({"source": ""}, ResponseCode.INVALID_PARAMETER),
        ({"source": "s" * (SOURCE_CHARS_MAX + 1)}, ResponseCode.INVALID_PARAMETER),
        ({"source": "a\0b"}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_wrong_fields_are_refused(topic: Any, changes: dict[str, str], code: int) -> None:
    assert (await topic.connect().request(copying(0, **changes))).code == code


@pytest.mark.parametrize(
    "body",
    [
        b"abc",
        encode_stored(message(3)) + encode_stored(message(3)),
        encode_stored(message(0, properties=[(b"__rmq.flag", b"1")])),
        encode_stored(message(0, sys_flag=0x80)),
        encode_stored(message(0, properties=[(b"UNIQ_KEY", b"1")]))[:-1],
        encode_stored(message(-1)),
    ],
)
async def test_wrong_messages_are_refused_and_nothing_is_copied(topic: Any, body: bytes) -> None:
    command = copying(0)
    command.body = body
    connection = topic.connect()
    assert (await connection.request(command)).code == ResponseCode.MESSAGE_ILLEGAL
    assert await pulled(connection) == await shown(connection) == []


async def test_a_deleted_topic_takes_its_records_along(topic: Any) -> None:
    connection = topic.connect()
    await connection.request(copying(5, expected=0))
    assert topic.broker.status.picture()["copied_queues"] == 1
    await connection.request(Command(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "orders"}))
    assert await shown(connection) == []
    topic.broker.maintain(1)
    assert topic.broker.status.picture()["copied_queues"] == 0
    await topic.restart()
    assert topic.broker.status.picture()["copied_queues"] == 0


async def test_only_administrators_copy(topic: Any) -> None:
    topic.judge_by(lambda _identity, action, _resource: action != "admin")
    connection = topic.connect()
    for command in (copying(0), Command(RequestCode.COPIED_QUEUES)):
        assert (await connection.request(command)).code == ResponseCode.NO_PERMISSION
