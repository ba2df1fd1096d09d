"""Clients ask the kernel to end a connection whose peer is out of reach; tests/chaos shows that it does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from remoting.client.blocking import BlockingConnection
from remoting.client.connection import connect
from remoting.transport.dead_peers import IDLE_S, SILENCE_MS_MAX, end_when_unreachable

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no user timeout")


def wanted(found: socket.socket) -> bool:
    options = {
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): IDLE_S,
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): SILENCE_MS_MAX,
    }
    return all(found.getsockopt(*option) == value for option, value in options.items())


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


async def test_a_connection_on_a_loop(serve):
    server = await serve(lambda peer, command: command.reply())
    connection = await connect("127.0.0.1", server.port)
    assert wanted(connection.link._transport.get_extra_info("socket"))
    await connection.close()


def test_a_connection_without_a_loop(listener: socket.socket):
    accepting = threading.Thread(target=lambda: listener.accept()[0].close())
    accepting.start()
    connection = BlockingConnection(*listener.getsockname())
    assert wanted(connection._socket)
    connection.close()
    accepting.join()


def test_a_system_without_these_options(monkeypatch: pytest.MonkeyPatch):
    """What it does not know is left out."""
    for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_USER_TIMEOUT"):
        monkeypatch.delattr(socket, name)
    with socket.socket() as made:
        end_when_unreachable(made)
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
