"""One socket, one session, one handler: bytes from the kernel to the session, events to the handler, output back in one
write; and the state that connections of one event loop share (`LoopState`): driver, read buffer, connections to be
written, the ring of deadlines.

Invariants
- A read is one `feed` and at most one `on_events`; the read buffer is only valid inside one read.
- Each connection with output is in the list of its loop exactly once and is written once, in one piece, when nothing
  else is due in this turn. An exception raised by one of them ends that one only.
- `on_closed` is called exactly once, in a later loop turn than its cause, and no call follows it.
- While a CONNECT is undecided the socket is not read: an unauthenticated client costs at most 64 KB.
- A client that does not read its answers gets no deliveries (`on_writable(False)`) and, above four times that mark, is
  not read either: its memory here is bounded without losing anything.
- Input after the last packet to a client is ignored; a client that continues to send is disconnected in time. A socket
  closed with unread bytes answers them with a reset, which can overtake the DISCONNECT that gives the reason: so after
  a violation our side is closed first, and input is read and discarded until the client has closed its side too, or
  `FAREWELL_S` have passed (`lingering_close`).
Loop rule: everything on the loop's thread; one `LoopState` per loop, no locks.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import termios
from collections.abc import Callable
from typing import Any, Protocol

from mqtt_proxy.listening import native_sockets
from mqtt_proxy.listening.native_sockets import Driver, Wire
from mqtt_proxy.listening.peer import UNKNOWN_PEER, RemoteAddress
from mqtt_proxy.metrics import FrontCounters
from mqtt_proxy.mqtt.codec.reason_codes import VIOLATION_CODES, Reason
from mqtt_proxy.mqtt.session.events import Disconnected, Event, Violated
from mqtt_proxy.mqtt.session.keepalive import ExpiryRing
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.mqtt.session.session_state import Status
from mqtt_proxy.traffic import Flow, Windows
from remoting.transport.turn import turn_of
from runtime.clock import Clock
from runtime.logs import get_logger


class ClientConnection(Protocol):
    """What a client needs of its connection."""

    session: Session
    peer: RemoteAddress
    flow_in: Flow
    """From the client."""
    flow_out: Flow
    """To it."""

    def peer_left(self) -> bool:
        """Whether the client has closed its side."""

    def flush(self) -> None:
        """Write the session's output at the end of the turn."""

    def pause_reading(self) -> None:
        """Stop reading for now."""

    def resume_reading(self) -> None:
        """Read from this client again."""

    def close(self, reason: str) -> None:
        """Write what is pending and close."""


READ_BUFFER_BYTES = 262_144
"""One read of a transport takes at most this much."""

READ_BYTES_MAX = 65_536
"""One read of the driver takes at most this much, and there is one per socket and turn: some hundred small publishes,
and no more than an unauthenticated client may cost."""


class Watched(Protocol):
    """An object with a deadline on this loop: a connection, or a socket on its way to become one."""

    def next_deadline_ms(self) -> int | None:
        """When it is due if nothing happens; None = never."""
        ...

    def expire(self) -> None:
        """The deadline has passed."""
        ...


class Written(Protocol):
    """An object with output on this loop: a connection."""

    def write_now(self) -> None:
        """Write the output of this turn."""
        ...

    def abort(self) -> None:
        """Close at once, with or without its output."""
        ...


class LoopState:
    """Shared by the connections of one loop."""

    __slots__ = (
        "_dirty",
        "_late_ms",
        "_monotonic_ns",
        "buffer",
        "bytes_in",
        "bytes_out",
        "driver",
        "loop",
        "ring",
        "turn",
        "windows",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, counters: FrontCounters) -> None:
        self.loop = loop
        self.turn = turn_of(loop)
        self.bytes_in, self.bytes_out = counters.bytes_in, counters.bytes_out
        self._monotonic_ns = clock.monotonic_ns
        self._late_ms = 0
        self.windows = Windows(clock)
        memory = bytearray(READ_BUFFER_BYTES)
        self.buffer = memoryview(memory)
        self.ring: ExpiryRing[Watched] = ExpiryRing(self.now_ms())
        self._dirty: list[Written] = []
        self.driver: Driver | None = None
        """Serves plain sockets; without one the loop's transports do."""
        if native_sockets.core.driver is not None:
            self.driver = native_sockets.core.driver(loop, self.turn, memory, READ_BYTES_MAX)

    def now_ms(self) -> int:
        """Monotonic milliseconds: the clock of keep-alives and deadlines, which stands still while this side is
        late."""
        now_ns = self._monotonic_ns()
        return now_ns // 1_000_000 - self._late_ms

    def excuse(self, late_ms: int) -> None:
        """This side was late by so much, and nobody could be served: it is not charged to the clients."""
        self._late_ms += late_ms

    def close(self) -> None:
        """Nothing shares this any more."""
        if self.driver is not None:
            self.driver.close()
            self.driver = None

    def write_later(self, connection: Written) -> None:
        """Write this connection's output at the end of the loop turn; the caller calls it once per turn and
        connection."""
        if not self._dirty:
            self.turn.at_end(self._write_all)
        self._dirty.append(connection)

    def _write_all(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            try:
                connection.write_now()
            except Exception as error:  # noqa: BLE001 - the others have to be written
                self.loop.call_exception_handler({"message": "a connection failed to write", "exception": error})
                connection.abort()


CLOSE_GRACE_S = 2.0
"""How long a closing connection may take to accept its last bytes; then it is cut."""

FAREWELL_S = 2.0
"""How long a client may continue to send after it was sent the reason of its disconnection."""


def lingering_close(wire: Any, loop: asyncio.AbstractEventLoop, *, explained: bool) -> None:
    """Close a wire once its output is out; `explained`: the client has been sent the reason, so let it close its side
    first, if the wire can close one side alone.
    """
    can_write_eof = getattr(wire, "can_write_eof", None)
    if explained and can_write_eof is not None and can_write_eof():
        wire.write_eof()
        if not wire.is_reading():
            wire.resume_reading()
        loop.call_later(FAREWELL_S, wire.abort)
        return
    wire.close()
    if wire.get_write_buffer_size():
        loop.call_later(CLOSE_GRACE_S, wire.abort)


OUTPUT_STOP_FACTOR = 4
"""Output above this many times the deliveries' mark stops reading from the client."""

LOG = get_logger("mqtt_proxy.front")

_PEER_CLOSED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR

_UNDECIDED, _OWNER, _OUTPUT = 1, 2, 4  # why a socket is not read
_DECIDING = Status.DECIDING  # a member of an enumeration is looked up slowly


class ConnectionHandler(Protocol):
    """What the owner of the sessions implements, one per connection."""

    def on_events(self, events: list[Event]) -> None:
        """Events of one read, in order, never empty; the list is emptied afterwards. After Violated and Disconnected
        the connection closes by itself.
        """
        ...

    def on_writable(self, writable: bool) -> None:
        """The socket takes deliveries again, or no longer."""
        ...

    def on_closed(self, reason: str, will_due: bool) -> None:
        """The connection has ended; `will_due`: the will of an accepted session has to be published."""
        ...


HandlerFactory = Callable[["MqttConnection"], ConnectionHandler]


class ConnectionHost(Protocol):
    """What the connections of one listener share; implemented by the listener."""

    make_handler: HandlerFactory
    counters: FrontCounters
    output_bytes_max: int
    """Bytes waiting in one socket above which its deliveries stop."""

    def admit(self, peer: RemoteAddress) -> RemoteAddress | None:
        """Count a socket that was just accepted; None when it is over a limit and has to be closed."""
        ...

    def register(self, connection: MqttConnection) -> None:
        """Register a connection whose peer was admitted."""
        ...

    def release(self, connection: MqttConnection) -> None:
        """Remove it from the counts; once per connection that was registered."""
        ...


class MqttConnection:
    """The socket side of one MQTT client."""

    __slots__ = (
        "_closing",
        "_dirty",
        "_host",
        "_pauses",
        "_reported",
        "_shared",
        "_transport",
        "_will_due",
        "close_reason",
        "flow_in",
        "flow_out",
        "handler",
        "peer",
        "session",
        "writable",
    )

    def __init__(self, session: Session, shared: LoopState, host: ConnectionHost) -> None:
        self.session = session
        self.peer = UNKNOWN_PEER
        self.writable = True
        self.close_reason: str | None = None
        self.handler: ConnectionHandler | None = None
        self.flow_in, self.flow_out = Flow(shared.windows), Flow(shared.windows)
        self._shared = shared
        self._host = host
        self._transport: Wire | None = None
        self._pauses = 0
        self._dirty = self._closing = self._reported = self._will_due = False

    # -- for the handler -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the session's output at the end of this loop turn. Call it after every answer or delivery."""
        if not self._dirty and not self._closing:
            self._dirty = True
            self._shared.write_later(self)

    def pause_reading(self) -> None:
        """Stop reading from this client until `resume_reading`; its keep-alive is suspended meanwhile."""
        self._pause(_OWNER)

    def resume_reading(self) -> None:
        """Read from this client again."""
        if self._pauses & _OWNER:
            self.session.excuse_silence(self._shared.now_ms())
            self._resume(_OWNER)

    def peer_left(self) -> bool:
        """Whether the client has closed its side. A socket that is not read does not report it; this asks the
        kernel."""
        if self._transport is None or self._transport.is_closing():
            return True
        sock = self._transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return True
        asked = select.poll()
        asked.register(sock.fileno(), _PEER_CLOSED)
        return bool(asked.poll(0))

    def close(self, reason: str) -> None:
        """Write what is pending, then close; `on_closed` follows in a later loop turn. Closing again does nothing."""
        transport = self._transport
        if self._closing or transport is None:
            return
        self._closing = True
        session, state = self.session, self.session.state
        self.close_reason = reason if state.close_reason in (None, Reason.ENDED) else state.close_reason
        self._will_due = state.will_due
        session.close(reason)
        if not transport.is_closing():
            data = session.take_bytes()
            self._shared.bytes_out.value += len(data)
            self.flow_out.add_bytes(len(data))
            transport.write(data)
            lingering_close(
                transport, self._shared.loop, explained=bool(data) and state.close_reason in VIOLATION_CODES
            )
        self._shared.loop.call_soon(self._report_closed)

    def send_away(self, code: int, server_reference: str) -> None:
        """Close because the proxy stops; a client of MQTT 5 is sent this code, and a server reference."""
        if not self._closing:
            self._will_due = self.session.state.will_due
            self.session.answers.disconnect(code, server_reference=server_reference)
            self.close("server_stopping")

    # -- from the wire -------------------------------------------------------------------------------------------------

    def refuse(self) -> None:
        """The peer was not admitted: this connection gets no further call."""
        self._closing = self._reported = True

    def begin(self, wire: Wire, peer: RemoteAddress) -> None:
        """Take a wire whose peer was admitted."""
        self._transport = wire
        self.peer = peer
        self._host.register(self)
        wire.set_write_buffer_limits(high=self._host.output_bytes_max, low=self._host.output_bytes_max // 4)
        self.handler = self._host.make_handler(self)
        self._shared.ring.watch(self)

    def receive(self, data: bytes) -> None:
        """Bytes of the driver, or out of WebSocket frames."""
        if data and not self._closing:
            self._shared.bytes_in.value += len(data)
            self.flow_in.add_bytes(len(data))
            self._process(data)

    def pause_writing(self) -> None:
        """The socket is full: stop deliveries."""
        self.writable = False
        if self.handler is not None and not self._closing:
            self.handler.on_writable(False)

    def resume_writing(self) -> None:
        """The socket has room again."""
        self.writable = True
        self._resume(_OUTPUT)
        if self.handler is not None and not self._closing:
            self.handler.on_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self.close("peer_closed" if exc is None else "connection_error")
        self._host.release(self)
        self._transport = None

    # -- inside --------------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When this connection is overdue; None for a client that is not read."""
        if self._pauses & _OWNER:
            return self._shared.now_ms() + 1_000
        return self.session.next_deadline_ms()

    def expire(self) -> None:
        """The deadline has passed: end the session, unless this side is late."""
        events = [] if self._input_waits() else self.session.tick(self._shared.now_ms())
        if events:
            self._hand_on(events)
        else:
            self._shared.ring.watch(self)

    def _input_waits(self) -> bool:
        """Whether input of the client lies unread in the kernel, although it is to be read."""
        if self._pauses or self._transport is None or self.session.state.status is Status.CLOSED:
            return False
        sock = self._transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        return any(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))

    def abort(self) -> None:
        """Close the connection without waiting for its output."""
        self.close("aborted")
        if self._transport is not None:
            self._transport.abort()

    def write_now(self) -> None:
        """Write the output of this loop turn; continue with held input after a CONNECT has been decided."""
        self._dirty = False
        transport = self._transport
        session = self.session
        if self._closing or transport is None:
            return
        out = session.state.out
        if out:
            data = out[0]
            if len(out) == 1 and isinstance(data, bytes):  # most often
                out.clear()
            else:
                data = session.take_bytes()
            self._shared.bytes_out.value += len(data)
            self.flow_out.add_bytes(len(data))
            transport.write(data)
            if (
                not self.writable
                and transport.get_write_buffer_size() > self._host.output_bytes_max * OUTPUT_STOP_FACTOR
            ):
                self._host.counters.reads_paused.value += not self._pauses & _OUTPUT
                self._pause(_OUTPUT)
        if session.state.close_reason is not None:
            self.close(session.state.close_reason)
        elif self._pauses & _UNDECIDED and session.state.status is not _DECIDING:
            session.excuse_silence(self._shared.now_ms())  # it was not read
            self._shared.ring.watch(self)
            self._resume(_UNDECIDED)
            if session.input_held:
                self._process(b"")

    def _process(self, data: bytes) -> None:
        session = self.session
        events = session.feed(data, self._shared.now_ms())
        undecided = session.state.status is _DECIDING
        if events:
            self._hand_on(events)
        if session.state.out:
            self.flush()
        if not undecided:
            return
        if session.state.status is _DECIDING:
            self._pause(_UNDECIDED)
        elif session.state.close_reason is None:  # decided within the call
            self._shared.ring.watch(self)
            if session.input_held:
                self._process(b"")

    def _hand_on(self, events: list[Event]) -> None:
        """Pass events to the handler; the last one may end the connection."""
        if not events or self._closing or self.handler is None:
            return
        last = events[-1]
        self.handler.on_events(events)
        if self.session.state.close_reason is None:  # most often: neither of the two that end a session
            return
        if isinstance(last, Violated):
            self._host.counters.violations.child(last.reason).value += 1
            LOG.info(
                "violation", peer=self.peer.address, client_id=self.session.state.terms.client_id, reason=last.reason,
                detail=last.detail,
            )  # fmt: skip
            self.close(last.reason)
        elif isinstance(last, Disconnected):
            self.close("disconnect")

    def _pause(self, why: int) -> None:
        if not self._pauses and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pauses |= why

    def _resume(self, why: int) -> None:
        if not self._pauses & why:
            return
        self._pauses &= ~why
        if not self._pauses and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _report_closed(self) -> None:
        self._shared.ring.forget(self)
        if not self._reported and self.handler is not None:
            self._reported = True
            # Drop the references between them, or both would wait for a full collection, which is rare.
            handler, self.handler = self.handler, None
            handler.on_closed(self.close_reason or "closed", self._will_due)
