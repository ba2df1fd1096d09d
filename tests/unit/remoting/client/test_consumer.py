"""One queue pulled; every answer a broker may give."""

from __future__ import annotations

import pytest

from remoting import inprocess
from remoting.client.consumer import QueueConsumer
from remoting.protocol.errors import Refused, RemoteViolation

BOUNDS = {"nextBeginOffset": "5", "minOffset": "2", "maxOffset": "9"}


class Broker:
    """Answers with what the test has prepared and keeps what it was asked."""

    def __init__(self, code=0, fields=None, body=b"", remark=None):
        self.reply = (code, remark, fields or {}, body)
        self.asked = []

    def __call__(self, peer, command):
        self.asked.append(command)
        return command.reply(*self.reply)


def consumer(broker):
    return QueueConsumer(inprocess.connect(broker), "g", "t", 3)


async def test_a_pull_asks_to_wait_and_says_where_to_go_on():
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
