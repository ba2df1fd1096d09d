"""Bytes of one socket <-> commands: the protocol object both the server's and the client's connections are made of.

What was read in one turn is decoded in one go; what was sent in one turn leaves in one write. Output has a limit: above
it `writable` is False, and a link that pauses reading (the server's) neither reads nor hands on commands until its peer
has taken the output. A peer that takes nothing while output still grows to OVERRUN_FACTOR times the limit is cut off.
Invariant: `link_lost` is called exactly once, and nothing is handed on after it.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import FRAME_SIZE_BYTES_MAX, FrameDecoder, encode_frame
from remoting.transport.tls import TlsTransport

LOG = logging.getLogger("remoting")

OUTPUT_BYTES_MAX = 8 * 1024 * 1024
"""Output waiting for one peer above which nothing more is read from it."""

OVERRUN_FACTOR = 8
"""Output of this many times the limit means the peer does not read at all: the connection is cut."""

CLOSE_DEADLINE_SECONDS = 5.0
"""How long a closing link tries to get its last output out."""

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
    """Times a peer's output was above the limit."""
    overruns: int = 0
    """Peers cut off because they read nothing."""
    violations: int = 0
    """Peers cut off because their bytes were no frames."""
    foreign: int = 0
    """Those among them that spoke HTTP, gRPC or MQTT."""
    sends_after_close: int = 0
    """Commands for peers that were already gone."""
    tls_handshakes: int = 0
    """Connections on which TLS began."""
    tls_failures: int = 0
    """Connections closed because TLS was not agreed upon or was broken."""


@dataclass(slots=True)
class LinkSettings:
    """Limits and shared parts of the links of one server or client."""

    frame_size_bytes_max: int = FRAME_SIZE_BYTES_MAX
    output_bytes_max: int = OUTPUT_BYTES_MAX
    counters: LinkCounters = field(default_factory=LinkCounters)
    # One buffer is enough: the loop fills it and calls buffer_updated in the same step, and the decoder keeps copies.
    receive_buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(RECEIVE_BUFFER_BYTES)))


class FrameLink(asyncio.BufferedProtocol):
    """One socket that carries commands. Subclasses say what to do with a command and with the end."""

    pauses_reading = False
    """True for a server's side only: two sides that both stop reading would wait for each other for ever."""

    def __init__(self, settings: LinkSettings) -> None:
        self.address = "?"
        self._settings = settings
        self._counters = settings.counters
        self._receive_buffer = settings.receive_buffer
        self._decoder = FrameDecoder(settings.frame_size_bytes_max)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | TlsTransport | None = None
        self._tls: TlsTransport | None = None
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._flush_due = False
        self._transport_full = False
        self._writable = True
        self._reading_held = False
        self._backlog: deque[Command] = deque()
        self._closing: str | None = None
        self._lost: str | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._close_callbacks: list[Callable[[str], object]] = []

    # What a subclass answers.

    def link_made(self) -> None:
        """The socket is there; `address` is set."""

    def command_received(self, command: Command) -> None:
        """One command of the peer."""
        raise NotImplementedError

    def link_lost(self, reason: str) -> None:
        """The socket is gone; called once, before the callbacks of `on_close`."""

    # What users call.

    @property
    def writable(self) -> bool:
        """False while more output waits than the limit allows."""
        return self._writable

    @property
    def closed(self) -> bool:
        """True as soon as the link is closing."""
        return self._closing is not None or self._lost is not None

    def send(self, command: Command) -> None:
        """Queue a command; everything of one loop turn leaves in one write."""
        if self.closed:
            self._counters.sends_after_close += 1
            return
        frame = encode_frame(command)
        self._output.append(frame)
        self._output_bytes += len(frame)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        if self._output_bytes > self._settings.output_bytes_max:
            self._output_grew()

    def end(self, reason: str) -> None:
        """Send what is queued, then close; after CLOSE_DEADLINE_SECONDS the socket is cut."""
        if self.closed:
            return
        self._flush()
        if self.closed:  # the flush itself may have found the peer overrun
            return
        self._closing = reason
        self._backlog.clear()
        if self._transport is not None:
            self._transport.close()
            self._close_timer = self._loop.call_later(CLOSE_DEADLINE_SECONDS, self._transport.abort)

    def abort(self, reason: str) -> None:
        """Close at once and forget what is queued."""
        if self._lost is not None:
            return
        self._closing = self._closing or reason
        self._output.clear()
        self._backlog.clear()
        if self._transport is not None:
            self._transport.abort()

    def start_tls(self, context: ssl.SSLContext, server_name: str | None = None) -> asyncio.Future[None]:
        """Begin TLS on the open socket, as the client of `server_name` or as the server; done when the handshake is.

        Nothing may have been sent before. A failure closes the link and is in the future.
        """
        transport = self._transport
        assert transport is not None
        assert not isinstance(transport, TlsTransport)
        self._counters.tls_handshakes += 1
        self._transport = self._tls = TlsTransport(
            transport, context, self._receive_buffer,
            plain=self._bytes_received, failed=self._tls_failed, server_name=server_name,
        )  # fmt: skip
        self._tls.begin()
        return self._tls.done

    def on_close(self, callback: Callable[[str], object]) -> None:
        """Call `callback(reason)` once when the link is gone; next turn if it already is."""
        if self._lost is None:
            self._close_callbacks.append(callback)
        else:
            self._loop.call_soon(callback, self._lost)

    def hold_reading(self) -> None:
        """Read nothing more until `go_on`."""
        self._reading_held = True
        if self._transport is not None and not self.closed:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Read again, unless output waits."""
        self._reading_held = False
        if self._transport is not None and not self.closed and (self._writable or not self.pauses_reading):
            self._transport.resume_reading()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the socket and its peer."""
        self._transport = plain = cast("asyncio.Transport", transport)
        plain.set_write_buffer_limits(high=self._settings.output_bytes_max)
        name = transport.get_extra_info("peername")
        self.address = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "local")
        self.link_made()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's own signature
        """Where the loop puts what it reads."""
        return self._receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Decode what was read and hand it on."""
        if self.closed:
            return
        if self._tls is not None:
            self._tls.received(nbytes)
        else:
            self._bytes_received(nbytes)

    def _bytes_received(self, nbytes: int) -> None:
        """So many bytes of frames are in the buffer."""
        counters = self._counters
        counters.bytes_in += nbytes
        try:
            commands = self._decoder.feed(self._receive_buffer[:nbytes])
        except RemoteViolation as violation:
            self.violated(str(violation))
            return
        counters.frames_in += len(commands)
        for command in commands:
            if not self.pauses_reading or (self._writable and not self._backlog):
                self.command_received(command)
            else:
                self._backlog.append(command)

    def violated(self, reason: str) -> None:
        """The peer broke the protocol: count it, say it, close this link and no other."""
        self._counters.violations += 1
        LOG.warning("connection with %s closed: %s", self.address, reason)
        self.end(f"violation: {reason}")

    def _tls_failed(self, reason: str) -> None:
        self._counters.tls_failures += 1
        LOG.warning("connection with %s closed: %s", self.address, reason)
        self.end(reason)

    def pause_writing(self) -> None:
        """The socket's own buffer is above the limit."""
        self._transport_full = True
        self._update_writable()

    def resume_writing(self) -> None:
        """The peer has taken most of it."""
        self._transport_full = False
        self._update_writable()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the subclass, then everyone who asked."""
        if self._close_timer is not None:
            self._close_timer.cancel()
        if self._tls is not None:
            self._tls.lost()
        reason = self._lost = self._closing or (str(error) if error else "closed by the other side")
        self._output.clear()
        self._backlog.clear()
        self.link_lost(reason)
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            run_close_callback(callback, reason)

    # Output.

    def _flush(self) -> None:
        self._flush_due = False
        output = self._output
        transport = self._transport
        if not output or transport is None or self._lost is not None:
            return
        counters = self._counters
        counters.frames_out += len(output)
        counters.bytes_out += self._output_bytes
        counters.writes += 1
        transport.write(output[0] if len(output) == 1 else b"".join(output))
        output.clear()
        self._output_bytes = 0
        if not self._writable:
            self._output_grew()

    def _output_grew(self) -> None:
        transport = self._transport
        waiting = self._output_bytes + (transport.get_write_buffer_size() if transport is not None else 0)
        if waiting > OVERRUN_FACTOR * self._settings.output_bytes_max and not self.closed:
            self._counters.overruns += 1
            LOG.warning("connection with %s cut: it reads nothing and %d bytes wait for it", self.address, waiting)
            self.abort(f"overrun: {waiting} bytes of output were not read")
            return
        self._update_writable()

    def _update_writable(self) -> None:
        writable = not self._transport_full and self._output_bytes <= self._settings.output_bytes_max
        if writable == self._writable:
            return
        self._writable = writable
        if not writable:
            self._counters.paused += 1
        if not self.pauses_reading or self._transport is None or self.closed:
            return
        if writable:
            if not self._reading_held:
                self._transport.resume_reading()
            self._loop.call_soon(self._hand_on_backlog)
        else:
            self._transport.pause_reading()

    def _hand_on_backlog(self) -> None:
        while self._backlog and self._writable:
            self.command_received(self._backlog.popleft())


def run_close_callback(callback: Callable[[str], object], reason: str) -> None:
    """Run one callback; its failure must not keep the others from running."""
    try:
        callback(reason)
    except Exception:
        LOG.exception("a close callback failed")
