"""Births from a broker: found, refreshed, refused, expired, and requested no more often than needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from remoting.protocol.bodies.pull_body import QueueRecords, encode_multi_pull_reply
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from spark_connector.brokers import masters_at
from spark_connector.decode.sparkplug import payload as module
from spark_connector.decode.sparkplug.payload import Births, Need
from spark_connector.errors import BrokenRecord
from spark_connector.options.read_write import ReadOptions
from tests.unit.spark_connector.decode.payloads import birth
from tests.unit.spark_connector.toy_broker import NAME, ToyBroker

TOPIC = "spBv1.0/g/NBIRTH/n"


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    """A free port may be one that an earlier toy broker had."""
    module._MEMORIES.clear()
    yield
    module._MEMORIES.clear()


@pytest.fixture
def births(broker: ToyBroker, read_options: Callable[..., ReadOptions]) -> Births:
    """Births of the toy broker."""
    options = read_options(mqttFilter="spBv1.0/#")
    return Births(options, masters_at({NAME: ("", broker.address)}, options))


def names(births: Births, position: int, topic: str = TOPIC) -> list[str] | None:
    """The certificates in force there."""
    found = births.at(NAME, topic, position)
    return None if found is None else list(found.datatypes)


def test_births_are_found_by_position(broker: ToyBroker, births: Births) -> None:
    broker.publish(TOPIC, [birth(a=(1, "Int8"))])
    broker.publish("spBv1.0/g/NDATA/n", [b"", b""])
    broker.publish(TOPIC, [birth(b=(1, "Int8"))])
    # The toy's positions count records of all queues: two for each message.
    births.prepare(NAME, {TOPIC: Need(1, 9, 1)})
    assert [names(births, position) for position in (0, 1, 6, 7)] == [None, ["a"], ["a"], ["b"]]


def test_what_is_known_is_not_requested_again(broker: ToyBroker, births: Births) -> None:
    broker.publish(TOPIC, [birth(a=(1, "Int8"))])
    births.prepare(NAME, {TOPIC: Need(1, 5, 1)})
    asked = len(broker.requests)
    births.prepare(NAME, {TOPIC: Need(2, 5, 2)})
    assert len(broker.requests) == asked
    broker.publish(TOPIC, [birth(b=(1, "Int8"))])
    births.prepare(NAME, {TOPIC: Need(2, 50, 2)})
    assert broker.requests[asked:] == [RequestCode.MULTI_PULL]
    assert names(births, 50) == ["b"]


def test_a_birth_that_comes_later(broker: ToyBroker, births: Births) -> None:
    births.prepare(NAME, {TOPIC: Need(1, 1, 1)})
    assert names(births, 1) is None
    broker.publish(TOPIC, [birth(a=(1, "Int8"))])
    births.prepare(NAME, {TOPIC: Need(7, 7, 7)})
    assert names(births, 7) == ["a"]


def test_many_births_and_many_topics(broker: ToyBroker, births: Births, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CERTIFICATES_PER_PULL_MAX", 3)
    monkeypatch.setattr(module, "TOPICS_PER_PULL_MAX", 2)
    monkeypatch.setattr(module, "ASKED_AT_ONCE_MAX", 2)
    topics = [f"spBv1.0/g/NBIRTH/n{n}" for n in range(5)]
    for topic in topics:
        broker.publish(topic, [birth(**{f"m{n}": (1, "Int8")}) for n in range(10)])
    births.prepare(NAME, {topic: Need(0, 10**6, 0) for topic in topics})
    assert [names(births, 10**6, topic) for topic in topics] == [["m9"]] * 5


def test_an_older_message_reads_on_from_further_back(broker: ToyBroker, births: Births) -> None:
    """The cache began after it: the topic is read again from where the message was stored."""
    broker.publish(TOPIC, [birth(a=(1, "Int8")), birth(b=(1, "Int8"))])
    memory = births._memory(NAME)
    births.prepare(NAME, {TOPIC: Need(9, 9, 9)})
    known = memory[TOPIC]
    del known.certificates[0]
    known.whole = False
    births.prepare(NAME, {TOPIC: Need(1, 9, 1)})
    assert names(births, 1) == ["a"]


def test_a_clock_that_went_back(broker: ToyBroker, births: Births) -> None:
    """The broker's answer by time is after the message: the topic is read from its beginning."""
    broker.publish(TOPIC, [birth(a=(1, "Int8")), birth(b=(1, "Int8"))])

    def late(command: Command) -> Command:
        reply = broker.answer(command)
        return command.reply(body=reply.body.replace(b'"at":0', b'"at":2'))

    broker.faults = [broker.answer, broker.answer, late]
    births.prepare(NAME, {TOPIC: Need(1, 9, 1)})
    assert names(births, 1) == ["a"]


def test_retention_and_damage(broker: ToyBroker, births: Births) -> None:
    broker.publish(TOPIC, [birth(a=(1, "Int8")), b"\xff", birth(c=(1, "Int8"))])
    queue = broker.queue("%LMQ%" + TOPIC.replace("/", "%2F").replace(".", "%2E"), 0)
    assert queue.records
    births.prepare(NAME, {TOPIC: Need(3, 3, 0)})
    queue.drop_first(1)
    births._memory(NAME)[TOPIC].next_offset = 0
    births._memory(NAME)[TOPIC].certificates.clear()
    births.prepare(NAME, {TOPIC: Need(99, 99, 99)})
    found = births.at(NAME, TOPIC, 4)
    assert found is not None
    assert "cannot be read" in found.broken
    assert names(births, 99) == ["c"]
    births._memory(NAME)[TOPIC].queue_id = 4711
    births.prepare(NAME, {TOPIC: Need(999, 999, 99)})
    assert names(births, 999) == ["c"]


def test_a_refusal_is_the_reason(broker: ToyBroker, births: Births) -> None:
    broker.faults = [lambda command: command.reply(ResponseCode.NO_PERMISSION, "not you")]
    births.prepare(NAME, {TOPIC: Need(1, 1, 1)})
    found = births.at(NAME, TOPIC, 1)
    assert found is not None
    assert "may not be read" in found.broken


def test_a_lost_connection_is_made_again(broker: ToyBroker, births: Births) -> None:
    broker.publish(TOPIC, [birth(a=(1, "Int8"))])
    broker.faults = [lambda _: None]
    births.prepare(NAME, {TOPIC: Need(1, 5, 1)})
    assert names(births, 5) == ["a"]


def test_a_broker_that_makes_no_progress(broker: ToyBroker, births: Births) -> None:
    broker.publish(TOPIC, [birth(a=(1, "Int8"))])
    stuck = encode_multi_pull_reply([QueueRecords(1, 0, 0, 0, 0, 9)])
    broker.faults = [broker.answer, lambda command: command.reply(body=stuck)]
    with pytest.raises(BrokenRecord, match="does not go on"):
        births.prepare(NAME, {TOPIC: Need(1, 5, 1)})


def test_memory_is_bounded(broker: ToyBroker, births: Births, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.publish(TOPIC, [birth(a=(1, "Int8"), b=(2, "Int8"))])
    births.prepare(NAME, {TOPIC: Need(1, 5, 1)})
    monkeypatch.setattr(module, "METRICS_REMEMBERED_MAX", 1)
    births.prepare(NAME, {})
    assert names(births, 5) is None


def test_a_need_grows() -> None:
    need = Need(5, 5, 50)
    need.widen(3, 60)
    need.widen(9, 10)
    assert (need.low, need.high, need.low_store_ms) == (3, 9, 50)
