"""How clients of a simulation reach the broker that leads, whatever the simulation runs it on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from remoting.protocol.frames.commands import Command
from tests.support.consumer_state import ConsumerState


class NoAnswer(Exception):
    """Nobody knows what became of the request."""


class Door(Protocol):
    """One client's connection, which is dialled again whenever it is lost."""

    generation: int
    """Counts connections: what a broker knew of a former one, it knows no more."""
    on_push: Callable[[Command], object]
    """Called with what the broker sends by itself."""
    on_lost: Callable[[], object]
    """Called when the connection has ended."""

    async def ask(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Command:
        """Send a request to the master and wait for its answer. Raises NoAnswer."""
        ...

    def tell(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> None:
        """Send a request that has no answer. Raises NoAnswer: there is no connection."""
        ...

    def close(self) -> None:
        """End the connection; the next request makes another one."""


class Scene(Protocol):
    """What clients are given."""

    state: ConsumerState
    """What they report to."""
    chance: random.Random
    is_draining: bool
    """Nothing new is sent; consumers take and acknowledge all there is."""
    is_over: bool
    """Clients end."""
    pace: float
    """Factor of all pauses."""
    senders: int
    """Clients that still send; what they have been answered last may be owed to somebody."""

    def door(self) -> Door:
        """A connection of its own."""
        ...

    def now_ms(self) -> int:
        """Wall time."""
        ...

    def start(self, coroutine: Any) -> None:
        """Run something of a client beside everything else; what fails there is a violation."""
        ...
