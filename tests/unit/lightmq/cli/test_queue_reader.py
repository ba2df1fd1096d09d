from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lightmq.cli.link import Broker, ServerTarget, brokers
from lightmq.cli.queue_reader import LogMessage, QueueReader, Selection
from remoting.protocol.errors import CorruptRecord


@pytest.fixture
def broker(log_server: Any) -> Iterator[Broker]:
    for number in range(200):
        log_server.publish("plant/a" if number % 10 == 0 else "plant/b", b"%d" % number)
    with brokers(ServerTarget(server=log_server.address)) as found:
        yield found[0]


def bodies(messages: list[LogMessage]) -> list[int]:
    return [int(bytes(message.record.body)) for message in messages]


def test_the_newest_of_a_light_queue(broker: Broker) -> None:
    messages = QueueReader(broker, Selection("plant/a")).newest(3)
    assert bodies(messages) == [170, 180, 190]
    assert [(message.queue_id, message.offset) for message in messages] == [(2, 17), (2, 18), (2, 19)]


def test_the_newest_of_a_filter_are_looked_for_further_back(broker: Broker) -> None:
    assert bodies(QueueReader(broker, Selection("+/a")).newest(20)) == list(range(0, 200, 10))
    assert bodies(QueueReader(broker, Selection("+/a")).newest(1)) == [190]
    assert bodies(QueueReader(broker, Selection("+/a")).newest(0)) == []


def test_from_an_offset_and_the_parent_topic(broker: Broker, log_server: Any) -> None:
    assert bodies(QueueReader(broker, Selection("plant", is_parent=True)).from_offset(195)) == list(range(195, 200))
    log_server.lowest[1] = 190
    assert len(QueueReader(broker, Selection("plant", is_parent=True)).from_offset(0)) == 10


def test_fresh_messages_come_once(broker: Broker, log_server: Any) -> None:
    reader = QueueReader(broker, Selection("plant/#"))
    reader.newest(1)
    assert reader.fresh(0) == []
    log_server.on_bounds = lambda: log_server.publish("plant/c", b"1000")
    assert bodies(reader.fresh(100)) == [1000]
    log_server.on_bounds = lambda: None
    assert reader.fresh(100) == []


def test_a_damaged_record_is_never_shown(broker: Broker, log_server: Any) -> None:
    good = log_server.records[1][199]
    log_server.records[1][199] = good[:-8] + bytes(byte ^ 1 for byte in good[-8:])
    with pytest.raises(CorruptRecord, match="checksum"):
        QueueReader(broker, Selection("plant", is_parent=True)).newest(1)
