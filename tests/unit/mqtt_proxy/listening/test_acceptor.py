"""Listening sockets and accepting from them: one port for all addresses, and a rest when no descriptor is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from mqtt_proxy.listening import listener, native_sockets
from mqtt_proxy.listening.listener import Acceptor, listening_sockets, take_socket
from mqtt_proxy.metrics import FrontCounters
from runtime.metrics import Registry


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Meanwhile this process cannot open any file or socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_port_for_every_address() -> None:
    """A name with two addresses gives two sockets and one port; if one is taken nothing stays open."""
    sockets = listening_sockets("localhost", 0)
    ports = {sock.getsockname()[1] for sock in sockets}
    assert len(ports) == 1
    with pytest.raises(OSError):
        listening_sockets("localhost", ports.pop())
    for sock in sockets:
        sock.close()


def test_a_port_is_shared_when_both_ask_for_it() -> None:
    """SO_REUSEPORT on both."""
    (one,) = listening_sockets("127.0.0.1", 0, reuse_port=True)
    (other,) = listening_sockets("127.0.0.1", one.getsockname()[1], reuse_port=True)
    assert one.getsockname() == other.getsockname()
    one.close()
    other.close()


async def test_accepts_all_that_wait_and_stops_when_closed() -> None:
    """More than a batch are accepted in several turns without blocking; after close the port is free."""
    (listening,) = listening_sockets("127.0.0.1", 0)
    address = listening.getsockname()
    clients = [socket.create_connection(address) for _ in range(listener.BATCH + 5)]
    taken: list[tuple[socket.socket, object]] = []
    made = Acceptor(
        listening,
        take_socket,
        lambda sock, name: taken.append((sock, name)),
        loop=asyncio.get_running_loop(),
        counters=FrontCounters(Registry()),
    )
    assert made.sockets == (listening,)
    async with asyncio.timeout(5):
        while len(taken) < len(clients):
            await asyncio.sleep(0)
    assert {name for _, name in taken} == {client.getsockname() for client in clients}
    assert not any(sock.getblocking() for sock, _ in taken)
    made.close()
    made.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    for sock in [*clients, *(sock for sock, _ in taken)]:
        sock.close()


def take_descriptor(listening: socket.socket) -> tuple[socket.socket, object] | None:
    """Accepts as the driver does, and makes a socket of the descriptor for the test."""
    assert native_sockets.core.accept is not None
    taken = native_sockets.core.accept(listening.fileno())
    return None if taken is None else (socket.socket(fileno=taken[0]), taken[1])


@pytest.mark.parametrize("take", [take_socket, take_descriptor])
async def test_without_descriptors_it_rests_instead_of_spinning(take: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt per rest, counted; clients that waited meanwhile are accepted once there is room again."""
    if take is take_descriptor and native_sockets.core.accept is None:
        pytest.skip(f"no driver: {native_sockets.choice.reason}")
    monkeypatch.setattr(listener, "REST_S", 0.2)
    loop = asyncio.get_running_loop()
    counters = FrontCounters(Registry())
    refused = counters.refused.child("descriptors")
    (listening,) = listening_sockets("127.0.0.1", 0)
    client = socket.create_connection(listening.getsockname())
    came: asyncio.Future[socket.socket] = loop.create_future()
    made = Acceptor(listening, take, lambda sock, _: came.set_result(sock), loop=loop, counters=counters)
    with no_descriptor_left():
        while not refused.value:
            await asyncio.sleep(0)
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert refused.value == 1
    (await asyncio.wait_for(came, 5)).close()
    made._exhausted(OSError("again"))
    made.close()  # also while it rests
    client.close()
