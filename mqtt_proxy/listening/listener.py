"""The ports of the proxy: taken from the configuration, opened together or not at all; connections accepted on them
within the limits, overdue ones closed, all closed at the end.

Invariants
- After a failed `Listening.start` no port is open and the error names the one that could not be opened.
- A connection over a limit is closed before a handler exists and is counted with its reason; after `stop` no socket of
  this listener is open. Several ports (TCP, TLS, ...) share the limits, the handlers and one ring of deadlines.
- When the process has no descriptor left, the listening socket rests for a second instead of waking the loop again and
  again, counted and logged once per rest (`Acceptor`). At most `BATCH` sockets are taken per turn of the loop.

    `drain`   ports closed -> every 20 ms a batch: MQTT 5 gets reason and server reference, 3.1.1 is closed -> none left

From the beginning of `drain` no new client is admitted; those still connected are served as before, so that nothing is
refused meanwhile. A handful of clients is closed at once. Loop rule: one listener per loop; `start`, `drain` and `stop`
on that loop.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import ipaddress
import os
import socket
import uuid
from collections.abc import Callable
from typing import Generic, TypeVar

from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.listening import native_sockets
from mqtt_proxy.listening.connection import HandlerFactory, LoopState, MqttConnection
from mqtt_proxy.listening.handshakes import PLAIN, Handshakes, ListenerSpec, Networks, TlsFiles
from mqtt_proxy.listening.open_sockets import OpenSockets
from mqtt_proxy.listening.peer import RemoteAddress, direct_peer
from mqtt_proxy.listening.stream_connection import StreamProtocol
from mqtt_proxy.metrics import FrontCounters
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.reason_codes import ReasonCode
from mqtt_proxy.mqtt.session.keepalive import SLOT_MS
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.mqtt.session.topic_names import TopicNames
from mqtt_proxy.websocket import Rules
from remoting import clock
from runtime.clock import Clock
from runtime.logs import get_logger
from runtime.process import keep_large_buffers_apart, room_for

BACKLOG = 1_024
"""Connections the kernel queues until they are accepted: a fleet that reconnects after an outage."""
BATCH = 64
REST_S = 1.0
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

Taken = TypeVar("Taken")
"""An accepted connection: a socket object, or a bare descriptor."""


def listening_sockets(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Sockets bound to every address of `host`, all on one port (0: any free one). OSError, with none left open.

    Accepted sockets inherit TCP_NODELAY: an acknowledgement must not wait for the next packet.
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
    """One connection as a socket that does not block, with its peer name; None when none is waiting. OSError."""
    try:
        sock, name = listening.accept()
    except (BlockingIOError, InterruptedError):
        return None
    sock.setblocking(False)
    return sock, name


class Acceptor(Generic[Taken]):
    """Accepts connections on one listening socket and hands them on."""

    def __init__(
        self,
        listening: socket.socket,
        accept: Callable[[socket.socket], tuple[Taken, object] | None],
        take: Callable[[Taken, object], None],
        *,
        loop: asyncio.AbstractEventLoop,
        counters: FrontCounters,
    ) -> None:
        """`accept` as `take_socket`; `take` is called with its result, and owns it."""
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
        """The listening socket, as in a server of asyncio."""
        return (self._listening,)

    def close(self) -> None:
        """Stop accepting and close the listening socket."""
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
                continue  # the client disconnected before it was accepted
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


def random_client_id() -> str:
    """An id for a client that sends none; it cannot be guessed, so that no other client can take the session over."""
    return f"auto-{uuid.uuid4().hex}"


FILES_LOOK_INTERVAL_MS = 500
"""How often certificates are checked for changes."""


LATE_MS = 200
"""From what delay of the loop on the time is not charged to the clients: they could not be served."""


LOG = get_logger("mqtt_proxy.front")


class Listener:
    """Accepts MQTT on one or several ports."""

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
        self._specs: list[ListenerSpec] = []
        self._shared: LoopState | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._look_at_ms = 0
        self._all_closed = asyncio.Event()
        self.connections: set[MqttConnection] = set()
        """Open connections, admitted ones only."""
        self.entrances: set[Handshakes] = set()
        """Open sockets on which MQTT has not begun."""

    async def start(self, host: str, port: int, spec: ListenerSpec = PLAIN) -> int:
        """Listen as specified; returns the port (0 = any free one). OSError when the address is not available."""
        loop = asyncio.get_running_loop()
        if self._shared is None:
            self._shared = LoopState(loop, self._clock, self.counters)
        sockets = listening_sockets(host, port, reuse_port=self._reuse_port)
        taken: int = sockets[0].getsockname()[1]
        for sock in sockets:
            self._servers.append(await self._open(sock, spec))
        self._specs.append(spec)
        if self._timer is None:
            self._timer = loop.call_later(SLOT_MS / 1_000, self._expire)
        return taken

    def close_ports(self) -> None:
        """Stop accepting sockets, and close those on which MQTT has not begun."""
        self.sockets.closed = True
        for server in self._servers:
            server.close()
        self._servers.clear()
        for entrance in list(self.entrances):
            entrance.end("server_stopping")

    async def stop(self, deadline_s: float = 5.0) -> None:
        """Stop accepting connections and close the open ones; those still open at the deadline are cut."""
        if self._shared is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.close_ports()
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
        await asyncio.sleep(0)  # the handlers' on_closed run in the turn after the last socket was closed
        self._shared.close()

    def reload(self) -> bool:
        """Read the certificates again; whether all of them are in use now."""
        good = [files.reload() for files in self._tls_files()]  # all of them, also behind a bad one
        return all(good)

    # -- for connections and entrances ---------------------------------------------------------------------------------

    def connection(self, opened_ms: int) -> MqttConnection:
        """A connection whose socket was opened then."""
        assert self._shared is not None
        return MqttConnection(self._session(opened_ms), self._shared, self)

    def stream(self, opened_ms: int, entrance: Handshakes | None) -> StreamProtocol:
        """A connection for a transport, whose socket was opened then and came by this entrance, if by any."""
        assert self._shared is not None
        return StreamProtocol(self.connection(opened_ms), self._shared, self, entrance)

    def admit(self, peer: RemoteAddress) -> RemoteAddress | None:
        """Count a socket of a plain port; None when it is over a limit."""
        assert self._shared is not None
        if not self.sockets.enter(peer):
            return None
        admitted = self.sockets.admit(peer, self._shared.now_ms())
        if admitted is None:
            self.sockets.leave(None)
        return admitted

    def register(self, connection: MqttConnection) -> None:
        """Register a connection whose peer was admitted."""
        self.connections.add(connection)
        self.counters.opened.child(connection.peer.listener).value += 1
        self.counters.connections.child(connection.peer.listener).value += 1

    def release(self, connection: MqttConnection) -> None:
        """Remove the connection from the counts."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.sockets.leave(connection.peer.address)
        self.counters.connections.child(connection.peer.listener).value -= 1
        if not self.connections:
            self._all_closed.set()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _tls_files(self) -> set[TlsFiles]:
        return {spec.tls for spec in self._specs if spec.tls is not None}  # two listeners may share them

    async def _open(
        self, sock: socket.socket, spec: ListenerSpec
    ) -> asyncio.Server | Acceptor[int] | Acceptor[socket.socket]:
        """What accepts connections on a listening socket of this kind."""
        assert self._shared is not None
        loop, counters = self._shared.loop, self.counters
        counters.connections.child(spec.name)  # shown from now on, with 0
        if not spec.plain:
            return Acceptor(sock, take_socket, functools.partial(self._enter, spec), loop=loop, counters=counters)
        accept = native_sockets.core.accept
        if self._shared.driver is None or accept is None:
            return await loop.create_server(self._plain, sock=sock, backlog=BACKLOG)
        return Acceptor(sock, lambda from_: accept(from_.fileno()), self._take, loop=loop, counters=counters)

    def _take(self, fd: int, name: object) -> None:
        """A connection of a plain port, for the driver."""
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

    def _enter(self, spec: ListenerSpec, sock: socket.socket, name: object) -> None:
        assert self._shared is not None
        timeout_ms = self._limits.connect_deadline_ms
        Handshakes(sock, name, spec, shared=self._shared, host=self, timeout_ms=timeout_ms).begin()

    def _expire(self) -> None:
        """At the end of each slot close what is overdue; twice a second check whether a certificate has changed."""
        assert self._shared is not None
        assert self._timer is not None
        late_ms = int((clock.monotonic_s() - self._timer.when()) * 1_000)
        if late_ms >= LATE_MS:
            self._shared.excuse(late_ms)
        self._shared.windows.move_on()
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
    """Disconnect all clients over `interval_ms`; `server_reference` is where to, `moved` that it is permanent."""
    listener.close_ports()
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


class PortUnavailable(OSError):
    """A port of the proxy is not available: which, and which option sets it."""

    def __init__(self, host: str, port: int, option: str, cause: OSError) -> None:
        super().__init__(cause.errno, cause.strerror or str(cause))
        self.host = host
        self.port = port
        self.option = option


class Listening:
    """The open ports of one proxy."""

    def __init__(self, config: ProxyConfig, listener: Listener, counters: FrontCounters) -> None:
        """CertificateProblem when the certificate cannot be used."""
        self._is_clear = config.takes_passwords_in_the_clear
        self._listener = listener
        self._specs = _specs(config, counters)
        self._log = get_logger("proxy")
        self.ports: dict[str, int] = {}
        """Open ports by the name of their listener."""

    async def start(self) -> None:
        """Open every port. PortUnavailable when one is not available, with none left open."""
        if any(spec.tls is not None for spec, *_ in self._specs):
            keep_large_buffers_apart()
        self._fit_descriptors()
        for spec, host, port, option in self._specs:
            try:
                self.ports[spec.name] = await self._listener.start(host, port, spec)
            except OSError as error:
                self.ports.clear()
                await self._listener.stop()
                raise PortUnavailable(host, port, option, error) from error
            self._log.info("mqtt_listening", listener=spec.name, host=host, port=self.ports[spec.name])
        if self._is_clear:
            self._log.warning(
                "passwords_in_the_clear", host=host, remedy="serve TLS (--tls-port), leave proxy.port unset"
            )

    def _fit_descriptors(self) -> None:
        """Accept no more sockets than this process may have; one over the limit gets a refusal, and is counted."""
        sockets = self._listener.sockets
        room = room_for(sockets.connections_max)
        if room < sockets.connections_max:
            self._log.warning(
                "mqtt_connections_max_lowered", wanted=sockets.connections_max, room=room,
                remedy="raise the limit of open files (ulimit -n, LimitNOFILE)",
            )  # fmt: skip
            sockets.connections_max = room


def _specs(config: ProxyConfig, counters: FrontCounters) -> list[tuple[ListenerSpec, str, int, str]]:
    """(kind, address, port, the option that sets the port) of every listener."""
    listen = config.listen
    tls = None
    if (listen.tls_port, listen.wss_port) != (None, None):
        assert listen.tls_certificate is not None
        assert listen.tls_key is not None
        tls = TlsFiles(
            listen.tls_certificate,
            listen.tls_key,
            counters=counters,
            client_ca=listen.tls_client_ca,
            client_required=listen.tls_client_required,
            client_name=listen.tls_client_name,
        )
    networks = tuple(ipaddress.ip_network(each) for each in listen.proxy_protocol_from)

    def balancers(name: str) -> Networks | None:
        return networks if name in listen.proxy_protocol else None

    rules = Rules(listen.ws_path, listen.ws_origins)
    wanted = (
        (ListenerSpec(name="tcp", balancers=balancers("tcp")), config.plain_port, "--mqtt-port"),
        (ListenerSpec(name="tls", tls=tls, balancers=balancers("tls")), listen.tls_port, "--tls-port"),
        (ListenerSpec(name="ws", websocket=rules, balancers=balancers("ws")), listen.ws_port, "--ws-port"),
        (ListenerSpec(name="wss", tls=tls, websocket=rules, balancers=balancers("wss")), listen.wss_port, "--wss-port"),
    )
    return [
        (spec, config.plain_host if spec.tls is None else config.listen_host, port, option)
        for spec, port, option in wanted
        if port is not None
    ]
