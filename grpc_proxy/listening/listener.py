"""The port of the gRPC proxy: sockets, TLS, and the time limits of all connections.

    accepted -> (TLS with ALPN h2) -> GrpcConnection

A socket counts from its first moment, so `connections_max` bounds handshakes too; one that comes beyond it is closed at
once. Certificate files are read again when they change; a connection keeps the context that it began with.
Invariant: a fault of one socket ends that socket alone, counted by its reason. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from typing import Any

from grpc_proxy.listening.connection import ConnectionUser, GrpcConnection
from remoting import clock
from remoting.transport.certificates import CertificateFiles
from remoting.transport.patience import late_s
from runtime.logs import get_logger

BACKLOG = 1_024
SWEEP_S = 2.0
REFILL_SWEEPS = 5
"""A period of the budget of HTTP/2 is as many sweeps."""
ACCEPT_PAUSE_S = 0.1
"""Pause after an accept that failed for want of descriptors or memory."""
LOG = get_logger("grpc")


class GrpcListener:
    """Listening sockets and the connections that came by them."""

    def __init__(self, shared: ConnectionUser, tls: CertificateFiles | None, connections_max: int) -> None:
        self._shared = shared
        self._tls = tls
        self._connections_max = connections_max
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes = 0

    @property
    def connections(self) -> int:
        """Sockets that are open, handshakes included."""
        return len(self._shared.connections) + self._handshakes

    async def start(self, host: str, port: int, *, reuse_port: bool) -> int:
        """Listen; returns the port. Raises OSError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _kind, _protocol, _name, address in dict.fromkeys(found):
                place = (address[0], port, *address[2:])
                self._sockets.append(_listening(family, place, reuse_port=reuse_port))
                port = self._sockets[0].getsockname()[1]
        except OSError:
            self._close_sockets()
            raise
        for listening in self._sockets:
            self._spawn(self._accept(listening))
        self._spawn(self._sweep())
        return port

    async def stop(self, deadline_s: float) -> None:
        """Accept no more, let calls under way finish until the deadline, close every connection."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._close_sockets()
        for connection in list(self._shared.connections):
            connection.go_away()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._shared.rules.none_open()
        for connection in list(self._shared.connections):
            connection.end("stopping")

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, name = await loop.sock_accept(listening)
            except OSError as error:
                LOG.warning("grpc_accept_failed", problem=str(error))
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if self.connections >= self._connections_max:
                self._shared.ended("connections_max")
                accepted.close()
                continue
            self._handshakes += 1
            self._spawn(self._begin(accepted, name))

    async def _begin(self, accepted: socket.socket, name: Any) -> None:
        """A connection on an accepted socket, through TLS where it is configured."""
        loop = asyncio.get_running_loop()
        host = str(name[0]) if isinstance(name, tuple) else "unix"
        opened_s = clock.monotonic_s()
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            options: dict[str, Any] = {}
            if self._tls is not None:
                options = {"ssl": self._tls.context, "ssl_handshake_timeout": self._shared.limits.handshake_s_max}
            await loop.connect_accepted_socket(
                lambda: GrpcConnection(self._shared, host, opened_s), accepted, **options
            )
        except OSError as error:  # alerts of TLS, resets, time limits
            self._shared.ended("handshake")
            LOG.info("grpc_handshake_failed", peer=host, problem=getattr(error, "reason", None) or str(error))
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise
        finally:
            self._handshakes -= 1

    async def _sweep(self) -> None:
        count = 0
        while True:
            due_s = clock.monotonic_s() + SWEEP_S
            await asyncio.sleep(SWEEP_S)
            count += 1
            now_s = clock.monotonic_s()
            late = late_s(due_s, now_s)
            for connection in self._shared.connections if late else ():
                connection.excuse(late)
            if self._tls is not None:
                self._tls.refresh(int(now_s * 1_000))
            if count % REFILL_SWEEPS == 0:
                self._shared.refill()
            for connection in list(self._shared.connections):
                connection.sweep(now_s, refill=count % REFILL_SWEEPS == 0)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            with contextlib.suppress(OSError):
                listening.close()
        self._sockets.clear()


def _listening(family: int, place: tuple[Any, ...], *, reuse_port: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(place)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {place[0]}:{place[1]}") from error
        raise
    return made
