"""A real broker with reader processes: advertised, supervised, with the broker's rules, and ended with their broker."""

from __future__ import annotations

import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.store.attached.store import in_order
from remoting.client.blocking import BlockingConnection
from remoting.protocol.bodies.pull_body import (
    PulledRange,
    QueueBoundsReply,
    QueueBoundsRequest,
    decode_bounds_reply,
    decode_range_pull_reply,
    encode_bounds_request,
    encode_range_pull,
)
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from remoting.transport.signature import Signer
from tests.processes.broker_group import BrokerGroup
from tests.processes.rig import Process, Server, no_traceback

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not in_order(), reason="readers need a processor that keeps loads and stores in order"),
]
READERS = 2
DEADLINE_S = 20.0


def start_broker(tmp_path: Path) -> Process:
    arguments = ["broker", "--data", str(tmp_path / "data"), "--controllers", "", "--readers", str(READERS)]
    server = Process(tmp_path / "broker", arguments, "remoting")
    server.start()
    return server


def start_all_in_one(tmp_path: Path) -> Server:
    server = Server(tmp_path / "data", "--readers", str(READERS))
    server.start()
    return server


@pytest.fixture(params=[start_broker, start_all_in_one])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    made = request.param(tmp_path)
    yield made
    made.kill_if_running()


def until(condition: Callable[[], bool]) -> None:
    """Processes start and end; there is no event of theirs to await here."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def connect(server: Server, port: str = "remoting") -> BlockingConnection:
    return BlockingConnection("127.0.0.1", server.ports[port])


def publish(server: Server, count: int) -> None:
    entries = [image.encode_mqtt_image(b"plant/1", b"%d" % n, 1, 0, b"test") for n in range(count)]
    with connect(server) as connection:
        reply = connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(entries)))
    assert reply.code == 0, reply.remark


def bounds(server: Server) -> QueueBoundsReply:
    with connect(server) as connection:
        body = encode_bounds_request(QueueBoundsRequest(filter="plant/1"))
        return decode_bounds_reply(connection.request(Command(RequestCode.QUEUE_BOUNDS, body=body)).body)


def pulled_by_reader(server: Server) -> int:
    """How many messages the reader that it names has."""
    told = bounds(server)
    assert told.readers is not None
    assert told.light is not None
    with BlockingConnection.dial(told.readers) as connection:
        return pull(connection, told.light.id).count


def pull(connection: BlockingConnection, queue: int, offset: int = 0) -> PulledRange:
    body = encode_range_pull(queue, offset, 1 << 40, 1 << 20)
    return decode_range_pull_reply(connection.request(Command(RequestCode.RANGE_PULL, body=body)).body)


def children(server: Server) -> list[int]:
    """Process ids of the readers."""
    assert server.process is not None
    listing = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return [int(pid) for pid in listing.split()]


def metric(server: Server, name: str) -> float:
    headers = {"Authorization": "Bearer watch:w-secret"}
    asked = urllib.request.Request(f"http://127.0.0.1:{server.ports['admin']}/metrics", headers=headers)
    with urllib.request.urlopen(asked) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and line[0] != "#")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_readers_of_a_group_are_its_masters(tmp_path: Path) -> None:
    """A replica starts none before it is the master."""
    group = BrokerGroup(tmp_path, brokers=3, arguments={"broker": ["--readers", "1"]})
    try:
        for part in (*group.controllers, *group.brokers):
            part.start()
        master = group.settle()
        publish(master, 20)
        until(lambda: bounds(master).readers is not None)
        assert pulled_by_reader(master) == 20
        assert not any(children(each) for each in group.brokers if each is not master)
        master.kill()
        until(lambda: group.master() not in (None, master))
        successor = group.settle()
        publish(successor, 10)
        until(lambda: bounds(successor).readers is not None)
        assert pulled_by_reader(successor) == 30
    finally:
        group.end()


def test_readers_serve_ranges_and_are_restarted(server: Server) -> None:
    publish(server, 50)
    until(lambda: metric(server, "rocketmq_range_readers ") == READERS)
    told = bounds(server)
    assert told.readers == f"127.0.0.1:{server.ports['readers']}"
    assert told.light is not None
    with connect(server, "readers") as connection:
        assert pull(connection, told.light.id).count == 50
        publish(server, 10)
        assert pull(connection, told.light.id, 50).count == 10, "what is acknowledged is visible at once"
    until(lambda: metric(server, "rocketmq_range_reader_requests_total") == 2)
    assert metric(server, "rocketmq_range_reader_bytes_total") > 60 * 80
    before = children(server)
    assert len(before) == READERS
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    # In this order: the count of readers is out of date until both deaths have been noticed.
    until(lambda: metric(server, "rocketmq_range_reader_restarts_total") == READERS)
    until(lambda: metric(server, "rocketmq_range_readers ") == READERS)
    assert not set(before) & set(children(server))
    with connect(server, "readers") as connection:
        assert pull(connection, told.light.id).count == 60
    after = children(server)
    assert server.end(signal.SIGTERM) == 0
    until(lambda: not any(alive(pid) for pid in after))
    no_traceback(server)


def test_no_reader_outlives_a_killed_broker(server: Server) -> None:
    until(lambda: metric(server, "rocketmq_range_readers ") == READERS)
    readers = children(server)
    server.kill()
    until(lambda: not any(alive(pid) for pid in readers))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.ports["readers"]))


def test_readers_apply_the_brokers_access_list(tmp_path: Path) -> None:
    """A key may read there what it may read at the broker and nothing else, and a changed list applies there too."""
    listed = tmp_path / "acl"
    listed.write_text(
        "user watch\nrole monitor\nuser feeder\nrole proxy\n"
        "user ann\ntopic read plant/#\nuser bob\ntopic read other/#\n"
    )
    keys = "feeder:f-secret,ann:a-secret,bob:b-secret,watch:w-secret"
    options = ["--set", f"broker.access_keys={keys}", "--set", f"broker.access_list={listed}"]
    server = Process(
        tmp_path / "broker",
        ["broker", "--data", str(tmp_path / "data"), "--controllers", "", "--readers", "1", *options],
        "remoting",
    )
    server.start()

    def signed(name: str, port: str) -> BlockingConnection:
        return BlockingConnection("127.0.0.1", server.ports[port], signer=Signer(name, f"{name[0]}-secret"))

    def code(name: str, queue: int) -> int:
        with signed(name, "readers") as connection:
            body = encode_range_pull(queue, 0, 1 << 40, 1 << 20)
            return connection.request(Command(RequestCode.RANGE_PULL, body=body)).code

    try:
        entries = [image.encode_mqtt_image(b"plant/1", b"%d" % n, 1, 0, b"test") for n in range(5)]
        with signed("feeder", "remoting") as connection:
            body = b"".join(entries)
            assert connection.request(Command(RequestCode.APPEND_MANY, body=body)).code == 0
            body = encode_bounds_request(QueueBoundsRequest(filter="plant/1"))
            told = decode_bounds_reply(connection.request(Command(RequestCode.QUEUE_BOUNDS, body=body)).body)
        assert told.light is not None
        queue = told.light.id
        until(lambda: metric(server, "rocketmq_range_readers ") == 1)
        assert code("ann", queue) == 0
        assert code("bob", queue) == ResponseCode.NO_PERMISSION
        with connect(server, "readers") as nobody:
            body = encode_range_pull(queue, 0, 9, 9_999)
            assert nobody.request(Command(RequestCode.RANGE_PULL, body=body)).code == ResponseCode.NO_PERMISSION
        listed.write_text(listed.read_text() + "topic read plant/1\n")  # bob's section
        until(lambda: code("bob", queue) == 0)
        assert server.end(signal.SIGTERM) == 0
        no_traceback(server)
    finally:
        server.kill_if_running()


def test_without_readers_none_is_advertised(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    server.start()
    try:
        publish(server, 1)
        assert bounds(server).readers is None
        assert "readers" not in server.ports
        assert children(server) == []
    finally:
        server.kill()
