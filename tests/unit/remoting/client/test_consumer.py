"""Pulling one queue, with every answer a broker may give."""

from __future__ import annotations

import pytest

from remoting import inprocess
from remoting.client.consumer import AsyncConsumer
from remoting.client.threads import Consumer
from remoting.protocol.bodies.pull_body import (
    QueueBounds,
    QueueBoundsReply,
    QueueRecords,
    decode_range_pull,
    encode_bounds_reply,
    encode_range_pull_reply,
)
from remoting.protocol.errors import CorruptRecord, Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.records.record import RecordView
from tests.support.batches import make_batch_record, make_rows
from tests.support.records import make_record
from tests.unit.remoting.client.served import served

BOUNDS = {"nextBeginOffset": "5", "minOffset": "2", "maxOffset": "9"}


class Broker:
    """Gives the answers prepared by the test and keeps the requests."""

    def __init__(self, code=0, fields=None, body=b"", remark=None):
        self.reply = (code, remark, fields or {}, body)
        self.asked = []

    def __call__(self, peer, command):
        self.asked.append(command)
        return command.reply(*self.reply)


def consumer(broker):
    return AsyncConsumer(inprocess.connect(broker), "g", "t", 3)


async def test_a_pull_asks_to_wait_and_returns_the_next_offset():
    broker = Broker(19, BOUNDS)
    result = await consumer(broker).pull(5, wait_ms=1_500)
    assert (result.next_offset, result.min_offset, result.max_offset, result.moved) == (5, 2, 9, False)
    assert result.messages == []
    fields = broker.asked[0].fields
    assert (broker.asked[0].code, fields["queueId"], fields["queueOffset"]) == (11, "3", "5")
    assert (fields["suspendTimeoutMillis"], int(fields["sysFlag"]) & 2) == ("1500", 2)
    await consumer(broker).pull(5, wait_ms=0)
    assert int(broker.asked[1].fields["sysFlag"]) & 2 == 0


async def test_a_moved_offset_is_no_error_a_missing_topic_is():
    assert (await consumer(Broker(21, BOUNDS)).pull(1)).moved
    with pytest.raises(Refused, match="no topic"):
        await consumer(Broker(17, remark="no topic")).pull(1)


async def test_an_answer_without_its_numbers_is_a_violation():
    with pytest.raises(RemoteViolation, match="nextBeginOffset"):
        await consumer(Broker(19, {"nextBeginOffset": "x"})).pull(1)


async def test_offsets():
    broker = Broker(fields={"offset": "42"})
    queue = consumer(broker)
    found = [
        await queue.committed(),
        await queue.max_offset(),
        await queue.min_offset(),
        await queue.offset_at(1_000),
        await queue.commit(7),
    ]
    assert found == [42, 42, 42, 42, None]
    assert [command.code for command in broker.asked] == [14, 30, 31, 29, 15]
    assert broker.asked[3].fields["timestamp"] == "1000"
    assert broker.asked[4].fields["commitOffset"] == "7"
    assert await consumer(Broker(22)).committed() is None


class RecordBroker:
    """Queue 7 of topic t: offsets 0 to 9 a batch, 10 a single message, 11 to 19 a batch."""

    def __init__(self):
        self.records = [
            (0, make_batch_record(make_rows(10), dispatch=[(7, 0)])),
            (10, make_record(b"ten", keys=b"k", dispatch=[(7, 10)])),
            (11, make_batch_record(make_rows(9, first=11), dispatch=[(7, 11)])),
        ]
        self.bounds_asked = 0

    def __call__(self, peer, command):
        if command.code == RequestCode.QUEUE_BOUNDS:
            self.bounds_asked += 1
            queues = [QueueBounds(topic="t", queue=2, id=7, min=0, max=20)]
            return command.reply(body=encode_bounds_reply(QueueBoundsReply("b", 1, 0, queues)))
        want = decode_range_pull(command.body)
        if want.offset > 20:
            return command.reply(body=encode_range_pull_reply(QueueRecords(7, 3, want.offset, 20, 0, 20)))
        begin, end = want.offset, want.end_offset
        found = [(at, one) for at, one in self.records if at < end and at + RecordView(one).count > begin]
        last = found[-1][0] + RecordView(found[-1][1]).count if found else want.offset
        result = QueueRecords(7, 0, want.offset, last, 0, 20, [one for _, one in found])
        return command.reply(body=encode_range_pull_reply(result))


async def test_batches_are_unpacked_here_from_any_offset_to_any():
    broker = RecordBroker()
    consumer = AsyncConsumer(inprocess.connect(broker), "g", "t", 2)
    expected = {10: b"ten"} | {offset: b"body %d" % offset for offset in range(20) if offset != 10}
    for start in range(21):
        for count in (1, 4, 100):
            result = await consumer.read(start, count)
            offsets = [message.queue_offset for message in result.messages]
            assert offsets == list(range(start, min(20, start + count)))
            assert [message.body for message in result.messages] == [expected[offset] for offset in offsets]
            assert (result.next_offset, result.max_offset, result.moved) == (start + len(offsets), 20, False)
    assert (await consumer.read(4, 1)).messages[0].keys == [b"key-4"]
    assert (await consumer.read(30)).moved
    assert broker.bounds_asked == 1
    with pytest.raises(Refused, match="no queue 3"):
        await AsyncConsumer(inprocess.connect(broker), "g", "t", 3).read(0)


async def test_a_damaged_record_is_not_read():
    broker = RecordBroker()
    broken = bytearray(broker.records[1][1])
    broken[-1] ^= 1
    broker.records[1] = (10, bytes(broken))
    with pytest.raises(CorruptRecord):
        await AsyncConsumer(inprocess.connect(broker), "g", "t", 2).read(10)


def test_threads_get_the_same_answers() -> None:
    """Each call waits for its answer on the caller's thread."""
    broker = Broker(fields={"offset": "42"} | BOUNDS)
    with served(broker) as server, Consumer(server.address, group="g", topic="t", queue=3) as queue:
        found = [queue.committed(), queue.max_offset(), queue.min_offset(), queue.offset_at(1_000), queue.commit(7)]
        assert found == [42, 42, 42, 42, None]
        broker.reply = (19, None, BOUNDS, b"")
        assert queue.pull(5, wait_ms=0).next_offset == 5
        broker.reply = (17, "no topic", {}, b"")
        with pytest.raises(Refused, match="no topic"):
            queue.read(0)
    assert [command.fields["queueId"] for command in broker.asked[:6]] == ["3"] * 6
