"""A client's way to the broker that leads by the product's own client: over sockets, or over those of a simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from remoting.client.connection import dial
from remoting.client.uplink import Uplink
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from tests.sim.consumers.door import NoAnswer

TIMEOUT_MS = 3_000
PAUSE_MS_MAX = 500


class UplinkDoor:
    """One client's connection, which finds and follows the master of a group."""

    def __init__(self, controllers: Sequence[str], broker_name: str = "") -> None:
        self.generation = 1
        self.on_push: Callable[[Command], object] = lambda _command: None
        self.on_lost: Callable[[], object] = lambda: None
        self.uplink = Uplink.configured(dial, "", controllers, broker_name, pause_ms_max=PAUSE_MS_MAX)
        self.uplink.line.on_down(self._down)
        self.uplink.connection.on_push(lambda command: self.on_push(command))
        self.uplink.start()

    def _down(self, _reason: str) -> None:
        self.generation += 1
        self.on_lost()

    async def ask(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Command:
        """Send a request to the master and wait for its answer. Raises NoAnswer: the outcome is unknown."""
        command = Command(code, fields={name: str(value) for name, value in (fields or {}).items()}, body=body)
        try:
            return await self.uplink.connection.request(command, TIMEOUT_MS)
        except LightMQError as error:
            raise NoAnswer(str(error)) from error

    def tell(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> None:
        """Send a request that has no answer. Raises NoAnswer: there is no connection."""
        named = {name: str(value) for name, value in (fields or {}).items()}
        try:
            self.uplink.connection.oneway(Command(code, flag=FLAG_ONEWAY, fields=named, body=body))
        except LightMQError as error:
            raise NoAnswer(str(error)) from error

    def close(self) -> None:
        """End the connection; another one is made."""
        self.uplink.line.abort("closed by the client")
