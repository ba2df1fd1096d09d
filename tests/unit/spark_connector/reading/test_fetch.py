"""Pulling ranges: order, repair, losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from remoting.protocol.bodies.pull_body import (
    FROM_REPLICA_FIELD,
    QueueRecords,
    decode_range_pull,
    encode_range_pull_reply,
)
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import RecordView
from remoting.transport.failures import ConnectionLost, RequestTimeout
from spark_connector.brokers import masters_at
from spark_connector.errors import BrokerUnreachable, DataLost
from spark_connector.options.read_write import ReadOptions, parse_read
from spark_connector.queues import QueueKey, QueueRange
from spark_connector.reading import task
from spark_connector.reading.replicas import ShortCuts
from spark_connector.reading.task import (
    FAILURES_MAX,
    TIMEOUT_MS_MAX,
    NotAnswered,
    RangeFetcher,
    TaskEndpoints,
    mean_record_bytes,
)
from tests.support.spark_rows import named_masters
from tests.unit.spark_connector.toy_broker import NAME, ToyBroker

Options = Callable[..., ReadOptions]


def ranges(broker: ToyBroker, *spans: tuple[int, int, int]) -> list[QueueRange]:
    """(queue number, start, end) as ranges of topic `t`."""
    return [QueueRange(QueueKey("t", NAME, n), broker.queue("t", n).id, start, end) for n, start, end in spans]


def bodies(
    work: list[QueueRange],
    broker: ToyBroker,
    options: ReadOptions,
    reader: ToyBroker | None = None,
    replicas: Sequence[tuple[str, int]] = (),
) -> list[bytes]:
    """Everything that arrives, in order."""
    found = []
    short_cuts = ShortCuts({} if reader is None else {NAME: reader.address}, {NAME: replicas} if replicas else {})
    for _, pulled in RangeFetcher(work, masters_at({NAME: ("", broker.address)}, options), options, short_cuts).pulls():
        starts = memoryview(pulled.starts).cast("I").tolist()
        found += [bytes(RecordView(pulled.blob, at).body) for at in starts]
    return found


@pytest.fixture
def filled(broker: ToyBroker) -> ToyBroker:
    """Queue 0 of topic `t` with 40 messages."""
    broker.publish("t", [b"%d" % n for n in range(40)], mqtt=False)
    return broker


def test_ranges_come_in_order(filled: ToyBroker, read_options: Options) -> None:
    work = ranges(filled, (0, 3, 20), (0, 30, 40))
    assert bodies(work, filled, read_options(topic="t")) == [b"%d" % n for n in [*range(3, 20), *range(30, 40)]]


def test_a_lost_connection_repeats_nothing(filled: ToyBroker, read_options: Options) -> None:
    answers: list[Callable[[Command], Command | None]] = [filled.answer, lambda command: None, filled.answer]
    filled.faults = answers
    assert bodies(ranges(filled, (0, 0, 40)), filled, read_options(topic="t")) == [b"%d" % n for n in range(40)]


def test_a_master_that_moved_is_looked_up(filled: ToyBroker, read_options: Options) -> None:
    """No broker is where it was when the read was planned: the name server has its new address."""
    gone = ToyBroker()
    gone.close()
    options = read_options(topic="t")
    pulls = RangeFetcher(ranges(filled, (0, 0, 40)), masters_at({NAME: ("", gone.address)}, options), options).pulls()
    assert sum(pulled.count for _, pulled in pulls) == 40


def test_a_former_master_names_the_new_one(filled: ToyBroker, read_options: Options) -> None:
    """No name server has to be asked."""
    former = ToyBroker()
    named = {"masterAddress": "{}:{}".format(*filled.address), "masterEpoch": "2"}

    def moved(command: Command) -> Command:
        reply = command.reply(ResponseCode.NOT_MASTER, "not the master")
        reply.fields = dict(named)
        return reply

    former.faults = [moved]
    asked_before = filled.requests.count(RequestCode.GET_BROKER_CLUSTER_INFO)
    options = read_options(topic="t")
    pulls = RangeFetcher(ranges(filled, (0, 0, 40)), masters_at({NAME: ("", former.address)}, options), options).pulls()
    assert sum(pulled.count for _, pulled in pulls) == 40
    assert filled.requests.count(RequestCode.GET_BROKER_CLUSTER_INFO) == asked_before
    former.close()


def test_a_dead_broker_is_named(filled: ToyBroker, read_options: Options) -> None:
    filled.close()
    with pytest.raises(BrokerUnreachable, match=str(filled.address[1])):
        bodies(ranges(filled, (0, 0, 40)), filled, read_options(topic="t", fetchretries="1"))


def test_retention_in_the_middle_of_a_batch(filled: ToyBroker, read_options: Options) -> None:
    filled.queue("t", 0).drop_first(10)
    work = ranges(filled, (0, 5, 40))
    with pytest.raises(DataLost, match=r"offsets 5 to 9 are gone.*failOnDataLoss"):
        bodies(work, filled, read_options(topic="t"))
    allowed = read_options(topic="t", failondataloss="false")
    assert bodies(work, filled, allowed) == [b"%d" % n for n in range(10, 40)]


@pytest.mark.parametrize(("queue_id", "start"), [(99, 0), (None, 50)])
def test_lost_offsets(filled: ToyBroker, read_options: Options, queue_id: int | None, start: int) -> None:
    lost = QueueRange(QueueKey("t", NAME, 0), queue_id or filled.queue("t", 0).id, start, start + 5)
    work = [lost, *ranges(filled, (0, 38, 40))]
    with pytest.raises(DataLost, match="no longer has offset"):
        bodies(work, filled, read_options(topic="t"))
    assert bodies(work, filled, read_options(topic="t", failondataloss="false")) == [b"38", b"39"]


def test_a_planned_end_that_the_log_lacks(filled: ToyBroker, read_options: Options) -> None:
    with pytest.raises(DataLost, match="the log now ends at 40"):
        bodies(ranges(filled, (0, 38, 45)), filled, read_options(topic="t"))


def test_mean_record_bytes(filled: ToyBroker, read_options: Options) -> None:
    options = read_options(topic="t")
    mean = mean_record_bytes(ranges(filled, (0, 0, 40)), masters_at({NAME: ("", filled.address)}, options))
    assert mean == len(filled.queue("t", 0).records[0])
    assert mean_record_bytes([], {}) is None


@pytest.fixture
def reader(filled: ToyBroker) -> Iterator[ToyBroker]:
    """A reader process of the filled broker: the same queues at another address."""
    toy = ToyBroker()
    toy.queues = filled.queues
    yield toy
    toy.close()


ALL = [b"%d" % n for n in range(40)]


def test_readers_spare_the_broker(filled: ToyBroker, reader: ToyBroker, read_options: Options) -> None:
    assert bodies(ranges(filled, (0, 0, 40)), filled, read_options(topic="t"), reader) == ALL
    assert (len(reader.requests), len(filled.requests)) == (6, 0)


def test_a_reader_that_dies_twice_is_left(filled: ToyBroker, reader: ToyBroker, read_options: Options) -> None:
    reader.faults = [reader.answer, lambda command: None, reader.answer, lambda command: None]
    assert bodies(ranges(filled, (0, 0, 40)), filled, read_options(topic="t"), reader) == ALL
    assert (len(reader.requests), len(filled.requests)) == (4, 4)


def test_no_reader_listens_any_more(filled: ToyBroker, reader: ToyBroker, read_options: Options) -> None:
    reader.close()
    assert bodies(ranges(filled, (0, 0, 40)), filled, read_options(topic="t", fetchretries="0"), reader) == ALL


def nonsense(command: Command) -> Command:
    return command.reply(body=b"?")


def refusal(command: Command) -> Command:
    return command.reply(14, "ask the broker")


def no_queue(command: Command) -> Command:
    return command.reply(body=encode_range_pull_reply(QueueRecords(1, 2, 0, 0, 0, 0)))


def at_its_end(command: Command) -> Command:
    want = decode_range_pull(command.body)
    return command.reply(body=encode_range_pull_reply(QueueRecords(1, 0, want.offset, want.offset, 0, want.offset)))


def shorter(command: Command) -> Command:
    want = decode_range_pull(command.body)
    return command.reply(body=encode_range_pull_reply(QueueRecords(1, 1, want.offset + 1, want.offset + 1, 9, 99)))


@pytest.mark.parametrize("answer", [nonsense, refusal, no_queue, at_its_end, shorter])
def test_whatever_a_reader_does_not_know_the_broker_answers(
    filled: ToyBroker, reader: ToyBroker, read_options: Options, answer: Callable[[Command], Command]
) -> None:
    reader.faults = [reader.answer, answer]
    assert bodies(ranges(filled, (0, 0, 40)), filled, read_options(topic="t"), reader) == ALL
    assert (len(reader.requests), len(filled.requests)) == (2, 5)


def test_a_loss_is_reported_by_the_broker(filled: ToyBroker, reader: ToyBroker, read_options: Options) -> None:
    with pytest.raises(DataLost, match="the log now ends at 40"):
        bodies(ranges(filled, (0, 38, 45)), filled, read_options(topic="t"), reader)
    assert filled.requests


def test_damage_is_a_loss_that_names_its_offsets(filled: ToyBroker, read_options: Options) -> None:
    filled.queue("t", 0).damaged = range(10, 13)
    work = ranges(filled, (0, 5, 40))
    with pytest.raises(DataLost, match=r"offsets 10 to 12 cannot be read.*failOnDataLoss"):
        bodies(work, filled, read_options(topic="t"))
    allowed = read_options(topic="t", failondataloss="false")
    assert bodies(work, filled, allowed) == [b"%d" % n for n in [*range(5, 10), *range(13, 40)]]
    filled.queue("t", 0).damaged = range(38, 45)
    work = ranges(filled, (0, 36, 40), (0, 0, 2))
    assert bodies(work, filled, allowed) == [b"36", b"37", b"0", b"1"]


BROKER, READER = ("b", 1), ("r", 2)


def endpoints_at(brokers: dict[str, tuple[str, int]], readers: dict[str, tuple[str, int]]) -> TaskEndpoints:
    """The endpoints of a task whose brokers were last at these addresses."""
    return TaskEndpoints(named_masters(brokers, parse_read({"topic": "t"})), ShortCuts(readers))


def test_readers_come_first_and_may_lose_a_connection() -> None:
    endpoints = endpoints_at({"a": BROKER, "z": ("z", 9)}, {"a": READER})
    assert (endpoints.of("a"), endpoints.is_reader("a"), endpoints.of("z"), endpoints.is_reader("z")) == (
        READER,
        True,
        ("z", 9),
        False,
    )
    assert endpoints.timeout_ms("a", 20_000) == TIMEOUT_MS_MAX
    assert endpoints.timeout_ms("z", 20_000) == 20_000
    for _ in range(FAILURES_MAX):
        assert endpoints.of("a") == READER
        endpoints.reader_failed("a", ConnectionLost("gone"))
    assert (endpoints.of("a"), endpoints.is_reader("a"), endpoints.timeout_ms("a", 20_000)) == (BROKER, False, 20_000)


def test_an_invalid_answer_and_a_silence_end_it_at_once() -> None:
    for failure in (NotAnswered("x"), RequestTimeout(1, "r:2", 5)):
        endpoints = endpoints_at({"a": BROKER}, {"a": READER})
        endpoints.reader_failed("a", failure)
        assert endpoints.of("a") == BROKER


def test_the_broker_stays_authoritative() -> None:
    endpoints = endpoints_at({"b": ("h", 1)}, {"b": ("r", 2)})
    assert (endpoints.of("b"), endpoints.masters["b"].address) == (("r", 2), ("h", 1))


@pytest.fixture
def replica(filled: ToyBroker) -> Iterator[ToyBroker]:
    """Holds the same messages as `filled`."""
    made = ToyBroker()
    made.publish("t", [b"%d" % n for n in range(40)], mqtt=False)
    yield made
    made.close()


EVERY_BODY = [b"%d" % n for n in range(40)]


def test_a_replica_is_read_and_told_that_it_is_taken_for_one(
    filled: ToyBroker, replica: ToyBroker, read_options: Options
) -> None:
    """The master gets no request; one that reads from masters says nothing of replicas."""
    told: list[bool] = []

    def note(command: Command) -> Command | None:
        told.append(FROM_REPLICA_FIELD in command.fields)
        return replica.answer(command)

    replica.faults = [note]
    options = read_options(topic="t", readFrom="replica")
    assert bodies(ranges(filled, (0, 0, 40)), filled, options, replicas=[replica.address]) == EVERY_BODY
    assert (told, filled.requests) == ([True], [])
    replica.faults = [note]
    assert bodies(ranges(filled, (0, 0, 40)), replica, read_options(topic="t")) == EVERY_BODY
    assert told == [True, False]


def test_a_replica_that_lacks_what_was_planned_is_waited_for(
    filled: ToyBroker, replica: ToyBroker, read_options: Options
) -> None:
    """It has no such queue yet, then fewer messages than planned, then all: nothing is asked of the master."""
    (wanted,) = ranges(filled, (0, 0, 40))

    def status(number: int, end: int) -> Callable[[Command], Command]:
        def answer(command: Command) -> Command:
            want = decode_range_pull(command.body)
            told = QueueRecords(want.queue_id, number, want.offset, want.offset, 0, end)
            return command.reply(body=encode_range_pull_reply(told))

        return answer

    replica.faults = [status(0, 0), status(3, 0), status(2, 0)]
    options = read_options(topic="t", readFrom="replica")
    assert bodies([wanted], filled, options, replicas=[replica.address]) == EVERY_BODY
    assert (replica.faults, filled.requests) == ([], [])


def test_a_replica_that_stays_behind_is_left_for_the_master(
    filled: ToyBroker, replica: ToyBroker, read_options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are as late as it is, and nothing is lost or read twice."""
    monkeypatch.setattr(task, "REPLICA_WAIT_MS", 30)
    del replica.queue("t", 0).records[25:]
    options = read_options(topic="t", readFrom="replica")
    found = bodies(ranges(filled, (0, 0, 40)), filled, options, replicas=[replica.address, replica.address])
    assert found == EVERY_BODY
    assert set(filled.requests) == {RequestCode.RANGE_PULL}
    assert len(filled.requests) < len(replica.requests)


def test_the_next_member_is_asked_when_a_replica_is_gone_or_refuses(
    filled: ToyBroker, replica: ToyBroker, read_options: Options
) -> None:
    """A dead one, one that is switched off, and one whose records are damaged; at last the master."""
    dead = ToyBroker()
    dead.close()
    options = read_options(topic="t", readFrom="replica")
    work = ranges(filled, (0, 0, 40))
    assert bodies(work, filled, options, replicas=[dead.address, replica.address]) == EVERY_BODY
    assert filled.requests == []
    replica.faults = [lambda command: command.reply(ResponseCode.NOT_MASTER, "not the master")]
    assert bodies(work, filled, options, replicas=[replica.address]) == EVERY_BODY
    replica.queue("t", 0).damaged = range(10, 20)
    assert bodies(work, filled, options, replicas=[replica.address]) == EVERY_BODY
    assert bodies(work, filled, options, replicas=[dead.address]) == EVERY_BODY
