"""What all connections of one event loop share: driver, read buffer, connections to be written, the ring of deadlines.

Invariants: the read buffer is only valid inside one read; every connection that has output is in the dirty
list exactly once and is written once, when nothing else is due in this turn of the loop, in one piece. What one of them
raises ends that one. Loop rule: one instance per loop, no locks.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from mqtt_proxy.listening import native_sockets
from mqtt_proxy.listening.counters import FrontCounters
from mqtt_proxy.listening.native_sockets import Driver
from mqtt_proxy.mqtt.session.keepalive import ExpiryRing
from remoting.transport.turn import turn_of
from runtime.clock import Clock

READ_BUFFER_BYTES = 262_144
"""One read of a transport takes at most this much."""

READ_BYTES_MAX = 65_536
"""One read of the driver takes at most this much, and there is one per socket and turn: some hundred small publishes,
and no more than an unauthenticated client may cost."""


class Watched(Protocol):
    """What has a deadline on this loop: a connection, or a socket on its way to become one."""

    def next_deadline_ms(self) -> int | None:
        """When it is due if nothing happens; None = never."""
        ...

    def expire(self) -> None:
        """The deadline has passed."""
        ...


class Written(Protocol):
    """What has output on this loop: a connection."""

    def write_now(self) -> None:
        """Write the output of this turn."""
        ...

    def abort(self) -> None:
        """End at once, output or not."""
        ...


class LoopState:
    """Shared by the connections of one loop."""

    __slots__ = ("_dirty", "_monotonic_ns", "buffer", "bytes_in", "bytes_out", "driver", "loop", "ring", "turn")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, counters: FrontCounters) -> None:
        self.loop = loop
        self.turn = turn_of(loop)
        self.bytes_in, self.bytes_out = counters.bytes_in, counters.bytes_out
        self._monotonic_ns = clock.monotonic_ns
        memory = bytearray(READ_BUFFER_BYTES)
        self.buffer = memoryview(memory)
        self.ring: ExpiryRing[Watched] = ExpiryRing(self.now_ms())
        self._dirty: list[Written] = []
        self.driver: Driver | None = None
        """Serves plain sockets; without one the loop's transports do."""
        if native_sockets.core.driver is not None:
            self.driver = native_sockets.core.driver(loop, self.turn, memory, READ_BYTES_MAX)

    def now_ms(self) -> int:
        """Monotonic milliseconds: what sessions measure silence with."""
        now_ns = self._monotonic_ns()
        return now_ns // 1_000_000

    def close(self) -> None:
        """Nobody is there any more who shares this."""
        if self.driver is not None:
            self.driver.close()
            self.driver = None

    def write_later(self, connection: Written) -> None:
        """Write this connection's output at the end of the loop turn; the caller asks once per turn and connection."""
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
