"""MQTT over WebSocket: the protocol of the loop's transport, and the wire of the connection.

    transport <-> WebSocketWire (handshake, then frames) <-> MqttConnection

Invariants: until the handshake is accepted the socket belongs to its entrance: deadline, limits, counting. The output
of a connection in one loop turn is one binary frame. Of pings only the last one is answered when the client does not
read. A malformed frame ends the connection with its close code and is counted.
Loop rule: everything on the loop's thread.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast

from mqtt_proxy import websocket
from mqtt_proxy.listening.connection import LoopState, MqttConnection
from mqtt_proxy.listening.peer import RemoteAddress
from mqtt_proxy.listening.stream_connection import read_buffer
from mqtt_proxy.metrics import FrontCounters
from mqtt_proxy.mqtt.codec.reason_codes import Reason
from mqtt_proxy.mqtt.session.session_state import Status
from mqtt_proxy.websocket import REQUEST_BYTES_MAX, FrameReader, Handshake, Rules
from runtime.logs import get_logger

_CODES = {
    "disconnect": websocket.NORMAL,
    "peer_closed": websocket.NORMAL,
    "server_stopping": websocket.GOING_AWAY,
    "draining": websocket.GOING_AWAY,
    str(Reason.TOO_LARGE): websocket.TOO_BIG,
}
"""Why a connection was closed -> the close code; anything else is a matter of policy."""

LOG = get_logger("mqtt_proxy.front")


class WebSocketArrival(Protocol):
    """The entrance of this socket."""

    def at(self, stage: str) -> None:
        """The socket has reached this stage."""
        ...

    def arrived(self, transport: asyncio.BaseTransport) -> RemoteAddress | None:
        """MQTT begins: returns the peer; None when the socket has to be closed."""
        ...

    def refused(self, reason: str, detail: str) -> None:
        """The handshake was refused; the socket closes after its answer."""
        ...

    def end(self, reason: str, detail: str = "") -> None:
        """The socket is closed."""
        ...

    def connection(self) -> MqttConnection:
        """What MQTT begins on."""
        ...


class WebSocketWire(asyncio.BufferedProtocol):
    """The wire of a connection on a WebSocket."""

    __slots__ = ("_arrival", "_closing", "_connection", "_counters", "_frames", "_handshake", "_shared", "_transport")

    def __init__(self, rules: Rules, arrival: WebSocketArrival, shared: LoopState, counters: FrontCounters) -> None:
        self._arrival: WebSocketArrival | None = arrival
        self._shared = shared
        self._counters = counters
        self._handshake: Handshake | None = Handshake(rules)
        self._frames: FrameReader | None = None
        self._connection: MqttConnection | None = None
        self._transport: asyncio.Transport | None = None
        self._closing = False

    # -- from asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake may begin."""
        self._transport = cast("asyncio.Transport", transport)
        assert self._arrival is not None
        self._arrival.at("websocket")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the shared buffer has one size
        """A buffer for a request, then for what the connection reads."""
        if self._connection is None:
            return self._shared.buffer[:REQUEST_BYTES_MAX]
        return read_buffer(self._connection.session, self._shared)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes of the handshake, or of frames."""
        data = bytes(self._shared.buffer[:nbytes])
        if self._handshake is not None:
            self._shake_hands(data)
        elif not self._closing:
            self._receive(data)

    def pause_writing(self) -> None:
        """The socket is full."""
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        """The socket has room again."""
        if self._connection is not None:
            self._connection.resume_writing()
            self._answer_ping()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if self._connection is not None:
            self._connection.connection_lost(exc)
        elif self._arrival is not None:
            self._arrival.end("websocket_left")

    # -- the wire of the connection ------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send as one binary frame."""
        if data and self._transport is not None:
            self._transport.write(websocket.data_frame(data))

    def close(self) -> None:
        """Send the reason in a close frame, then close."""
        if self._closing or self._transport is None:
            return
        self._closing = True
        code = None if self._frames is None else self._frames.close_code
        if code is None:
            reason = "" if self._connection is None else self._connection.close_reason or ""
            code = _CODES.get(reason, websocket.POLICY)
        self._transport.write(websocket.close_frame(code))
        self._transport.close()

    def abort(self) -> None:
        """Close at once, without a close frame."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        """Whether closing has begun."""
        return self._closing or self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take up input after `pause_reading`."""
        if self._transport is not None:
            self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Bytes the socket has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Marks of `pause_writing` and `resume_writing`."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Information about the socket."""
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _shake_hands(self, data: bytes) -> None:
        assert self._handshake is not None
        assert self._transport is not None
        assert self._arrival is not None
        outcome = self._handshake.feed(data)
        if outcome is None:
            return
        arrival, self._arrival, self._handshake = self._arrival, None, None
        self._transport.write(outcome.response)
        if outcome.refusal:
            arrival.refused("websocket", outcome.refusal)
            self._closing = True
            self._transport.close()
            return
        peer = arrival.arrived(self._transport)
        if peer is None:
            self.abort()
            return
        self._connection = arrival.connection()
        self._frames = FrameReader(self._connection.session.state.limits.unauthenticated_bytes_max)
        self._connection.begin(self, peer)
        if outcome.rest:
            self._receive(outcome.rest)

    def _receive(self, data: bytes) -> None:
        assert self._frames is not None
        assert self._connection is not None
        reader, connection = self._frames, self._connection
        if reader.frame_size_bytes_max is not None and connection.session.state.status is Status.CONNECTED:
            reader.frame_size_bytes_max = None
        connection.receive(reader.feed(data))
        if reader.ping is not None:
            self._answer_ping()
        if reader.close_code is None or self._closing:
            return
        if reader.peer_closed:
            connection.close("peer_closed")
            return
        reason = f"websocket_{reader.close_code}"
        self._counters.violations.child(reason).value += 1
        LOG.info(
            "violation", peer=connection.peer.address, client_id=connection.session.state.terms.client_id, reason=reason
        )
        connection.close(reason)

    def _answer_ping(self) -> None:
        """Send the answer to the last ping, unless the client does not read."""
        assert self._frames is not None
        assert self._connection is not None
        if self._frames.ping is None or not self._connection.writable or self._closing or self._transport is None:
            return
        answer, self._frames.ping = self._frames.ping, None
        self._transport.write(websocket.pong_frame(answer))
