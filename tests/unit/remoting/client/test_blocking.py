"""The client without asyncio against a real server on a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading

import pytest

from remoting.client import blocking
from remoting.client.blocking import BlockingConnection
from remoting.client.master_link import MasterLink
from remoting.protocol.bodies.controller_body import BrokerData, ClusterInfo, TopicRoute, encode_body
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.commands import Command
from remoting.server.server import RemotingServer
from remoting.transport.failures import ConnectionLost, RequestTimeout, Unreachable
from remoting.transport.signature import Signer

ECHO, LAST, SILENT, KICK, PUSH = range(1, 6)


def handler(peer, command):
    if command.code == 105 and command.fields["topic"] != "t":
        raise Refused(17, "no such topic")
    if command.code in (105, 106):
        return command.reply(body=encode_body(TopicRoute() if command.code == 105 else ClusterInfo()))
    if command.code == LAST:  # answered after what follows it
        asyncio.get_running_loop().call_later(0.01, peer.send, command.reply(body=b"last"))
        return None
    if command.code == SILENT:
        return None
    if command.code == KICK:
        peer.close("kicked")
        return None
    if command.code == PUSH:
        peer.send(Command(9003, flag=2, body=b"news"))
    return command.reply(0, None, dict(command.fields), command.body)


@pytest.fixture(scope="module")
def port():
    ready, box = threading.Event(), {}

    async def run():
        server = RemotingServer(handler)
        box["port"] = await server.start("127.0.0.1", 0)
        box["stop"], box["loop"] = asyncio.Event(), asyncio.get_running_loop()
        ready.set()
        await box["stop"].wait()
        await server.stop(0.2)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    ready.wait()
    yield box["port"]
    box["loop"].call_soon_threadsafe(box["stop"].set)
    thread.join()


def test_one_after_the_other(port):
    with BlockingConnection("127.0.0.1", port) as connection:
        for size in (0, 10, 3_000_000):
            assert connection.request(Command(ECHO, body=bytes(size))).body == bytes(size)
    assert connection.closed
    with pytest.raises(ConnectionLost, match="closed by this side"):
        connection.request(Command(ECHO))


def test_pipelining_in_any_order(port):
    with BlockingConnection.dial(f"127.0.0.1:{port}") as connection:
        last = connection.send(Command(LAST))
        others = [connection.send(Command(ECHO, body=b"%d" % n)) for n in range(50)]
        assert connection.in_flight == 51
        assert connection.receive(others[30]).body == b"30"
        assert connection.receive().body == b"0"
        assert connection.receive(last).body == b"last"
        assert sorted(int(connection.receive().body) for _ in range(48)) == [n for n in range(1, 50) if n != 30]
        assert connection.in_flight == 0
        for wrong in (None, last, 999):
            with pytest.raises(LocalMisuse):
                connection.receive(wrong)


def test_silence_ends_the_connection(port):
    connection = BlockingConnection("127.0.0.1", port, timeout_ms=30)
    with pytest.raises(RequestTimeout, match=f"request 3 got no answer from 127.0.0.1:{port} within 30 ms"):
        connection.request(Command(SILENT))
    assert connection.closed
    with pytest.raises(ConnectionLost):
        connection.send(Command(ECHO))


def test_the_servers_close_is_reported(port):
    with (
        BlockingConnection("127.0.0.1", port) as connection,
        pytest.raises(ConnectionLost, match="closed by the server"),
    ):
        connection.request(Command(KICK))


def test_pushes_and_one_way(port):
    with BlockingConnection("127.0.0.1", port, signer=Signer("ak", "s")) as connection:
        connection.oneway(Command(ECHO))
        answer = connection.request(Command(PUSH))
        assert answer.fields["AccessKey"] == "ak"
        assert [push.body for push in connection.pushes] == [b"news"]
        assert connection.pushes_dropped == 0


def test_no_listener():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    with pytest.raises(Unreachable, match=rf"127\.0\.0\.1:{free} .*lightmq up"):
        BlockingConnection("127.0.0.1", free)


def test_a_server_that_speaks_something_else():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: listener.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        thread.start()
        with (
            BlockingConnection("127.0.0.1", listener.getsockname()[1]) as connection,
            pytest.raises(ConnectionLost, match="malformed frame"),
        ):
            connection.request(Command(ECHO))
        thread.join()


def test_broker_groups(port):
    with BlockingConnection("127.0.0.1", port) as connection:
        assert blocking.cluster(connection) == ClusterInfo()


def test_a_silent_server_is_probed_now_and_then(port, monkeypatch):
    """What the probe raises ends the connection; without it the longest silence does."""
    monkeypatch.setattr(blocking, "LOOK_MS", 5)
    with BlockingConnection("127.0.0.1", port, 10_000) as connection:
        looks = []

        def look():
            looks.append(1)
            if len(looks) == 3:
                raise Refused(1, "enough")

        connection.while_silent = lambda: None
        assert connection.request(Command(LAST)).body == b"last"
        connection.while_silent = look
        with pytest.raises(Refused, match="enough"):
            connection.request(Command(SILENT))
        assert len(looks) == 3
        assert connection.closed
    with BlockingConnection("127.0.0.1", port, 23) as connection:
        connection.while_silent = lambda: looks.append(2)
        with pytest.raises(RequestTimeout):
            connection.request(Command(SILENT))
        assert looks.count(2) == 4


def test_the_master_is_dialled_or_looked_up(port):
    """The known one is away: the controllers name another; when they name none, the reason is in the error."""
    here = f"127.0.0.1:{port}"
    link = MasterLink("g", "127.0.0.1:1")

    def ask():
        return ClusterInfo({"g": BrokerData("C", "g", {0: here})})

    with blocking.dial_master(link, BlockingConnection.dial, ask) as connection:
        assert (connection.address, link.address) == (here, here)
    with pytest.raises(Refused, match="no master"):
        blocking.dial_master(MasterLink("f"), BlockingConnection.dial, ask)


def test_a_connection_without_tls_needs_neither_ssl_nor_asyncio():
    """Also when it is lost."""
    program = """
import socket, sys
from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost
with socket.create_server(("127.0.0.1", 0)) as server:
    connection = BlockingConnection(*server.getsockname())
    server.accept()[0].close()
    try:
        connection.request(Command(1))
    except ConnectionLost:
        print(sorted({"ssl", "asyncio"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
