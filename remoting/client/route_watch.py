"""The masters of broker groups as controllers push them, as soon as a controller knows (9060, 9061).

One connection to each controller, kept up by `ReconnectingConnection`: the first controller that knows of a change
reports it. Each is also asked every few seconds, because a push may be lost with a connection whose end went unnoticed.
A name server that does not know these codes is asked again now and then; its clients find masters by asking.
Invariant: a controller that is away or sends what cannot be read costs a pause and a log line, nothing else. Loop rule:
all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial

from remoting.client.reconnecting import ReconnectingConnection
from remoting.protocol.bodies.controller_body import PushedRoutes, RouteSubscription
from remoting.protocol.bodies.route_body import decode_body, encode_body
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Dial
from remoting.transport.failures import ConnectionLost, checked

LOG = logging.getLogger("remoting")

PAUSE_MS = 500
"""Pause before a controller that was lost is dialled again."""
UNKNOWN_PAUSE_S = 60.0
"""Pause before a name server that pushes no routes is asked again whether it does."""
SUBSCRIBE_TIMEOUT_MS = 3_000
ASK_EVERY_S = 5.0
"""How often a controller that pushes is asked all the same; one that does not answer is dialled again."""

Heard = Callable[[PushedRoutes], None]


class RouteWatch:
    """Subscribed to the routes of every controller that can be reached."""

    def __init__(self, controllers: Sequence[str], heard: Heard, *, dial: Dial) -> None:
        self._heard = heard
        self._lines = {
            address: ReconnectingConnection(
                partial(dial, address), address, pause_first_ms=PAUSE_MS, pause_ms_max=PAUSE_MS
            )
            for address in controllers
        }
        self._woken = {address: asyncio.Event() for address in self._lines}
        self._tasks: list[asyncio.Task[None]] = []
        self.subscribed: set[str] = set()
        """Controllers that push routes to this client."""

    def start(self) -> None:
        """Begin; waits for nothing."""
        if self._tasks:
            return
        for address, line in self._lines.items():
            line.on_push(partial(self._pushed, address))
            line.on_down(partial(self._lost, address))
            line.start()
            self._tasks.append(asyncio.get_running_loop().create_task(self._watch(address, line)))

    async def stop(self) -> None:
        """End the subscriptions and their connections."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *[line.close() for line in self._lines.values()], return_exceptions=True)

    def ask(self) -> None:
        """Ask every controller that pushes now: something seems to have changed."""
        for address in self.subscribed:
            self._woken[address].set()

    async def _watch(self, address: str, line: ReconnectingConnection) -> None:
        """Subscribe again and again for as long as the connection lasts."""
        woken, logged = self._woken[address], ""
        while True:
            if not line.up:
                with contextlib.suppress(ConnectionLost):
                    await line.wait_up(SUBSCRIBE_TIMEOUT_MS)
                continue
            woken.clear()
            pause_s = ASK_EVERY_S
            try:
                await self._subscribe(address, line)
            except LightMQError as error:
                self.subscribed.discard(address)
                if str(error) != logged:
                    logged = str(error)
                    LOG.info("no routes are received from %s: %s", address, error)
                if isinstance(error, Refused) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    pause_s = UNKNOWN_PAUSE_S
                else:
                    line.abort("no routes are received")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await woken.wait()

    async def _subscribe(self, address: str, line: ReconnectingConnection) -> None:
        command = Command(RequestCode.SUBSCRIBE_ROUTES, body=encode_body(RouteSubscription()))
        answer = checked(await line.request(command, SUBSCRIBE_TIMEOUT_MS))
        self._heard(decode_body(answer.body, PushedRoutes))
        self.subscribed.add(address)

    def _lost(self, address: str, _reason: str) -> None:
        self.subscribed.discard(address)
        self._woken[address].set()

    def _pushed(self, address: str, command: Command) -> None:
        if command.code != RequestCode.ROUTES_CHANGED:
            return
        with contextlib.suppress(LightMQError):
            self._heard(decode_body(command.body, PushedRoutes))
            return
        LOG.warning("%s pushed routes that cannot be read", address)
