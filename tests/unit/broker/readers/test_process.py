"""A reader's answers, refusals where nothing is certain, and one real process that ends with its pipe."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.readers.messages import ReaderSettings, report_of, to_line
from broker.readers.process import RangeService, one_topic
from broker.router import handlers
from broker.store.attached.store import AttachedStore
from broker.store.errors import CorruptIndex, CorruptLog, StoreError, Unsettled
from broker.store.index.reader import RangeResult
from remoting.access.rules import ALLOWED, Verdict
from remoting.client.blocking import BlockingConnection
from remoting.native.vectors import column
from remoting.protocol.bodies.pull_body import (
    STATUS_NO_SUCH_QUEUE,
    VIEW,
    RowFilter,
    decode_filtered_reply,
    decode_range_pull_reply,
    encode_filtered_pull,
    encode_range_pull,
    encode_row_filter,
)
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.server.authorizer import Authorizer
from remoting.transport.signature import Signer
from tests.sim.stores import StoreBench, message
from tests.support.addresses import own_address


class FakePeer:
    address = "10.1.2.3:4"

    def __init__(self) -> None:
        self.attributes: dict[str, object] = {}


def asking(queue_id: int, offset: int, end: int, size: int = 99_999) -> Command:
    return Command(RequestCode.RANGE_PULL, body=encode_range_pull(queue_id, offset, end, size))


@pytest.fixture
def service(running) -> RangeService:
    return RangeService(AttachedStore(running.config.data_directory), pull_bytes_max=1_000_000)


async def test_the_same_bytes_as_from_the_broker(running, service) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(*[b"a/1"] * 5)))
    queue_id = running.store.queues.find(names.light_queue_name(b"a/1"))
    for wanted in ((queue_id, 1, 4), (queue_id, 0, 99), (queue_id, 9, 10), (queue_id, 0, 99, 300), (1 << 31, 0, 9)):
        here = service.range_pull(FakePeer(), asking(*wanted))
        there = handlers(running.broker)[RequestCode.RANGE_PULL](FakePeer(), asking(*wanted))
        if wanted[0] == queue_id:
            assert here.body == there.body
        else:
            assert decode_range_pull_reply(here.body).status == STATUS_NO_SUCH_QUEUE
    report = service.report
    assert (report.requests, report.records, report.refused) == (5, 9, {})
    assert report.bytes > 9 * 80


async def test_filtered_as_at_the_broker(running, service) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"a/2", b"a/1")))
    wanted = encode_row_filter(RowFilter(mqtt=("a/1",)))
    for queue_id in running.broker.topics.table.queue_ids("a"):
        command = Command(RequestCode.FILTERED_PULL, body=encode_filtered_pull(queue_id, 0, 9, 99_999, wanted))
        here = service.filtered_pull(FakePeer(), command)
        assert here.body == handlers(running.broker)[RequestCode.FILTERED_PULL](FakePeer(), command).body
    assert service.report.records == 2
    service.filtered_pull(FakePeer(), Command(RequestCode.FILTERED_PULL, fields=VIEW, body=command.body))
    assert (service.report.records, service.report.viewed) == (2, decode_filtered_reply(here.body).count)
    wrong = encode_filtered_pull(1, 0, 9, 9, encode_row_filter(RowFilter(sql="a >")))
    with pytest.raises(Refused, match="SQL"):
        service.filtered_pull(FakePeer(), Command(RequestCode.FILTERED_PULL, body=wrong))
    assert service.report.refused == {"malformed": 1}


async def test_staged_rows_are_hidden(running, service) -> None:
    connection = running.connect()
    fields = {"sink": "s", "batch": "0", "partition": "0", "attempt": "0"}
    await connection.request(Command(RequestCode.STAGE, fields=fields, body=running.publish(b"out/x", b"out/x")))
    await running.settle()
    (hidden,) = running.broker.topics.hidden
    assert running.store.reading.bounds(hidden)[1] == 2
    found = decode_range_pull_reply(service.range_pull(FakePeer(), asking(hidden, 0, 9)).body)
    assert (found.status, found.count, len(found.blob)) == (STATUS_NO_SUCH_QUEUE, 0, 0)


async def test_a_policy_is_asked_with_the_topics_of_the_records(running) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"a/2")))
    await asyncio.sleep(0)
    store = AttachedStore(running.config.data_directory)
    asked: list[str] = []
    authorizer = Authorizer(lambda _identity, action, resource: asked.append(resource) is None and resource != "a/2")
    service = RangeService(store, pull_bytes_max=1_000_000, authorizer=authorizer)
    one = running.store.queues.find(names.light_queue_name(b"a/1"))
    assert decode_range_pull_reply(service.range_pull(FakePeer(), asking(one, 0, 9)).body).count == 1
    assert asked == ["a/#"], "one check for a topic that may be read as a whole"


async def test_single_messages_are_checked_where_the_whole_topic_is_not_allowed(running) -> None:
    """And in a queue of several topics, which no rule for one of them opens."""
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"a/2", b"b/1", b"a/1")))
    await running.settle()
    store = AttachedStore(running.config.data_directory)
    asked: list[str] = []
    authorizer = Authorizer(lambda _identity, action, resource: asked.append(resource) is None and resource == "a/1")
    service = RangeService(store, pull_bytes_max=1_000_000, authorizer=authorizer)
    one, two = (running.store.queues.find(names.light_queue_name(topic)) for topic in (b"a/1", b"a/2"))
    assert decode_range_pull_reply(service.range_pull(FakePeer(), asking(one, 0, 9)).body).count == 2
    with pytest.raises(Refused) as refused:
        service.range_pull(FakePeer(), asking(two, 0, 9))
    assert refused.value.code == ResponseCode.NO_PERMISSION
    assert asked == ["a/#", "a/1", "a/#", "a/2"]
    assert service.report.refused == {"not_authorized": 1}


async def test_the_topic_of_many_records(running) -> None:
    """Alike in length and unlike in name, unlike in length, alike in both; and no records."""
    connection = running.connect()

    async def topic_of(*topics: bytes) -> str | None:
        reply = await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(*topics)))
        assert reply.code == 0
        await running.settle()
        blob, starts = b"", []
        for topic in topics:
            queue_id = running.store.queues.find(names.light_queue_name(topic))
            found = running.store.reading.read_range(
                queue_id, running.store.reading.bounds(queue_id)[1] - 1, 1, 99_999, 1 << 40
            )
            starts.append(len(blob))
            blob += bytes(found.blob)
        return one_topic(RangeResult(0, 0, 0, 0, 0, column(starts, "I"), bytearray(blob)))

    assert await topic_of(b"a/1", b"a/2", b"a/1") == "a"
    assert await topic_of(b"a/1", b"b/1") is None
    assert await topic_of(b"a/1", b"long/1") is None
    assert one_topic(RangeResult(0, 0, 0, 0, 0)) is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unsettled("moves"), "unsettled"),
        (CorruptLog("f", 8, "rot"), "corrupt"),
        (CorruptIndex("f", "rot"), "index"),
        (StoreError("x"), "index"),
    ],
)
async def test_what_cannot_be_answered_is_left_to_the_broker(service, monkeypatch, error, reason) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(service._store, "read_range", fail)
    with pytest.raises(Refused, match="ask the broker") as refused:
        service.range_pull(FakePeer(), asking(1, 0, 9))
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    with pytest.raises(RemoteViolation):
        service.range_pull(FakePeer(), Command(RequestCode.RANGE_PULL, body=b"?"))
    assert service.report.refused == {reason: 1, "malformed": 1}


async def test_a_filter_wider_than_the_rights_is_filtered_as_at_the_broker(running) -> None:
    """The same bytes; of a filter that may not be read at all nothing, and without a filter what the topics allow."""

    class Thinning:
        def __call__(self, _identity: str, _action: str, resource: str) -> bool:
            return resource == "a/1"

        def readable(self, _identity: str, topic_filter: str, _host: str) -> Callable[[bytes], Verdict] | None:
            no_rule = Verdict(allowed=False, reason="no_rule")
            return None if topic_filter == "b/#" else lambda topic: ALLOWED if topic == b"a/1" else no_rule

    await running.connect().request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"a/2", b"a/1")))
    await running.settle()
    authorizer = running.judge_by(Thinning())
    store = AttachedStore(running.config.data_directory)
    service = RangeService(store, pull_bytes_max=1_000_000, authorizer=authorizer)
    for queue_id in running.broker.topics.table.queue_ids("a"):

        def pull(name: str, queue_id: int = queue_id) -> Command:
            body = encode_filtered_pull(queue_id, 0, 9, 99_999, encode_row_filter(RowFilter(mqtt=(name,))))
            return Command(RequestCode.FILTERED_PULL, body=body)

        here = service.filtered_pull(FakePeer(), pull("#"))
        assert here.body == handlers(running.broker)[RequestCode.FILTERED_PULL](FakePeer(), pull("#")).body
        assert b"a/2" not in bytes(here.body)
        with pytest.raises(Refused):
            service.filtered_pull(FakePeer(), pull("b/#"))
    assert service.report.records == 2
    assert service.report.withheld == {"no_rule": 1}
    assert running.broker.tools.metrics.withheld.child("no_rule").value == 1


@contextmanager
def reader(
    directory: Path, port: int = 0, *, host: str = "127.0.0.1", access_keys: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "broker.readers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    settings = ReaderSettings(
        directory=str(directory), host=host, port=port, pull_bytes_max=1 << 20, frame_size_bytes_max=1 << 20,
        output_bytes_max=1 << 20, connections_max=10, access_keys=access_keys,
    )  # fmt: skip
    process.stdin.write(to_line(settings))
    process.stdin.flush()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[StoreBench, int]]:
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    bench.store.append(*[message([queue], b"%d" % n) for n in range(20)])
    bench.settle()
    yield bench, queue
    bench.close()


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_it_serves_ranges_counts_and_ends_with_the_pipe(store: tuple[StoreBench, int], tmp_path: Path) -> None:
    _, queue = store
    port = free_port()
    with reader(tmp_path / "data", port) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert report_of(process.stdout.readline()).requests == 0
        with BlockingConnection("127.0.0.1", port) as connection:
            body = encode_range_pull(queue, 5, 15, 1 << 20)
            reply = connection.request(Command(RequestCode.RANGE_PULL, body=body))
            assert decode_range_pull_reply(reply.body).count == 10
            for code in (RequestCode.APPEND_MANY, RequestCode.QUEUE_BOUNDS, RequestCode.MULTI_PULL):
                assert connection.request(Command(code)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        report = report_of(process.stdout.readline())
        assert (report.requests, report.records) == (1, 10)
        process.send_signal(signal.SIGINT)
        process.stdin.close()
        assert process.wait(10) == 0


def test_others_need_a_signature(store: tuple[StoreBench, int], tmp_path: Path) -> None:
    """As at the broker: a peer that is not on loopback signs, or is refused."""
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    _, queue = store
    port = free_port()
    command = encode_range_pull(queue, 0, 9, 1 << 20)
    with reader(tmp_path / "data", port, host="0.0.0.0", access_keys=("key:secret",)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        refused, wrong, right = ResponseCode.NO_PERMISSION, Signer("key", "wrong"), Signer("key", "secret")
        for signer, code in ((None, refused), (wrong, refused), (right, 0)):
            with BlockingConnection(address, port, signer=signer) as connection:
                assert connection.request(Command(RequestCode.RANGE_PULL, body=command)).code == code
        with BlockingConnection("127.0.0.1", port) as connection:
            assert connection.request(Command(RequestCode.RANGE_PULL, body=command)).code == 0


def test_sigterm_ends_it_cleanly(store: tuple[StoreBench, int], tmp_path: Path) -> None:
    with reader(tmp_path / "data") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_directory_without_a_writer(tmp_path: Path) -> None:
    with reader(tmp_path / "nothing") as process:
        assert process.wait(10) == 1
        assert process.stderr is not None
        assert b"range_reader_failed" in process.stderr.read()
    assert list(tmp_path.iterdir()) == []


def test_started_by_hand_it_says_what_starts_it() -> None:
    finished = subprocess.run([sys.executable, "-m", "broker.readers"], input=b"", capture_output=True, check=False)
    assert finished.returncode == 2
    assert b"started by its broker" in finished.stderr
