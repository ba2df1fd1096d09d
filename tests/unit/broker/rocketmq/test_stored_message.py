"""Batches as RocketMQ's clients read them, and one message by its position."""

from __future__ import annotations

import sys

import pytest

from broker.rocketmq.stored_message import ipv4_host, message_at
from remoting.batches import body
from remoting.batches.unpack import row_position
from remoting.client.admin import topic_fields
from remoting.client.consumer import AsyncConsumer
from remoting.protocol.bodies.append_body import decode_append_reply
from remoting.protocol.bodies.pull_body import decode_range_pull_reply, encode_range_pull
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_batch_image, encode_image
from remoting.protocol.records.record import CODEC_LZ4, CODEC_ZSTD, RecordView, body_codec
from remoting.protocol.records.stored_message import iter_stored
from tests.support.batches import make_rows
from tests.support.message_ids import parse_offset_message_id
from tests.unit.broker.delayed.test_recall import delivered
from tests.unit.broker.rocketmq.test_pull import pulling


@pytest.mark.parametrize(
    ("host", "expected"),
    [("10.0.0.1", "10.0.0.1"), ("not-an-address", "127.0.0.1"), ("1.2.3.256", "127.0.0.1"), ("::1", "127.0.0.1")],
)
def test_hosts_are_shown_in_the_form_every_client_reads(host, expected) -> None:
    assert ipv4_host(host, 1) == (expected, 1)


def entry_of(rows, *, topic: bytes = b"t", queue: int = 0, codec: int = CODEC_LZ4) -> bytes:
    packed = body.encode(body.from_rows(rows), codec)
    return encode_batch_image(
        topic=topic, queue_index=queue, born_ms=rows[0].born_ms, body=packed, count=len(rows), codec=codec
    )


def single(text: bytes, topic: bytes = b"t") -> bytes:
    return encode_image(flags=0, queue_index=0, born_ms=1, topic=topic, tags=b"even", body=text)


async def append(connection, *entries: bytes):
    return await connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(entries)))


async def make_topic(connection, name: str = "t", *, batch: bool = True, queues: int = 1) -> None:
    fields = topic_fields(name, queues, attributes={"queue.type": "BatchCQ"} if batch else None)
    reply = await connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields))
    assert reply.code == 0, reply.remark


async def filled(running):
    """Offsets 0-9 a batch, 10 a single message, 11-1010 a batch, 1011 a single message."""
    connection = running.connect()
    await make_topic(connection)
    reply = await append(
        connection,
        entry_of(make_rows(10)),
        single(b"ten"),
        entry_of(make_rows(1_000, first=11), codec=CODEC_ZSTD),
        single(b"last"),
    )
    assert [offset for _, offset in decode_append_reply(reply.body)[1]] == [0, 10, 11, 1_011]
    return connection


def expected(offset: int) -> bytes:
    return {10: b"ten", 1_011: b"last"}.get(offset, b"body %d" % offset)


@pytest.mark.parametrize("restart", [False, True])
async def test_a_pull_begins_and_ends_inside_a_batch(running, restart: bool) -> None:
    connection = await filled(running)
    if restart:
        await running.restart()
        connection = running.connect()
    for start in (0, 4, 9, 10, 11, 500, 1_010, 1_011):
        for count in (1, 7, 32):
            reply = await connection.request(pulling("t", start, maxMsgNums=str(count)))
            found = list(iter_stored(reply.body))
            last = start + len(found)
            assert start < last <= start + count, "at least one, at most the requested number"
            assert start != 500 or last == start + count
            assert [message.queue_offset for message in found] == list(range(start, last))
            assert [message.body for message in found] == [expected(offset) for offset in range(start, last)]
            assert (reply.fields["nextBeginOffset"], reply.fields["maxOffset"]) == (str(last), "1012")
    assert (await connection.request(pulling("t", 1_012))).code == ResponseCode.PULL_NOT_FOUND
    assert (await connection.request(pulling("t", 1_013))).code == ResponseCode.PULL_OFFSET_MOVED


async def test_a_consumer_walks_through_all_of_it_by_count_by_bytes_and_by_tag(running) -> None:
    connection = await filled(running)
    consumer = AsyncConsumer(connection, "g", "t", 0)
    for limits in ({"maxMsgNums": "50"}, {"maxMsgNums": "1000", "maxMsgBytes": "3000"}, {"maxMsgBytes": "1"}):
        offset, found = 0, []
        while offset < 1_012:
            reply = await connection.request(pulling("t", offset, **limits))
            assert reply.code == 0
            found += iter_stored(reply.body)
            assert int(reply.fields["nextBeginOffset"]) > offset
            offset = int(reply.fields["nextBeginOffset"])
        assert [message.queue_offset for message in found] == list(range(1_012)), limits
    even = []
    offset = 0
    while offset < 1_012:
        result = await consumer.pull(offset, 100, 0, tags="even")
        even += result.messages
        offset = result.next_offset
    assert [message.queue_offset for message in even] == [
        offset for offset in range(1_012) if offset % 2 == 0 or offset == 1_011
    ]
    none = await connection.request(pulling("t", 3, tags="other", maxMsgNums="4"))
    assert (none.code, none.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "7")


async def test_each_message_is_viewed_and_sent_back_by_its_own_position(running) -> None:
    connection = await filled(running)
    reply = await connection.request(pulling("t", 15, maxMsgNums="3"))
    message = list(iter_stored(reply.body))[1]
    assert (message.queue_offset, message.keys, message.tags) == (16, [b"key-16"], b"even")
    viewed = await connection.request(
        Command(RequestCode.VIEW_MESSAGE_BY_ID, fields={"topic": "t", "offset": str(message.position)})
    )
    assert next(iter_stored(viewed.body)) == message
    back = {"group": "g", "offset": str(message.position), "delayLevel": "0", "originMsgId": "id", "originTopic": "t"}
    assert (await connection.request(Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields=back))).code == 0
    await delivered(running, 10_000)
    retried = await connection.request(pulling("%RETRY%g"))
    (again,) = iter_stored(retried.body)
    assert (again.body, again.keys, again.tags) == (b"body 16", [b"key-16"], b"even")
    for wrong in (row_position(message.position & ((1 << 47) - 1), 5_000), 1 << 46, -1):
        missing = await connection.request(
            Command(RequestCode.VIEW_MESSAGE_BY_ID, fields={"topic": "t", "offset": str(wrong)})
        )
        assert missing.code == ResponseCode.SYSTEM_ERROR
    assert message_at(running.store, running.broker.reading.unpacker, 0) is None, (
        "the broker's own records are no messages"
    )


async def test_ordinary_sends_to_a_batch_topic_stand_between_its_batches(running) -> None:
    connection = await filled(running)
    sent = await connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields={"b": "t", "e": "0"}, body=b"sent"))
    assert (sent.code, sent.fields["queueOffset"]) == (0, "1012")
    viewed = parse_offset_message_id(sent.fields["msgId"])[1]
    assert bytes(message_at(running.store, running.broker.reading.unpacker, viewed).body) == b"sent"
    assert decode_append_reply((await append(connection, entry_of(make_rows(5)))).body)[1][0][1] == 1_013


async def test_private_pulls_return_a_batch_unchanged(running) -> None:
    connection = await filled(running)
    (queue_id,) = running.broker.topics.table.queue_ids("t")
    reply = await connection.request(Command(RequestCode.RANGE_PULL, body=encode_range_pull(queue_id, 4, 12, 1 << 20)))
    pulled = decode_range_pull_reply(reply.body)
    assert (pulled.count, pulled.first_offset, pulled.next_offset) == (3, 4, 1_011)
    view = RecordView(pulled.blob)
    assert (view.count, body_codec(view.flags), view.dispatch()) == (10, CODEC_LZ4, [(queue_id, 0)])
    assert body.to_rows(body.decode(view.body, body_codec(view.flags), 10), 0) == make_rows(10)
    assert running.broker.tools.metrics.messages_in.value == 1_012


async def test_other_topics_accept_no_batches(running) -> None:
    connection = running.connect()
    await make_topic(connection, "plain", batch=False)
    await make_topic(connection, "batches")
    refused = await append(connection, entry_of(make_rows(2), topic=b"plain"))
    assert (refused.code, "takes no batches" in refused.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    missing = await append(connection, entry_of(make_rows(2), topic=b"unknown"))
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST, "a batch creates no topic"
    odd = await append(connection, entry_of(make_rows(2), topic=b"batches", queue=7))
    assert odd.code == ResponseCode.INVALID_PARAMETER
    for flags in (0x02, 0x31):
        entry = bytearray(entry_of(make_rows(2), topic=b"batches"))
        entry[49] = flags
        unknown = await append(connection, bytes(entry))
        assert (unknown.code, "no known format" in unknown.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    for flags in (0x00, 0x10):
        entry[49] = flags
        assert (await append(connection, bytes(entry))).code != ResponseCode.SUCCESS
    large = encode_batch_image(topic=b"batches", queue_index=0, born_ms=0, body=bytes(5 << 20), count=9, codec=1)
    assert (await append(connection, large)).code == ResponseCode.MESSAGE_ILLEGAL
    assert running.store.reading.bounds(running.broker.topics.table.queue_ids("batches")[0]) == (0, 0)


async def test_a_body_that_cannot_be_unpacked_is_an_error_and_hides_nothing_else(running) -> None:
    connection = running.connect()
    await make_topic(connection)
    junk = encode_batch_image(topic=b"t", queue_index=0, born_ms=0, body=b"junk", count=4, codec=CODEC_LZ4)
    await append(connection, entry_of(make_rows(3)), junk, entry_of(make_rows(3, first=7)))
    before = await connection.request(pulling("t", 1))
    assert [message.queue_offset for message in iter_stored(before.body)] == [1, 2]
    assert before.fields["nextBeginOffset"] == "3"
    for offset in (3, 6):
        reply = await connection.request(pulling("t", offset))
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert f"offset {offset} of queue t/0 cannot be unpacked" in reply.remark
    behind = await connection.request(pulling("t", 7))
    assert [message.body for message in iter_stored(behind.body)] == [b"body 7", b"body 8", b"body 9"]
    (queue_id,) = running.broker.topics.table.queue_ids("t")
    position = RecordView(running.store.reading.read(queue_id, 3, 1, 1).records[0]).position
    with pytest.raises(Refused, match="cannot be unpacked"):
        message_at(running.store, running.broker.reading.unpacker, position)


async def test_without_pyarrow_the_broker_reports_it_and_serves_the_rest(
    running, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await filled(running)
    monkeypatch.setitem(sys.modules, "remoting.batches.body", None)
    monkeypatch.delattr("remoting.batches.body")
    reply = await connection.request(pulling("t", 3))
    assert (reply.code, "pip install 'pyarrow>=18'" in reply.remark) == (ResponseCode.SYSTEM_ERROR, True)
    single_one = await connection.request(pulling("t", 10, maxMsgNums="5"))
    assert [message.body for message in iter_stored(single_one.body)] == [b"ten"]
    assert single_one.fields["nextBeginOffset"] == "11"
