"""Who is the master of a broker group: told by brokers and controllers, else asked of the controllers.

    NOT_MASTER ──┐
    push ────────┼──▶ told(address, epoch) ──▶ whoever follows drops its connection and dials the new master
    question ────┘

The decisions are those of `master_link.py`; here they are carried out on a loop. While controllers push, their word
with its epoch stands against any answer without one, which may be older. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from remoting.client.master_link import DialMaster, MasterLink
from remoting.client.route import Routes
from remoting.client.route_watch import RouteWatch
from remoting.protocol.bodies.controller_body import PushedRoutes
from remoting.protocol.errors import LightMQError
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import NotMaster

LOG = logging.getLogger("remoting")

Moved = Callable[[str], None]
"""Called with the address of a new master; with an empty one when a master may be found that was missing."""


class Masters:
    """The master of one broker group."""

    def __init__(self, controllers: Sequence[str], broker_name: str = "", *, dial: Dial) -> None:
        self._link = MasterLink(broker_name, asked=", ".join(controllers))
        self._routes = Routes(controllers, dial=dial)
        self._watch = RouteWatch(controllers, self._heard, dial=dial)
        self._dial = dial
        self._moved: list[Moved] = []
        self._checking: asyncio.Task[None] | None = None

    @property
    def broker_name(self) -> str:
        """The group; empty until the first master of any was found."""
        return self._link.broker_name

    @property
    def address(self) -> str:
        """The master as last told or found; empty when nobody knows."""
        return self._link.address

    @property
    def epoch(self) -> int:
        """The highest epoch under which a master was named."""
        return self._link.epoch

    def start(self) -> None:
        """Begin to hear from the controllers."""
        self._watch.start()

    async def stop(self) -> None:
        """Leave the controllers."""
        await self._watch.stop()
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
        await self._routes.close()

    def on_moved(self, callback: Moved) -> None:
        """Call `callback(address)` when somebody else has become the master."""
        self._moved.append(callback)

    def told(self, address: str, epoch: int) -> None:
        """Somebody says who is the master since which epoch; an empty address says that it is no longer who it was."""
        if self._link.told(address, epoch):
            self._announce()

    def refused(self, answer: NotMaster, by: str) -> None:
        """A broker said that it is not the master; it may know who is."""
        if self._link.refused(answer, by):
            self._announce()

    def _heard(self, routes: PushedRoutes) -> None:
        if self._link.heard(routes):
            self._announce()

    def _announce(self) -> None:
        if self.address:
            LOG.info("the master of %s is now %s, epoch %d", self._group, self.address, self.epoch)
        for callback in self._moved:
            callback(self.address)

    @property
    def _group(self) -> str:
        return self.broker_name or "the group"

    def check(self) -> None:
        """Ask the controllers in the background whether the master is still who it was.

        Those that push are asked for routes with epochs: one that is cut off from the others knows old ones only.
        """
        if self._watch.subscribed:
            self._watch.ask()
        elif self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check())

    async def _check(self) -> None:
        try:
            self.told(self._link.choose(await self._routes.cluster(refresh=True)), self.epoch)
        except LightMQError as error:
            LOG.info("nobody says who is the master of %s: %s", self._group, error)

    async def dial(self) -> Connection:
        """A connection to the master. Raises what went wrong, also when there is no master at the moment."""
        link = self._link
        if link.begin(is_pushed=bool(self._watch.subscribed)):
            self._watch.ask()
        while (step := link.next()) is not None:
            try:
                if isinstance(step, DialMaster):
                    connection = await self._dial(step.address)
                    link.reached(step.address)
                    return connection
                link.found(await self._routes.cluster(refresh=True))
            except LightMQError as error:
                link.failed(error)
        assert link.failure is not None
        raise link.failure
