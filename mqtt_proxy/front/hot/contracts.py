"""What the front driver offers its room, and what it wants of it.

Invariant: where there is no driver both members of `Core` are None and the loop's transports do its work; a connection
cannot tell which of them it is on. Pure declarations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from remoting.transport.turn import Turn

if TYPE_CHECKING:
    from mqtt_proxy.listening.connection import Wire


class Receiver(Protocol):
    """Whose socket it is."""

    def receive(self, data: bytes) -> None:
        """Bytes have come; never empty."""
        ...

    def pause_writing(self) -> None:
        """More than the high mark is kept."""
        ...

    def resume_writing(self) -> None:
        """Not more than the low mark is kept any more."""
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
        """End what is still open and serve nobody any more."""
        ...


@dataclass(frozen=True, slots=True)
class Core:
    """One twin."""

    name: str
    driver: Callable[[asyncio.AbstractEventLoop, Turn, bytearray, int], Driver] | None
    """(loop, its turn, where every read goes first, most bytes of one socket in one turn) -> a driver, at work.
    OSError."""
    accept: Callable[[int], tuple[int, object] | None] | None
    """(listening descriptor) -> (descriptor of a connection that does not block, peer name), None when nobody waits.
    OSError."""
