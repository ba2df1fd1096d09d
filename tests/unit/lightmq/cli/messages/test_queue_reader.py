from __future__ import annotations

import tracemalloc
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from lightmq.cli.connections import Broker, ServerTarget, brokers
from lightmq.cli.messages.tail import LogMessage, MessageSelection, QueueReader
from remoting.protocol.bodies.pull_body import (
    VIEW,
    QueueBounds,
    QueueBoundsReply,
    QueueRecords,
    decode_range_pull,
    encode_bounds_reply,
    encode_range_pull_reply,
)
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.support.batches import make_batch_record, make_rows
from tests.support.records import make_record


@pytest.fixture
def broker(log_server: Any) -> Iterator[Broker]:
    for number in range(200):
        log_server.publish("plant/a" if number % 10 == 0 else "plant/b", b"%d" % number)
    with brokers(ServerTarget(server=log_server.address)) as found:
        yield found[0]


def bodies(messages: Iterable[LogMessage]) -> list[int]:
    return [int(bytes(message.record.body)) for message in messages]


@pytest.mark.parametrize(("name", "last"), [("plant/a", [180, 190]), ("plant/#", list(range(172, 200)))])
def test_those_since_a_time(broker: Broker, name: str, last: list[int]) -> None:
    """Messages are stored at the times 0 to 199."""
    reader = QueueReader(broker, MessageSelection(name))
    assert bodies(reader.since(172)) == last
    assert bodies(reader.since(0))[0] == 0
    assert list(reader.since(200)) == []
    assert list(reader.fresh(0)) == []


def test_the_newest_of_a_light_queue(broker: Broker) -> None:
    messages = QueueReader(broker, MessageSelection("plant/a")).newest(3)
    assert bodies(messages) == [170, 180, 190]
    assert [(message.queue_id, message.offset) for message in messages] == [(2, 17), (2, 18), (2, 19)]


def test_the_newest_of_a_filter_are_searched_further_back(broker: Broker) -> None:
    assert bodies(QueueReader(broker, MessageSelection("+/a")).newest(20)) == list(range(0, 200, 10))
    assert bodies(QueueReader(broker, MessageSelection("+/a")).newest(1)) == [190]
    assert bodies(QueueReader(broker, MessageSelection("+/a")).newest(0)) == []


def test_from_an_offset_and_the_parent_topic(broker: Broker, log_server: Any) -> None:
    assert bodies(QueueReader(broker, MessageSelection("plant", is_parent=True)).from_offset(195)) == list(
        range(195, 200)
    )
    log_server.lowest[1] = 190
    assert bodies(QueueReader(broker, MessageSelection("plant", is_parent=True)).from_offset(0)) == list(
        range(190, 200)
    )


def test_fresh_messages_come_once(broker: Broker, log_server: Any) -> None:
    reader = QueueReader(broker, MessageSelection("plant/#"))
    reader.newest(1)
    assert list(reader.fresh(0)) == []
    log_server.on_bounds = lambda: log_server.publish("plant/c", b"1000")
    assert bodies(reader.fresh(100)) == [1000]
    log_server.on_bounds = lambda: None
    assert list(reader.fresh(100)) == []


def test_a_damaged_record_is_never_shown(broker: Broker, log_server: Any) -> None:
    good = log_server.records[1][195]
    log_server.records[1][195] = good[:-8] + bytes(byte ^ 1 for byte in good[-8:])
    reader = QueueReader(broker, MessageSelection("plant", is_parent=True))
    with pytest.raises(CorruptRecord, match=r"offset 195 of queue 1 is damaged: .* with --offset 196"):
        reader.newest(10)
    assert bodies(reader.from_offset(196)) == [196, 197, 198, 199]


class BatchBroker:
    """Answers every pull with the same records of queue 1: offsets 10 to 15 a batch, 16 a single message."""

    records = (
        make_batch_record(make_rows(6, first=10), position=800, dispatch=[(1, 10)]),
        make_record(b"single", position=8_000, dispatch=[(1, 16)]),
    )

    def __init__(self) -> None:
        self.asked: list[int] = []

    def ask_again(self, code: int, body: bytes, fields: object = None) -> Command:
        command = Command(code, body=body)
        if command.code == RequestCode.QUEUE_BOUNDS:
            queue = QueueBounds(topic="t", queue=0, id=1, min=10, max=17)
            reply = QueueBoundsReply(broker="b", epoch=1, confirm=0, queues=[queue])
            return command.reply(body=encode_bounds_reply(reply))
        assert fields == VIEW, "what is shown is not consumed"
        want = decode_range_pull(command.body)
        self.asked.append(want.offset)
        return command.reply(
            body=encode_range_pull_reply(QueueRecords(1, 0, want.offset, 17, 10, 17, list(self.records)))
        )


def test_messages_of_a_batch_are_shown_one_by_one_in_the_order_of_the_log() -> None:
    broker = BatchBroker()
    found = list(QueueReader(broker, MessageSelection("t", is_parent=True)).from_offset(13))  # type: ignore[arg-type]
    assert broker.asked == [13]
    assert [(message.offset, bytes(message.record.body)) for message in found] == [
        (13, b"body 13"), (14, b"body 14"), (15, b"body 15"), (16, b"single"),
    ]  # fmt: skip
    newest = QueueReader(broker, MessageSelection("t", is_parent=True)).newest(2)  # type: ignore[arg-type]
    assert [message.offset for message in newest] == [15, 16]


def test_whether_there_is_a_queue_at_all(log_server: Any, broker: Broker) -> None:
    assert QueueReader(broker, MessageSelection("plant", is_parent=True)).exists()
    log_server.with_topic = False
    assert not QueueReader(broker, MessageSelection("plant", is_parent=True)).exists()


def test_a_large_selection_is_not_held(log_server: Any) -> None:
    """What is printed is forgotten: 24 MB go by, three messages of the server at a time."""
    body = bytes(4_096)
    for _ in range(6_000):
        log_server.publish("plant/b", body)
    with brokers(ServerTarget(server=log_server.address)) as found:
        messages = QueueReader(found[0], MessageSelection("plant/#")).since(0)
        tracemalloc.start()
        assert deque(messages, 1)[0].offset == 5_999
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4_000_000
