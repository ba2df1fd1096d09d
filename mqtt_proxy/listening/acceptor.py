"""Listening sockets, and taking connections from them by hand where something has to be read before a transport exists.

Invariants: when the process has no descriptor left, the listening socket rests for a second instead of waking the loop
again and again, counted and logged once per rest. At most `BATCH` sockets are taken per turn of the loop.
Loop rule: one loop.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

from mqtt_proxy.listening.counters import FrontCounters
from runtime.logs import get_logger

BACKLOG = 1_024
"""Connections the kernel keeps until they are taken: a fleet coming back after an outage."""
BATCH = 64
REST_S = 1.0
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

Taken = TypeVar("Taken")
"""What a connection is handed on as: a socket object, or a bare descriptor."""


def listening_sockets(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Sockets bound to every address of `host`, all on one port (0: any free one). OSError, with none left open.

    What they accept inherits TCP_NODELAY: an acknowledgement must not wait for the next packet.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            sock = socket.socket(family, socket.SOCK_STREAM)
            made.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
            port = sock.getsockname()[1]
            sock.listen(BACKLOG)
    except OSError:
        for sock in made:
            sock.close()
        raise
    return made


def take_socket(listening: socket.socket) -> tuple[socket.socket, object] | None:
    """One connection as a socket that does not block, with its peer name; None when nobody waits. OSError."""
    try:
        sock, name = listening.accept()
    except (BlockingIOError, InterruptedError):
        return None
    sock.setblocking(False)
    return sock, name


class Acceptor(Generic[Taken]):
    """Takes connections from one listening socket and hands them on."""

    def __init__(
        self,
        listening: socket.socket,
        accept: Callable[[socket.socket], tuple[Taken, object] | None],
        take: Callable[[Taken, object], None],
        *,
        loop: asyncio.AbstractEventLoop,
        counters: FrontCounters,
    ) -> None:
        """`accept` as `take_socket`; `take` gets what it gave, and owns it."""
        self._listening = listening
        self._accept = accept
        self._take = take
        self._loop = loop
        self._counters = counters
        self._rest: asyncio.TimerHandle | None = None
        self._log = get_logger("mqtt_proxy.front")
        loop.add_reader(listening.fileno(), self._ready)

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening socket, as a server of asyncio tells it."""
        return (self._listening,)

    def close(self) -> None:
        """Take no more and close the listening socket."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()

    def _ready(self) -> None:
        for _ in range(BATCH):
            try:
                taken = self._accept(self._listening)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._exhausted(error)
                    return
                continue  # that one was gone again before it was taken
            if taken is None:
                return
            self._take(*taken)

    def _exhausted(self, error: OSError) -> None:
        self._counters.refused.child("descriptors").value += 1
        self._loop.remove_reader(self._listening.fileno())
        self._rest = self._loop.call_later(REST_S, self._again)
        # Last, because logging may want a descriptor itself.
        self._log.error("mqtt_accept_failed", error=error.strerror, consequence=f"no connections for {REST_S} s")

    def _again(self) -> None:
        self._rest = None
        self._loop.add_reader(self._listening.fileno(), self._ready)
