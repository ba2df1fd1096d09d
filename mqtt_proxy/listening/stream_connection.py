"""Between a connection and a transport of the loop: TLS, and plain sockets where there is no driver.

Invariants: bytes are read into the buffer that all connections share; an unauthenticated client gets only the beginning
of it. A socket whose peer is over a limit is closed before anything of it is read. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from mqtt_proxy.listening.connection import ConnectionHost, LoopState, MqttConnection
from mqtt_proxy.listening.peer import RemoteAddress, direct_peer
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.mqtt.session.session_state import Status


class Arrival(Protocol):
    """How a socket was accepted."""

    def arrived(self, transport: asyncio.BaseTransport) -> RemoteAddress | None:
        """The peer; None when the socket has to be closed."""
        ...


def read_buffer(session: Session, shared: LoopState) -> memoryview:
    """Where to read for this session: the shared buffer, only the beginning of it before the client is accepted."""
    if session.state.status is Status.CONNECTED:
        return shared.buffer
    return shared.buffer[: session.state.limits.unauthenticated_bytes_max]


class StreamProtocol(asyncio.BufferedProtocol):
    """Between a transport and the connection of one MQTT client."""

    __slots__ = ("_arrival", "_host", "_shared", "connection")

    def __init__(
        self, connection: MqttConnection, shared: LoopState, host: ConnectionHost, arrival: Arrival | None = None
    ) -> None:
        """`arrival` knows the peer when other protocols precede MQTT; otherwise the socket itself does."""
        self.connection = connection
        self._shared = shared
        self._host = host
        self._arrival = arrival

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket, or refuse it when a limit is reached."""
        peer: RemoteAddress | None
        if self._arrival is None:
            peer = self._host.admit(direct_peer(transport.get_extra_info("peername"), "tcp"))
        else:
            peer, self._arrival = self._arrival.arrived(transport), None
        if peer is None:
            self.connection.refuse()
            cast("asyncio.Transport", transport).abort()
        else:
            self.connection.begin(cast("asyncio.Transport", transport), peer)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the shared buffer has one size
        """Where the transport reads to."""
        return read_buffer(self.connection.session, self._shared)

    def buffer_updated(self, nbytes: int) -> None:
        """Hand the bytes of a read to the connection."""
        self.connection.receive(bytes(self._shared.buffer[:nbytes]))

    def pause_writing(self) -> None:
        """The socket is full."""
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        """The socket has room again."""
        self.connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self.connection.connection_lost(exc)
