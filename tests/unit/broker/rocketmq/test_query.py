"""Messages by key (12), by position (33), and a queue's entries (321), over the codes clients use."""

from __future__ import annotations

import json

import pytest

from broker.rocketmq import pull
from broker.rocketmq.send import born_host_of, stored_image
from broker.store.placed import Placed
from remoting.client.admin import AsyncAdmin
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import RecordView, header_of
from remoting.protocol.records.rocketmq_form import SentFields
from remoting.protocol.records.stored_message import decode_stored, iter_stored
from tests.support.message_ids import parse_offset_message_id


async def send(connection, body: bytes, topic: str = "t", queue: str = "0", **properties: str) -> Command:
    """Send as RocketMQ's clients do."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = {"a": "g", "b": topic, "e": queue, "g": "7", "i": text}
    return await connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=body))


async def test_messages_are_found_by_every_key_and_by_the_unique_one(running) -> None:
    connection = running.connect()
    running.broker.topics.table.ensure("t", 2)
    admin = AsyncAdmin(connection)
    await send(connection, b"one", KEYS="k1 k2", UNIQ_KEY="ID1", TAGS="a")
    running.clock.advance_ms(1_000)
    await send(connection, b"two", KEYS="k2", UNIQ_KEY="ID2", queue="1", own="x")
    await send(connection, b"other", topic="u", KEYS="k2")
    found = await admin.query("t", "k2")
    assert [message.body for message in found] == [b"two", b"one"]
    assert [(message.queue_id, message.queue_offset) for message in found] == [(1, 0), (0, 0)]
    assert dict(found[0].properties)[b"own"] == b"x"
    assert found[1].keys == [b"k1", b"k2"]
    assert [message.body for message in await admin.query("t", "ID1")] == [b"one"]
    assert [message.body for message in await admin.query("t", "ID1", unique=True)] == [b"one"]
    assert await admin.query("t", "k2", unique=True) == []
    now_ms = running.clock.now_ms()
    assert [m.body for m in await admin.query("t", "k2", begin_ms=now_ms - 1_000, end_ms=now_ms - 1)] == [b"one"]
    assert [m.body for m in await admin.query("t", "k2", count=1)] == [b"two"]
    assert await admin.query("t", "nowhere") == []
    await running.restart()
    assert [m.body for m in await AsyncAdmin(running.connect()).query("t", "k2")] == [b"two", b"one"]


async def test_a_message_in_very_many_queues_is_found_once(running) -> None:
    """It has several records, each with its keys."""
    (parent,) = running.store.queues.open_all([b"t\x000"])
    running.broker.topics.table.ensure("t", 1)
    wide = running.store.queues.open_all([b"%%LMQ%%t%%2F%d" % number for number in range(1_500)])
    fields = SentFields(b"t", 0, 0, 1_000, born_host_of("127.0.0.1:1"), 0)
    image = stored_image(fields, {b"KEYS": b"k", b"UNIQ_KEY": b"ID"}, b"wide")
    running.store.append(Placed(image, [(parent, *wide)]))
    await running.settle()
    assert running.store.reading.confirmed_end(wide[-1]) == 1
    admin = AsyncAdmin(running.connect())
    for count in (1, 10):
        assert [(m.body, m.queue_offset) for m in await admin.query("t", "k", count=count)] == [(b"wide", 0)]


async def test_the_answer_says_how_far_the_index_goes_and_what_was_unreadable(running, monkeypatch) -> None:
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    for n in range(3):
        await send(connection, b"%d" % n, KEYS="k")
    fields = {"topic": "t", "key": "k", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}
    answer = await connection.request(Command(RequestCode.QUERY_MESSAGE, fields=fields))
    assert answer.fields["indexLastUpdatePhyoffset"] == str(running.store.confirm_position)
    assert answer.fields["indexLastUpdateTimestamp"] == str(running.clock.now_ms())
    assert answer.remark is None
    metrics = running.broker.tools.metrics
    assert (metrics.viewed.value, metrics.messages_out.value) == (3, 0)
    newest = next(iter_stored(answer.body))
    segment = running.store._log.segment_at(newest.position)
    segment.write(newest.position + 80, b"rot")
    answer = await connection.request(Command(RequestCode.QUERY_MESSAGE, fields=fields))
    assert [message.body for message in iter_stored(answer.body)] == [b"1", b"0"]
    assert "1 records" in (answer.remark or "")
    monkeypatch.setattr("broker.store.keys.key_store.EXAMINED_MAX", 1)
    answer = await connection.request(Command(RequestCode.QUERY_MESSAGE, fields=fields))
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert "ended after 1 records" in (answer.remark or "")


async def test_invalid_queries_are_refused(running) -> None:
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    admin = AsyncAdmin(connection)
    sent = await send(connection, b"m", KEYS="k")
    with pytest.raises(Refused) as missing:
        await admin.query("unknown", "k")
    assert missing.value.code == ResponseCode.TOPIC_NOT_EXIST
    answer = await connection.request(Command(RequestCode.QUERY_MESSAGE, fields={"topic": "t"}))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    asked = []
    running.broker.tools.authorizer.policy = lambda identity, action, resource: asked.append((action, resource))
    with pytest.raises(Refused) as refused:
        await admin.query("t", "k")
    assert refused.value.code == ResponseCode.NO_PERMISSION
    position = parse_offset_message_id(sent.fields["msgId"])[1]
    for code, fields in (
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(position)}),
        (RequestCode.QUERY_CONSUME_QUEUE, {"topic": "t", "queueId": "0"}),
    ):
        answer = await connection.request(Command(code, fields=fields))
        assert answer.code == ResponseCode.NO_PERMISSION
    assert asked == [("consume", "t/#")] * 3
    running.broker.tools.authorizer.policy = None
    running.store.keys = None
    with pytest.raises(Refused, match="key_index is off"):
        await admin.query("t", "k")


async def test_a_deleted_topic_is_not_shown(running) -> None:
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    await send(connection, b"m", KEYS="k")
    running.broker.topics.table.delete("t")
    running.broker.topics.table.ensure("t", 1)
    assert await AsyncAdmin(connection).query("t", "k") == []


async def test_one_message_by_its_position(running) -> None:
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    sent = await send(connection, b"m", KEYS="k")
    position = parse_offset_message_id(sent.fields["msgId"])[1]
    answer = await connection.request(Command(RequestCode.VIEW_MESSAGE_BY_ID, fields={"offset": str(position)}))
    assert decode_stored(answer.body)[0].body == b"m"
    for offset in ("12345678", "-1", "0"):  # after the end, before the beginning, a record of state
        answer = await connection.request(Command(RequestCode.VIEW_MESSAGE_BY_ID, fields={"offset": offset}))
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_entries_of_a_queue(running) -> None:
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    for tag in ("a", "tag with a negative hash", "b"):
        await send(connection, b"m", TAGS=tag)

    async def ask(**fields: str) -> dict:
        command = Command(RequestCode.QUERY_CONSUME_QUEUE, fields={"topic": "t", "queueId": "0", **fields})
        return json.loads((await connection.request(command)).body)

    found = await ask(index="1", count="10", consumerGroup="g")
    assert (found["minQueueIndex"], found["maxQueueIndex"], len(found["queueData"])) == (0, 3, 2)
    queue_id = running.broker.topics.table.queue_ids("t")[0]
    views = [RecordView(record) for record in running.store.reading.read(queue_id, 1, 2, 1 << 20).records]
    assert [entry["physicOffset"] for entry in found["queueData"]] == [view.position for view in views]
    assert [entry["physicSize"] for entry in found["queueData"]] == [view.total for view in views]
    assert [entry["tagsCode"] % 2**32 for entry in found["queueData"]] == [header_of(view).tag_hash for view in views]
    assert all(-(2**31) <= entry["tagsCode"] < 2**31 for entry in found["queueData"])
    assert (await ask(index="9"))["queueData"] == []
    assert len((await ask(count="1"))["queueData"]) == 1
    light = await ask(topic="%LMQ%none")
    assert (light["queueData"], light["maxQueueIndex"]) == ([], 0)
    assert pull.ENTRIES_MAX > 1
