"""A driver with sockets whose other ends belong to the test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from mqtt_proxy.listening import native_sockets
from remoting.transport.turn import turn_of

READ_BYTES = 4_096


class Receiver:
    """Records its calls."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.sizes: list[int] = []
        self.writable: list[bool] = []
        self.ends: list[Exception | None] = []
        self.on_data: Callable[[bytes], None] = lambda _: None
        self.wire: Any = None

    def receive(self, data: bytes) -> None:
        assert not self.ends
        assert data
        self.data += data
        self.sizes.append(len(data))
        self.on_data(data)

    def pause_writing(self) -> None:
        self.writable.append(False)

    def resume_writing(self) -> None:
        self.writable.append(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append(exc)


class Rig:
    """A driver, and sockets it serves whose other ends belong to the test."""

    def __init__(self, read_bytes_max: int) -> None:
        driver = native_sockets.core.driver
        assert driver is not None
        self.loop = asyncio.get_running_loop()
        self.driver = driver(self.loop, turn_of(self.loop), bytearray(read_bytes_max), read_bytes_max)
        self.peers: list[socket.socket] = []

    def open(self) -> tuple[Receiver, socket.socket]:
        """A served socket's receiver, and its peer."""
        ours, peer = socket.socketpair()
        ours.setblocking(False)
        peer.setblocking(False)
        self.peers.append(peer)
        receiver = Receiver()
        receiver.wire = self.driver.adopt(ours.detach(), receiver)
        return receiver, peer


@contextlib.asynccontextmanager
async def rig(read_bytes_max: int = READ_BYTES) -> AsyncIterator[Rig]:
    made = Rig(read_bytes_max)
    try:
        yield made
    finally:
        made.driver.close()
        for peer in made.peers:
            peer.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def take(peer: socket.socket, size: int) -> bytes:
    """Read this many bytes from the peer's end."""
    taken = bytearray()
    async with asyncio.timeout(5):
        while len(taken) < size:
            taken += await asyncio.get_running_loop().sock_recv(peer, size - len(taken))
    return bytes(taken)


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@contextlib.contextmanager
def tcp() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection that can be reset."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    ours.setblocking(False)
    peer.setblocking(False)
    with peer:
        yield ours, peer
