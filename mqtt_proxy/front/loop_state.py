"""What all connections of one event loop share: the read buffer, the connections to be written, the ring of deadlines.

Invariants: the read buffer is only valid inside one `buffer_updated`; every connection that has output is in the dirty
list exactly once and is written once, at the end of the loop turn, in one piece. Loop rule: one instance per loop, no
locks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from mqtt_proxy.mqtt.keepalive import ExpiryRing
from runtime.clock import Clock

if TYPE_CHECKING:
    from mqtt_proxy.front.connection import Connection

READ_BUFFER_BYTES = 262_144
"""One read takes at most this much; a quarter of a megabyte holds some thousand small publishes."""


class Watched(Protocol):
    """What has a deadline on this loop: a connection, or a socket on its way to become one."""

    def next_deadline_ms(self) -> int | None:
        """When it is due if nothing happens; None = never."""
        ...

    def expire(self) -> None:
        """It is due."""
        ...


class LoopState:
    """Shared by the connections of one loop."""

    __slots__ = ("_clock", "_dirty", "buffer", "loop", "ring")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.loop = loop
        self._clock = clock
        self.buffer = memoryview(bytearray(READ_BUFFER_BYTES))
        self.ring: ExpiryRing[Watched] = ExpiryRing(self.now_ms())
        self._dirty: list[Connection] = []

    def now_ms(self) -> int:
        """Monotonic milliseconds: what sessions measure silence with."""
        return self._clock.monotonic_ns() // 1_000_000

    def write_later(self, connection: Connection) -> None:
        """Write this connection's output at the end of the loop turn; the caller asks once per turn and connection."""
        if not self._dirty:
            self.loop.call_soon(self._write_all)
        self._dirty.append(connection)

    def _write_all(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.write_now()
