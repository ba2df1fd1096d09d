"""Hears from every controller which brokers lead their groups, as soon as a controller knows (9060, 9061).

One connection to each controller, made again when it is lost: whichever of them hears first tells. Each is also asked
every few seconds, because a push may be lost with a connection that nobody has seen break. A name server that does not
know these codes is asked again now and then; its clients find masters by asking, as ever.
Invariant: a controller that is away or says nonsense costs a pause and a log line, nothing else. Loop rule: all on the
loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial

from remoting.protocol.bodies.controller_body import PushedRoutes, RouteSubscription
from remoting.protocol.bodies.route_body import decode_body, encode_body
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import checked

LOG = logging.getLogger("remoting")

PAUSE_S = 0.5
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
        self._controllers = list(controllers)
        self._heard = heard
        self._dial = dial
        self._tasks: list[asyncio.Task[None]] = []
        self._woken: dict[str, asyncio.Event] = {}
        self.subscribed: set[str] = set()
        """Controllers that tell us."""

    def start(self) -> None:
        """Begin; waits for nothing."""
        loop = asyncio.get_running_loop()
        self._tasks = self._tasks or [loop.create_task(self._watch(address)) for address in self._controllers]

    async def stop(self) -> None:
        """End the subscriptions and their connections."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ask(self) -> None:
        """Ask every controller that tells us now: something seems to have changed."""
        for address in self.subscribed:
            self._woken[address].set()

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
                LOG.info("no routes are received from %s: %s", address, reason)
                said = reason
            await asyncio.sleep(pause_s)

    async def _hear(self, connection: Connection, address: str) -> str:
        """Subscribe, again and again, until the end of the connection; why it ended."""
        woken = self._woken[address] = asyncio.Event()
        ended: list[str] = []

        def closed(reason: str) -> None:
            ended.append(reason)
            woken.set()

        connection.on_push(partial(self._pushed, address))
        connection.on_close(closed)
        while not ended:
            woken.clear()
            command = Command(RequestCode.SUBSCRIBE_ROUTES, body=encode_body(RouteSubscription()))
            answer = checked(await connection.request(command, SUBSCRIBE_TIMEOUT_MS))
            self._heard(decode_body(answer.body, PushedRoutes))
            self.subscribed.add(address)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_EVERY_S):
                    await woken.wait()
        return ended[0]

    def _pushed(self, address: str, command: Command) -> None:
        if command.code != RequestCode.ROUTES_CHANGED:
            return
        with contextlib.suppress(LightMQError):
            self._heard(decode_body(command.body, PushedRoutes))
            return
        LOG.warning("%s pushed routes that cannot be read", address)
