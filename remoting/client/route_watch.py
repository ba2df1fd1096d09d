"""Hears from every controller which brokers lead their groups, as soon as a controller knows (9060, 9061).

One connection to each controller, made again when it is lost: whichever of them hears first tells. A name server that
does not know these codes is asked again now and then; its clients find masters by asking, as ever.
Invariant: a controller that is away or says nonsense costs a pause and a log line, nothing else. Loop rule: all on the
loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial

from remoting.client.route import Dial
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.controller_body import PushedRoutes, RouteSubscription
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.route_body import decode_body, encode_body
from remoting.transport.contracts import Connection
from remoting.transport.failures import checked

LOG = logging.getLogger("remoting")

PAUSE_S = 0.5
"""Pause before a controller that was lost is dialled again."""
UNKNOWN_PAUSE_S = 60.0
"""Pause before a name server that pushes no routes is asked again whether it does."""
SUBSCRIBE_TIMEOUT_MS = 3_000

Heard = Callable[[PushedRoutes], None]


class RouteWatch:
    """Subscribed to the routes of every controller that can be reached."""

    def __init__(self, controllers: Sequence[str], heard: Heard, *, dial: Dial) -> None:
        self._controllers = list(controllers)
        self._heard = heard
        self._dial = dial
        self._tasks: list[asyncio.Task[None]] = []
        self.subscribed: set[str] = set()
        """Controllers that tell us."""

    def start(self) -> None:
        """Begin; waits for nothing."""
        loop = asyncio.get_running_loop()
        self._tasks = self._tasks or [loop.create_task(self._watch(address)) for address in self._controllers]

    async def stop(self) -> None:
        """Hear no more."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, address: str) -> None:
        said = ""
        while True:
            pause_s = PAUSE_S
            try:
                connection = await self._dial(address)
            except (LightMQError, OSError, TimeoutError) as error:
                reason = str(error)
            else:
                try:
                    reason = await self._hear(connection, address)
                except Refused as refused:
                    reason = str(refused)
                    if refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                        pause_s = UNKNOWN_PAUSE_S
                except LightMQError as error:
                    reason = str(error)
                finally:
                    self.subscribed.discard(address)
                    connection.abort("not subscribed any more")
            if reason != said:
                LOG.info("no routes are heard from %s: %s", address, reason)
                said = reason
            await asyncio.sleep(pause_s)

    async def _hear(self, connection: Connection, address: str) -> str:
        """Subscribe, then wait for the end of the connection; why it ended."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def closed(reason: str) -> None:
            if not ended.done():
                ended.set_result(reason)

        connection.on_push(partial(self._pushed, address))
        connection.on_close(closed)
        command = Command(RequestCode.SUBSCRIBE_ROUTES, body=encode_body(RouteSubscription()))
        answer = checked(await connection.request(command, SUBSCRIBE_TIMEOUT_MS))
        self._heard(decode_body(answer.body, PushedRoutes))
        self.subscribed.add(address)
        return await ended

    def _pushed(self, address: str, command: Command) -> None:
        if command.code != RequestCode.ROUTES_CHANGED:
            return
        with contextlib.suppress(LightMQError):
            self._heard(decode_body(command.body, PushedRoutes))
            return
        LOG.warning("%s pushed routes that cannot be read", address)
