"""Automatic batching: when batches are sent, in what order they are stored, and what happens when they are not."""

from __future__ import annotations

import asyncio
import sys

import pytest

from remoting import inprocess
from remoting.batches import BatchRow
from remoting.batches.unpack import ArrowMissing
from remoting.client.batching import (
    OVERHEAD_BYTES,
    AsyncProducer,
    Message,
    ProducerSettings,
    Sent,
    image_of,
    size_of,
    to_row,
)
from remoting.client.connection import ReconnectingConnection
from remoting.protocol.errors import LocalMisuse, Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import image_views, wanted_queue
from remoting.protocol.records.names import queue_of
from remoting.transport.failures import ConnectionLost
from tests.unit.remoting.client.toy_log import ToyLog

BUSY, UNAVAILABLE = ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE


def producer(log: ToyLog, connection=None, **settings) -> AsyncProducer:
    settings.setdefault("linger_ms", 60_000)
    return AsyncProducer(
        connection or inprocess.connect(log), ProducerSettings(**settings), now_ms=lambda: 1_000, retry_pause_ms=1
    )


def message(number: int, topic: str = "m", **fields) -> Message:
    return Message(topic=topic, body=b"%d" % number, **fields)


@pytest.mark.parametrize("batch", [True, False])
async def test_messages_of_a_queue_are_one_request_and_get_their_offsets(batch: bool) -> None:
    log = ToyLog(m=(4, batch))
    source = producer(log)
    places = [await source.send(message(n, queue=2)) for n in range(10)]
    assert log.requests == [], "they wait for more"
    await source.flush()
    assert [place.result() for place in places] == [Sent("m", 2, n) for n in range(10)]
    assert log.requests == [("m", 2, 1 if batch else 10, 10)]
    assert [body for _, body in log.queues["m", 2]] == [b"%d" % n for n in range(10)]
    assert (source.waiting_bytes, source.messages_stored, log.asked) == (0, 10, 1)
    await source.close()


async def test_a_batch_is_sent_when_it_is_full_or_after_its_time() -> None:
    log = ToyLog(m=(1, True))
    source = producer(log, batch_count_max=3)
    for n in range(7):
        last = await source.send(message(n))
    await source.flush()
    assert [request[3] for request in log.requests] == [3, 3, 1]
    assert last.result().offset == 6
    by_bytes = producer(log, batch_bytes_max=1_000)
    for _ in range(4):
        await by_bytes.send(Message(topic="m", body=bytes(300)))
    await by_bytes.send(Message(topic="m", body=bytes(5_000)))
    await by_bytes.flush()
    assert [request[3] for request in log.requests[3:]] == [2, 2, 1], "the large one is sent alone"
    at_once = producer(log, linger_ms=0)
    assert (await (await at_once.send(message(1)))).offset == 12


async def test_a_key_has_its_queue_and_other_messages_take_turns() -> None:
    log = ToyLog(m=(4, False))
    source = producer(log, batch_count_max=2)
    keyed = [await source.send(message(n, key=f"device-{n % 5}")) for n in range(50)]
    loose = [await source.send(message(n)) for n in range(8)]
    await source.flush()
    for n, place in enumerate(keyed):
        assert place.result().queue == queue_of(b"device-%d" % (n % 5), 4)
    queues = [place.result().queue for place in loose]
    assert queues[0::2] == queues[1::2], "as long as a batch gathers its queue stays the same"
    assert sorted(queues[0::2]) == [0, 1, 2, 3]
    for device in range(5):
        key = b"device-%d" % device
        stored = [int(body) for known, body in log.queues["m", queue_of(key, 4)] if known == key]
        assert stored == list(range(device, 50, 5)), "the order of a key is kept"


async def test_one_request_per_queue_is_in_flight_and_the_rest_gathers() -> None:
    log = ToyLog(m=(2, True))
    log.hold = True
    source = producer(log, batch_count_max=2)
    for n in range(6):
        await source.send(message(n, queue=0))
    await source.send(message(9, queue=1))
    flushing = asyncio.create_task(source.flush())
    while len(log.held) < 2:
        await asyncio.sleep(0)
    assert log.requests == []
    log.hold = False
    log.release()
    await flushing
    assert sorted(log.requests) == [("m", 0, 1, 2)] * 3 + [("m", 1, 1, 1)]
    assert [body for _, body in log.queues["m", 0]] == [b"%d" % n for n in range(6)]


async def test_memory_is_bounded_and_waiting_callers_continue_in_order() -> None:
    log = ToyLog(m=(1, False))
    log.hold = True
    source = producer(log, memory_bytes_max=1_000)
    places = [await source.send(Message(topic="m", body=bytes(300))) for _ in range(2)]
    more = [asyncio.create_task(source.send(Message(topic="m", body=bytes(300)))) for _ in range(3)]
    while not log.held:
        await asyncio.sleep(0)
    assert not any(task.done() for task in more)
    assert source.waiting_bytes <= 1_000
    log.hold = False
    log.release()
    places += [await task for task in more]
    await source.flush()
    assert [place.result().offset for place in places] == list(range(5))
    refusing = producer(log, memory_bytes_max=1_000, when_full="refuse")
    log.hold = True
    await refusing.send(Message(topic="m", body=bytes(800)))
    with pytest.raises(Refused, match="already waiting") as refused:
        await refusing.send(Message(topic="m", body=bytes(800)))
    assert refused.value.code == BUSY
    log.hold = False
    await asyncio.sleep(0)
    log.release()
    await refusing.close()


async def test_a_busy_broker_is_asked_again_and_nothing_is_reordered() -> None:
    log = ToyLog(m=(1, True))
    log.refusals = [BUSY, BUSY]
    source = producer(log, batch_count_max=2, repeat_unanswered=False)
    places = [await source.send(message(n)) for n in range(6)]
    await source.flush()
    assert [place.result().offset for place in places] == list(range(6))
    assert [body for _, body in log.queues["m", 0]] == [b"%d" % n for n in range(6)]
    assert source.requests_repeated == 2


@pytest.mark.parametrize("code", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION])
async def test_a_refused_batch_ends_its_messages_and_no_others(code: int) -> None:
    log = ToyLog(m=(1, False))
    log.refusals = [code]
    source = producer(log, batch_count_max=2)
    places = [await source.send(message(n)) for n in range(4)]
    await source.flush()
    assert [isinstance(place.exception(), Refused) for place in places] == [True, True, False, False]
    assert await source.send(message(9)) is not None
    assert log.asked == 2, "the topic is asked for again after a refusal"
    await source.close()


async def test_a_lost_answer_is_repeated_or_reported_as_configured() -> None:
    for refusal, wanted in (("store and close", 2), ("close", 1), (UNAVAILABLE, 1)):
        log = ToyLog(m=(1, True))

        async def dial(log: ToyLog = log):
            return inprocess.connect(log)

        connection = ReconnectingConnection(dial, "toy", pause_first_ms=1)
        connection.start()
        repeating = producer(log, connection)
        place = await repeating.send(message(1))
        log.refusals = [refusal]
        await repeating.flush()
        assert place.result().offset == wanted - 1
        assert len(log.queues["m", 0]) == wanted
        careful = producer(log, connection, repeat_unanswered=False)
        place = await careful.send(message(2))
        log.refusals = [refusal]
        await careful.flush()
        assert isinstance(place.exception(), ConnectionLost | Refused)
        await connection.close()


async def test_attempts_end() -> None:
    log = ToyLog(m=(1, True))
    source = producer(log, attempts_max=3)
    place = await source.send(message(1))
    log.refusals = [BUSY] * 9
    await source.flush()
    assert isinstance(place.exception(), Refused)
    assert len(log.refusals) == 6


async def test_what_cannot_be_sent_is_refused_at_once() -> None:
    log = ToyLog(m=(2, True), none=(0, False))
    source = producer(log, message_bytes_max=10)
    with pytest.raises(Refused, match=r"not exist.* Create it with: lightmq topics create unknown$"):
        await source.send(message(1, topic="unknown"))
    with pytest.raises(Refused, match=r"not in 0\.\.1"):
        await source.send(message(1, queue=2))
    with pytest.raises(Refused, match="no queues to write"):
        await source.send(message(1, topic="none"))
    with pytest.raises(LocalMisuse, match="the limit is 10"):
        await source.send(Message(topic="m", body=bytes(11)))
    with pytest.raises(LocalMisuse, match="up to 65535"):
        await source.send(message(1, key="k" * 70_000))
    assert source.waiting_bytes == 0
    await source.close()
    with pytest.raises(ConnectionLost, match="closed"):
        await source.send(message(1))


async def test_without_pyarrow_only_batch_topics_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = ToyLog(m=(1, True), plain=(1, False))
    source = producer(log)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "remoting.batches.body", None)
        without.delattr("remoting.batches.body")
        with pytest.raises(ArrowMissing, match="pip install"):
            await source.send(message(1))
        place = await source.send(message(1, topic="plain"))
        await source.flush()
    assert place.result() == Sent("plain", 0, 0)


async def test_many_senders_request_a_route_once() -> None:
    log = ToyLog(m=(1, True))
    source = producer(log)
    await asyncio.gather(*[source.send(message(n)) for n in range(20)])
    await source.close()
    assert log.asked == 1
    assert len(log.queues["m", 0]) == 20


async def test_an_answer_that_does_not_match_ends_the_batch() -> None:
    log = ToyLog(m=(1, False))
    source = producer(log)
    real = log.store
    log.store = lambda command: (real(command), command.reply(body=b""))[1]
    place = await source.send(message(1))
    await source.flush()
    assert isinstance(place.exception(), RemoteViolation)
    log._config = lambda command: command.reply(body=b"{}")
    with pytest.raises(RemoteViolation, match="cannot be read"):
        await source.send(message(2))


async def test_a_stopped_producer_refuses() -> None:
    log = ToyLog(m=(1, True))
    log.hold = True
    source = producer(log, linger_ms=0)
    place = await source.send(message(1))
    while not log.held:
        await asyncio.sleep(0)
    (line,) = source._lines.values()
    line.sender.cancel()
    with pytest.raises(ConnectionLost, match="stopped"):
        await place


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_count_max": 0}, {"batch_count_max": 65_537}, {"batch_bytes_max": 0}, {"memory_bytes_max": 0},
        {"batch_bytes_max": 1 << 30}, {"linger_ms": -1}, {"when_full": "drop"}, {"codec": "gzip"},
    ],
)  # fmt: skip
def test_settings_are_checked(wrong: dict) -> None:
    with pytest.raises(LocalMisuse):
        ProducerSettings(**wrong)


async def test_a_route_is_requested_again_when_the_answer_was_lost() -> None:
    """The first message of a topic is not lost because the broker was lost at that moment."""
    log = ToyLog(m=(1, False))
    log.silent_questions = 1

    async def dial():
        return inprocess.connect(log)

    connection = ReconnectingConnection(dial, "toy", pause_first_ms=1)
    connection.start()
    source = producer(log, connection, linger_ms=0)
    assert (await (await source.send(message(1)))).offset == 0
    assert log.asked == 2
    log.silent_questions = 2
    log.topics["n"] = (1, False)
    with pytest.raises(ConnectionLost):
        await producer(log, connection, attempts_max=2).send(Message(topic="n", body=b""))
    await connection.close()


def test_a_message_becomes_a_row_and_an_entry() -> None:
    message = Message(topic="t", body=b"x", key="kä", tag="g", properties={"a": "1", "b": ""})
    row = to_row(message, 77)
    assert row == BatchRow(b"x", 77, "kä".encode(), b"g", ((b"a", b"1"), (b"b", b"")))
    assert to_row(Message(topic="t", body=b"", born_ms=5), 77).born_ms == 5
    assert size_of(row) == OVERHEAD_BYTES + 1 + 3 + 1 + 3
    (entry,) = image_views(b"".join([image_of(row, b"t", 3)]))
    assert (entry.topic, wanted_queue(entry), entry.born_ms, entry.body, entry.tags) == (b"t", 3, 77, b"x", b"g")
    assert len(entry.properties()) == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"key": "k" * 65_536}, "up to 65535"),
        ({"tag": "k" * 65_536}, "up to 65535"),
        ({"properties": {"a": "k" * 65_535}}, "up to 65535"),
        ({"key": "\ud800"}, "not valid Unicode"),
        ({"born_ms": -1}, "born_ms is -1"),
        ({"born_ms": 2**60}, "born_ms is"),
    ],
)
def test_what_does_not_fit_a_record_is_refused(fields: dict, said: str) -> None:
    with pytest.raises(LocalMisuse, match=said):
        to_row(Message(topic="t", body=b"", **fields), 0)


def test_a_place_is_a_value() -> None:
    assert Sent("t", 1, 2) == Sent("t", 1, 2)
