"""What waits to be written to one socket: all frames of one turn leave in one write, and their bytes have a limit.

Above the limit `is_writable` is False until the other side has taken most of it. One that takes nothing while output
still grows to OVERRUN_FACTOR times the limit is reported once more, as overrun.
Invariant: frames leave in the order they came, and nothing leaves before a turn of the loop has ended or `flush`. Loop
rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from remoting.protocol.frames.frame import FRAME_SIZE_BYTES_MAX
from remoting.transport.tls import TlsTransport

OUTPUT_BYTES_MAX = 8 * 1024 * 1024
"""Output waiting for one peer above which nothing more is read from it."""

OVERRUN_FACTOR = 8
"""Output of this many times the limit means the peer does not read at all: the connection is cut."""

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


class Output:
    """The frames of one link that have not left."""

    def __init__(self, settings: LinkSettings, changed: Callable[[], None], overrun: Callable[[int], None]) -> None:
        """`changed` is called when `is_writable` has; `overrun` with the bytes that a peer which reads nothing left."""
        self.is_writable = True
        """False while more output waits than the limit allows."""
        self.transport: asyncio.Transport | TlsTransport | None = None
        """Where it goes; None before the socket is there."""
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
        """The socket is there."""
        self.transport = transport
        transport.set_write_buffer_limits(high=self._bytes_max)

    def add(self, frame: bytes) -> None:
        """One more frame, to leave at the end of this turn."""
        self._frames.append(frame)
        self._bytes += len(frame)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.flush)
        if self._bytes > self._bytes_max:
            self._grew()

    def flush(self) -> None:
        """Write what waits."""
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
        """Forget what waits."""
        self._frames.clear()
        self._bytes = 0

    def end(self) -> None:
        """The socket is gone: nothing is written and nobody told any more."""
        self.clear()
        self.transport = None
        self._changed = self._overrun = _ignore

    def transport_full(self, is_full: bool) -> None:
        """Whether the socket's own buffer is above the limit, or the peer has taken most of it."""
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
    """In the place of those who were told."""
