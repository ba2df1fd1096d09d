"""Bytes of one socket <-> commands: the protocol object of every connection, and its output.

Input of one turn is decoded together; all frames of one turn leave in one write. Above the limit of queued output
`Output.is_writable` is False until the peer has taken most of it, and a link that pauses reading (the server's)
neither reads nor delivers commands. A peer that reads nothing while output grows to OVERRUN_FACTOR times the limit is
cut off.
Invariants: frames leave in the order they were added, at the end of a loop turn or by `flush`; `link_lost` of the
link's user is called exactly once, and no command is delivered after it. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, cast

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import FRAME_SIZE_BYTES_MAX, FrameDecoder, encode_frame
from remoting.transport.contracts import CloseCallback, Ending
from remoting.transport.tls import TlsTransport

OUTPUT_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of output queued for a peer above which nothing more is read from it."""

OVERRUN_FACTOR = 8
"""Output of this many times the limit means that the peer does not read at all: the connection is cut."""

RECEIVE_BUFFER_BYTES = 256 * 1024
"""Size of the buffer a socket is read into; shared by all links of one server or client."""


@dataclass(slots=True)
class LinkCounters:
    """What happened on all links of one server or client, as plain integers for metrics."""

    bytes_in: int = 0
    bytes_out: int = 0
    frames_in: int = 0
    frames_out: int = 0
    writes: int = 0
    paused: int = 0
    """Times a peer's output rose above the limit."""
    overruns: int = 0
    """Peers cut off because they read nothing."""
    violations: int = 0
    """Peers cut off because their bytes were not frames."""
    foreign: int = 0
    """Those among them that spoke HTTP, gRPC or MQTT."""
    sends_after_close: int = 0
    """Commands for connections that had already ended."""
    tls_handshakes: int = 0
    """Connections on which TLS began."""
    tls_failures: int = 0
    """Connections closed because the handshake failed or the peer broke TLS."""


@dataclass(slots=True)
class LinkSettings:
    """Limits and shared parts of the links of one server or client."""

    frame_size_bytes_max: int = FRAME_SIZE_BYTES_MAX
    output_bytes_max: int = OUTPUT_BYTES_MAX
    counters: LinkCounters = field(default_factory=LinkCounters)
    # One buffer suffices: the loop fills it and calls buffer_updated in the same step, and the decoder keeps copies.
    receive_buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(RECEIVE_BUFFER_BYTES)))


class Output:
    """The frames of one link that are not written yet."""

    def __init__(self, settings: LinkSettings, changed: Callable[[], None], overrun: Callable[[int], None]) -> None:
        """`changed`: called when `is_writable` changes; `overrun`: with the bytes queued for a peer that reads none."""
        self.is_writable = True
        """False while output above the limit is queued."""
        self.transport: asyncio.Transport | TlsTransport | None = None
        """Where output goes; None before the socket is connected."""
        self._bytes_max = settings.output_bytes_max
        self._counters = settings.counters
        self._changed = changed
        self._overrun = overrun
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []
        self._bytes = 0
        self._is_due = False
        self._is_transport_full = False

    def begin(self, transport: asyncio.Transport) -> None:
        """Start writing: the socket is connected."""
        self.transport = transport
        transport.set_write_buffer_limits(high=self._bytes_max)

    def add(self, frame: bytes) -> None:
        """Queue a frame, to be written at the end of this turn."""
        self._frames.append(frame)
        self._bytes += len(frame)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.flush)
        if self._bytes > self._bytes_max:
            self._grew()

    def flush(self) -> None:
        """Write the queued frames now."""
        self._is_due = False
        frames, transport = self._frames, self.transport
        if not frames or transport is None:
            return
        counters = self._counters
        counters.frames_out += len(frames)
        counters.bytes_out += self._bytes
        counters.writes += 1
        transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
        self.clear()
        if not self.is_writable:
            self._grew()

    def clear(self) -> None:
        """Drop the queued frames."""
        self._frames.clear()
        self._bytes = 0

    def end(self) -> None:
        """Stop: the socket has closed, so nothing is written or reported any more."""
        self.clear()
        self.transport = None
        self._changed = self._overrun = _ignore

    def transport_full(self, is_full: bool) -> None:
        """Note that the transport's buffer is above its limit, or that the peer has taken most of it."""
        self._is_transport_full = is_full
        self._update()

    def _grew(self) -> None:
        transport = self.transport
        waiting = self._bytes + (transport.get_write_buffer_size() if transport is not None else 0)
        if waiting > OVERRUN_FACTOR * self._bytes_max:
            self._overrun(waiting)
        else:
            self._update()

    def _update(self) -> None:
        is_writable = not self._is_transport_full and self._bytes <= self._bytes_max
        if is_writable != self.is_writable:
            self.is_writable = is_writable
            self._counters.paused += not is_writable
            self._changed()


def _ignore(*_waiting: int) -> None:
    """Replaces the callbacks after the end."""


LOG = logging.getLogger("remoting")

CLOSE_DEADLINE_SECONDS = 5.0
"""How long a closing link tries to send its last output."""


class LinkUser(Protocol):
    """The connection or peer that uses a link."""

    def link_made(self, own_address: tuple[str, int] | None) -> None:
        """The socket is connected and the link's `address` set; `own_address` is our end, None without a port."""

    def command_received(self, command: Command) -> None:
        """Handle one command of the peer."""

    def link_lost(self, reason: str) -> None:
        """The socket has closed; called once, before the callbacks of `on_close`."""


class _Nobody:
    """The user of a link that has ended."""

    def link_made(self, own_address: tuple[str, int] | None) -> None:
        """Never called after the end."""

    def command_received(self, command: Command) -> None:
        """Drop the command: none is delivered after the end."""

    def link_lost(self, reason: str) -> None:
        """Ignore it: the end was reported before."""


NOBODY = _Nobody()


class FrameLink(asyncio.BufferedProtocol):
    """One socket that carries commands."""

    def __init__(self, settings: LinkSettings, user: LinkUser, *, pauses_reading: bool = False) -> None:
        """`pauses_reading`: for the server's side only; two sides that both stop reading would deadlock."""
        self.address = "?"
        self.decoder = FrameDecoder(settings.frame_size_bytes_max)
        self.on_first_bytes: Callable[[memoryview], None] | None = None
        """Called once, with the first bytes read, before they are decoded."""
        self.on_read: Callable[[int], None] | None = None
        """Called after each decoded read with the number of frames it completed."""
        self._user = user
        self._pauses_reading = pauses_reading
        self._counters = settings.counters
        self._receive_buffer = settings.receive_buffer
        self._transport: asyncio.Transport | TlsTransport | None = None
        self._tls: TlsTransport | None = None
        self._output = Output(settings, self._writable_changed, self._overrun)
        self._is_held = False
        self._backlog: deque[Command] = deque()
        self._ending = Ending()
        self._close_timer: asyncio.TimerHandle | None = None

    # Called by users.

    @property
    def writable(self) -> bool:
        """False while output above the limit is queued."""
        return self._output.is_writable

    @property
    def closing(self) -> str | None:
        """Why the link is closing or closed; None while it is open."""
        return self._ending.closing

    def send(self, command: Command) -> None:
        """Queue a command; all output of a loop turn is one write."""
        if self._ending.closing is not None:
            self._counters.sends_after_close += 1
            return
        self._output.add(encode_frame(command))

    def end(self, reason: str) -> None:
        """Send what is queued, then close; after CLOSE_DEADLINE_SECONDS the socket is cut."""
        ending = self._ending
        if ending.closing is not None:
            return
        self._output.flush()
        if ending.closing is not None:  # the flush itself may have found the peer overrun
            return
        ending.closing = reason
        self._backlog.clear()
        if self._transport is not None:
            self._transport.close()
            loop = asyncio.get_running_loop()
            self._close_timer = loop.call_later(CLOSE_DEADLINE_SECONDS, self._transport.abort)

    def abort(self, reason: str) -> None:
        """Close without sending what is queued."""
        ending = self._ending
        if ending.reason is not None:
            return
        ending.closing = ending.closing or reason
        self._output.clear()
        self._backlog.clear()
        if self._transport is not None:
            self._transport.abort()

    def violated(self, reason: str) -> None:
        """Count and log a protocol violation of the peer, and close the link."""
        self._counters.violations += 1
        LOG.warning("connection with %s closed: %s", self.address, reason)
        self.end(f"violation: {reason}")

    def start_tls(self, context: ssl.SSLContext, server_name: str | None = None) -> asyncio.Future[None]:
        """Begin TLS as the client of `server_name` or as the server; the future is done when the handshake is.

        Nothing may have been sent before. A failure closes the link and is set in the future.
        """
        transport = self._transport
        assert transport is not None
        assert not isinstance(transport, TlsTransport)
        self._counters.tls_handshakes += 1
        self._transport = self._output.transport = self._tls = TlsTransport(
            transport, context, self._receive_buffer,
            plain=self._bytes_received, failed=self._tls_failed, server_name=server_name,
        )  # fmt: skip
        self._tls.begin()
        return self._tls.done

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` once when the link has ended; next turn if it already has."""
        self._ending.on_close(callback)

    def pause_reading(self) -> None:
        """Read nothing more until `resume_reading`."""
        self._is_held = True
        if self._transport is not None and self._ending.closing is None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again, unless output above the limit is queued."""
        self._is_held = False
        may_read = self._output.is_writable or not self._pauses_reading
        if self._transport is not None and self._ending.closing is None and may_read:
            self._transport.resume_reading()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket and note its peer's address."""
        self._transport = plain = cast("asyncio.Transport", transport)
        self._output.begin(plain)
        name, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.address = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "local")
        self._user.link_made((own[0], own[1]) if isinstance(own, tuple) else None)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's own signature
        """Return where the loop puts its next read."""
        return self._receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Decode what was read and deliver the commands."""
        if self._ending.closing is not None:
            return
        if self.on_first_bytes is not None:
            look, self.on_first_bytes = self.on_first_bytes, None
            look(self._receive_buffer[:nbytes])
            if self._ending.closing is not None:
                return
        if self._tls is not None:
            self._tls.received(nbytes)
        else:
            self._bytes_received(nbytes)

    def pause_writing(self) -> None:
        """The transport's buffer is above its limit."""
        self._output.transport_full(True)

    def resume_writing(self) -> None:
        """The peer has taken most of it."""
        self._output.transport_full(False)

    def connection_lost(self, error: Exception | None) -> None:
        """Report the end to the user, then to the callbacks."""
        if self._close_timer is not None:
            self._close_timer.cancel()
        if self._tls is not None:
            self._tls.lost()
        ending = self._ending
        reason = ending.closing = ending.closing or (str(error) if error else "closed by the other side")
        self._output.clear()
        self._backlog.clear()
        self._user.link_lost(reason)
        ending.finish()
        self._release()

    # Input and output.

    def _bytes_received(self, nbytes: int) -> None:
        """Decode `nbytes` bytes of frames in the buffer."""
        counters = self._counters
        counters.bytes_in += nbytes
        try:
            commands = self.decoder.feed(self._receive_buffer[:nbytes])
        except RemoteViolation as violation:
            self.violated(str(violation))
            commands = []
        counters.frames_in += len(commands)
        received = self._user.command_received
        for command in commands:
            if not self._pauses_reading or (self._output.is_writable and not self._backlog):
                received(command)
            else:
                self._backlog.append(command)
        if self.on_read is not None:
            self.on_read(len(commands))

    def _release(self) -> None:
        """Drop all references, so that an unfinished frame is freed now, not by the cycle collector."""
        self._user = NOBODY
        self._transport = self._tls = self.on_read = self.on_first_bytes = None
        self._output.end()

    def _tls_failed(self, reason: str) -> None:
        self._counters.tls_failures += 1
        LOG.warning("connection with %s closed: %s", self.address, reason)
        self.end(reason)

    def _overrun(self, waiting: int) -> None:
        if self._ending.closing is None:
            self._counters.overruns += 1
            LOG.warning("connection with %s cut: it reads nothing and %d bytes wait for it", self.address, waiting)
            self.abort(f"overrun: {waiting} bytes of output were not read")

    def _writable_changed(self) -> None:
        if not self._pauses_reading or self._transport is None or self._ending.closing is not None:
            return
        if self._output.is_writable:
            if not self._is_held:
                self._transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._hand_on_backlog)
        else:
            self._transport.pause_reading()

    def _hand_on_backlog(self) -> None:
        while self._backlog and self._output.is_writable:
            self._user.command_received(self._backlog.popleft())
