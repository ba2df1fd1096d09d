"""The listening sockets of the proxy: take connections within the limits, end overdue ones, close all at the end.

Invariants: a connection over a limit is cut before a handler exists and is counted with its reason; after `stop` no
socket of this listener is open. Several doors (TCP, TLS, ...) share the limits, the handlers and one ring of deadlines.

    `drain`   doors closed -> every 20 ms a batch: MQTT 5 is told why and where to go, 3.1.1 is closed -> nobody is left

From the beginning of `drain` nobody new gets in; whoever waits for his turn is served as before, so that nothing is
refused meanwhile. A handful of clients goes at once.
Loop rule: one listener per loop; `start`, `drain` and `stop` on that loop.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import uuid

from mqtt_proxy.listening import native_sockets
from mqtt_proxy.listening.acceptor import BACKLOG, Acceptor, listening_sockets, take_socket
from mqtt_proxy.listening.connection import Connection, HandlerFactory, LoopState
from mqtt_proxy.listening.counters import FrontCounters
from mqtt_proxy.listening.handshakes import PLAIN, Handshakes, ListenerSpec
from mqtt_proxy.listening.open_sockets import OpenSockets
from mqtt_proxy.listening.peer import RemoteAddress, direct_peer
from mqtt_proxy.listening.stream_connection import StreamProtocol
from mqtt_proxy.listening.tls import TlsFiles
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.reason_codes import ReasonCode
from mqtt_proxy.mqtt.session.keepalive import SLOT_MS
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.mqtt.session.topic_names import TopicNames
from runtime.clock import Clock
from runtime.logs import get_logger


def random_client_id() -> str:
    """An id for a client that sends none; not to be guessed, so that nobody can take the session over."""
    return f"auto-{uuid.uuid4().hex}"


FILES_LOOK_INTERVAL_MS = 500
"""How often certificates are looked at."""


LOG = get_logger("mqtt_proxy.front")


class Listener:
    """Accepts MQTT by one or several doors."""

    def __init__(
        self,
        make_handler: HandlerFactory,
        *,
        clock: Clock,
        limits: SessionLimits,
        counters: FrontCounters,
        sockets: OpenSockets,
        output_bytes_max: int = 262_144,
        reuse_port: bool = False,
    ) -> None:
        """`output_bytes_max`: bytes waiting in one socket above which its deliveries stop; `reuse_port`: other proxies
        of this machine may listen on the same ports.
        """
        self.make_handler = make_handler
        self.counters = counters
        self.sockets = sockets
        self.output_bytes_max = output_bytes_max
        self._clock = clock
        self._limits = limits
        self._names = TopicNames(limits)
        self._reuse_port = reuse_port
        self._servers: list[asyncio.Server | Acceptor[int] | Acceptor[socket.socket]] = []
        self._doors: list[ListenerSpec] = []
        self._shared: LoopState | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._look_at_ms = 0
        self._all_closed = asyncio.Event()
        self.connections: set[Connection] = set()
        """Open connections, admitted ones only."""
        self.entrances: set[Handshakes] = set()
        """Open sockets on which MQTT has not begun."""

    async def start(self, host: str, port: int, door: ListenerSpec = PLAIN) -> int:
        """Listen at one door; the port taken (0 = any free one). OSError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        if self._shared is None:
            self._shared = LoopState(loop, self._clock, self.counters)
        sockets = listening_sockets(host, port, reuse_port=self._reuse_port)
        taken: int = sockets[0].getsockname()[1]
        for sock in sockets:
            self._servers.append(await self._open(sock, door))
        self._doors.append(door)
        if self._timer is None:
            self._timer = loop.call_later(SLOT_MS / 1_000, self._expire)
        return taken

    def close_doors(self) -> None:
        """Take no more sockets, and end those on which MQTT has not begun."""
        self.sockets.closed = True
        for server in self._servers:
            server.close()
        self._servers.clear()
        for entrance in list(self.entrances):
            entrance.end("server_stopping")

    async def stop(self, deadline_s: float = 5.0) -> None:
        """Take no more connections and close those there are; what is not gone by the deadline is cut."""
        if self._shared is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.close_doors()
        for connection in list(self.connections):
            connection.close("server_stopping")
        self._all_closed.clear()
        if self.connections:
            try:
                await asyncio.wait_for(self._all_closed.wait(), deadline_s)
            except TimeoutError:
                LOG.warning("mqtt_stop_deadline", connections=len(self.connections))
                for connection in list(self.connections):
                    connection.abort()
        await asyncio.sleep(0)  # the handlers' on_closed run in the turn after the last socket went
        self._shared.close()

    def reload(self) -> bool:
        """Read the certificates again; whether all of them are in use now."""
        good = [files.reload() for files in self._tls_files()]  # all of them, also behind a bad one
        return all(good)

    # -- for connections and entrances ---------------------------------------------------------------------------------

    def connection(self, opened_ms: int) -> Connection:
        """A connection whose socket was opened then."""
        assert self._shared is not None
        return Connection(self._session(opened_ms), self._shared, self)

    def stream(self, opened_ms: int, entrance: Handshakes | None) -> StreamProtocol:
        """A connection for a transport, whose socket was opened then and came by this entrance, if by any."""
        assert self._shared is not None
        return StreamProtocol(self.connection(opened_ms), self._shared, self, entrance)

    def admit(self, peer: RemoteAddress) -> RemoteAddress | None:
        """Count a socket of a plain door in; None when it is over a limit."""
        assert self._shared is not None
        if not self.sockets.enter(peer):
            return None
        admitted = self.sockets.admit(peer, self._shared.now_ms())
        if admitted is None:
            self.sockets.leave(None)
        return admitted

    def register(self, connection: Connection) -> None:
        """Know a connection whose peer was admitted."""
        self.connections.add(connection)
        self.counters.opened.value += 1
        self.counters.connections.value = len(self.connections)

    def release(self, connection: Connection) -> None:
        """Count the connection out."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.sockets.leave(connection.peer_address)
        self.counters.connections.value = len(self.connections)
        if not self.connections:
            self._all_closed.set()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _tls_files(self) -> set[TlsFiles]:
        return {door.tls for door in self._doors if door.tls is not None}  # two doors may share them

    async def _open(
        self, sock: socket.socket, door: ListenerSpec
    ) -> asyncio.Server | Acceptor[int] | Acceptor[socket.socket]:
        """Whoever takes connections from a listening socket of this door."""
        assert self._shared is not None
        loop, counters = self._shared.loop, self.counters
        if not door.plain:
            return Acceptor(sock, take_socket, functools.partial(self._enter, door), loop=loop, counters=counters)
        accept = native_sockets.core.accept
        if self._shared.driver is None or accept is None:
            return await loop.create_server(self._plain, sock=sock, backlog=BACKLOG)
        return Acceptor(sock, lambda from_: accept(from_.fileno()), self._take, loop=loop, counters=counters)

    def _take(self, fd: int, name: object) -> None:
        """A connection of a plain door, for the driver."""
        assert self._shared is not None
        assert self._shared.driver is not None
        peer = self.admit(direct_peer(name, "tcp"))
        if peer is None:
            os.close(fd)
            return
        connection = self.connection(self._shared.now_ms())
        try:
            wire = self._shared.driver.adopt(fd, connection)
        except OSError as error:
            os.close(fd)
            self.sockets.leave(peer.address)
            self.counters.refused.child("descriptors").value += 1
            LOG.error("mqtt_adopt_failed", error=error.strerror, peer=peer.address)
            return
        connection.begin(wire, peer)

    def _plain(self) -> StreamProtocol:
        assert self._shared is not None
        return self.stream(self._shared.now_ms(), None)

    def _session(self, opened_ms: int) -> Session:
        return Session(self._limits, assigned_client_id=random_client_id, names=self._names, opened_ms=opened_ms)

    def _enter(self, door: ListenerSpec, sock: socket.socket, name: object) -> None:
        assert self._shared is not None
        timeout_ms = self._limits.connect_deadline_ms
        Handshakes(sock, name, door, shared=self._shared, host=self, timeout_ms=timeout_ms).begin()

    def _expire(self) -> None:
        """At the end of each slot end what is overdue; twice a second look whether a certificate has changed."""
        assert self._shared is not None
        now_ms = self._shared.now_ms()
        for overdue in self._shared.ring.expire(now_ms):
            overdue.expire()
        if now_ms >= self._look_at_ms:
            self._look_at_ms = now_ms + FILES_LOOK_INTERVAL_MS
            for files in self._tls_files():
                files.refresh(now_ms)
        self._timer = self._shared.loop.call_later((SLOT_MS - now_ms % SLOT_MS) / 1_000, self._expire)


STEP_MS = 20
BATCH_MIN = 50
"""Fewer at a time would only make a small proxy slow to stop."""


async def drain(listener: Listener, *, interval_ms: int, server_reference: str = "", moved: bool = False) -> None:
    """Send everybody away over `interval_ms`; `server_reference` is where to, `moved` that it is for good."""
    listener.close_doors()
    code = ReasonCode.SERVER_SHUTTING_DOWN
    if server_reference:
        code = ReasonCode.SERVER_MOVED if moved else ReasonCode.USE_ANOTHER_SERVER
    waiting = list(listener.connections)
    batch = max(BATCH_MIN, -(-len(waiting) * STEP_MS // max(interval_ms, STEP_MS)))
    if waiting:
        LOG.info("mqtt_draining", connections=len(waiting), interval_ms=interval_ms)
    for begin in range(0, len(waiting), batch):
        if begin:
            await asyncio.sleep(STEP_MS / 1_000)
        for connection in waiting[begin : begin + batch]:
            connection.send_away(code, server_reference)
