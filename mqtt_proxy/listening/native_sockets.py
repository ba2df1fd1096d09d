"""Serves plain sockets: the compiled driver where it was built from the sources here, else the loop's transports.

    loop --add_reader(epoll descriptor)--> Driver.ready -> Socket -> Receiver.receive
    Receiver -> Wire.write -> send; what the kernel does not take is kept until it does

Callers use `native_sockets.core.driver`, so that tests may replace it with the other twin. LIGHTMQ_PURE=1 chooses the
loop's transports; without a driver both members of `SocketCore` are None.
Invariant: a connection behaves the same on both. Thread rule: chosen once, at import.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from remoting import TYPED
from remoting.native.choice import Choice, choose
from remoting.transport.turn import Turn


class Wire(Protocol):
    """What a connection writes to: a socket of the driver, a transport of the loop, or a WebSocket over one."""

    def write(self, data: bytes) -> None:
        """Send, or keep until the socket takes it."""

    def close(self) -> None:
        """Send what is kept, then close."""

    def abort(self) -> None:
        """Close at once, without sending what is kept."""

    def is_closing(self) -> bool:
        """Whether closing has begun."""

    def pause_reading(self) -> None:
        """Stop reading from the socket."""

    def resume_reading(self) -> None:
        """Take up input after `pause_reading`."""

    def get_write_buffer_size(self) -> int:
        """Bytes that the socket has not taken yet."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Marks of `pause_writing` and `resume_writing`."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Information about the socket."""


class Receiver(Protocol):
    """The receiver of a socket."""

    def receive(self, data: bytes) -> None:
        """Bytes were received; never empty."""
        ...

    def pause_writing(self) -> None:
        """More than the high mark is kept."""
        ...

    def resume_writing(self) -> None:
        """No more than the low mark is kept now."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """The descriptor is closed; once, and last."""
        ...


class Driver(Protocol):
    """Serves all plain sockets of one loop."""

    def adopt(self, fd: int, receiver: Receiver, /) -> Wire:
        """Serve a connected socket that does not block, and own it. OSError when the kernel cannot."""
        ...

    def close(self) -> None:
        """Close what is still open and serve no socket any more."""
        ...


@dataclass(frozen=True, slots=True)
class SocketCore:
    """What serves plain sockets of this process, if anything does."""

    name: str
    driver: Callable[[asyncio.AbstractEventLoop, Turn, bytearray, int], Driver] | None
    """(loop, its turn, buffer for reads, most bytes of one socket in one turn) -> a running driver. OSError."""
    accept: Callable[[int], tuple[int, object] | None] | None
    """(listening descriptor) -> (descriptor of a connection that does not block, peer name), None when none waits.
    OSError."""


def pure_core() -> SocketCore:
    """Return the twin without a driver: transports of asyncio or uvloop."""
    return SocketCore("pure", None, None)


def compiled_core() -> SocketCore:
    """Return the compiled twin. Raises ImportError where it was not built."""
    from remoting.native.compiled import driver

    return SocketCore("compiled", driver.Driver, driver.accept)


choice: Choice[SocketCore] = choose(compiled_core, pure_core, TYPED.reason)
"""Which twin is in use, and why."""
core: SocketCore = choice.core
