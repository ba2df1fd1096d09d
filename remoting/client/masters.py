"""Who is the master of a broker group: told by brokers and controllers, else asked of the controllers.

    NOT_MASTER ──┐
    push ────────┼──▶ told(address, epoch) ──▶ whoever follows drops its connection and dials the new master
    question ────┘

Who was told last under the highest epoch is dialled first; when nobody answers there the controllers are asked. While
controllers push, their word with its epoch stands against any answer without one, which may be older. Without a name
the first group by name that has a master is taken, and kept: sessions and offsets live in one group.
Invariant: what is told under an older epoch than what is known changes nothing. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from remoting.client.connection import dial as dial_socket
from remoting.client.route import Dial, Routes
from remoting.client.route_watch import RouteWatch
from remoting.protocol.codes import ResponseCode
from remoting.protocol.controller_body import PushedRoutes
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.route_body import MASTER_ID
from remoting.transport.contracts import Connection
from remoting.transport.failures import ConnectionLost, NotMaster

LOG = logging.getLogger("remoting")

ASK_EVERY = 2
"""Who says that it is not the master is dialled again as often as the controllers are asked."""

Moved = Callable[[str], None]
"""Called with the address of a new master; with an empty one when a master may be found that was missing."""


class Masters:
    """The master of one broker group."""

    def __init__(self, controllers: Sequence[str], broker_name: str = "", *, dial: Dial = dial_socket) -> None:
        self.broker_name = broker_name
        """The group; empty until the first master of any was found."""
        self.address = ""
        """The master as last told or found; empty when nobody knows."""
        self.epoch = 0
        self._controllers = tuple(controllers)
        self._routes = Routes(controllers, dial=dial)
        self._watch = RouteWatch(controllers, self._heard, dial=dial)
        self._dial = dial
        self._moved: list[Moved] = []
        self._denials = 0
        """How often who we hold for the master said that it is not."""
        self._checking: asyncio.Task[None] | None = None

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
        if epoch < self.epoch:
            return
        self.epoch = epoch
        if address == self.address:
            return
        self.address, self._denials = address, 0
        if address:
            LOG.info("the master of %s is now %s, epoch %d", self.broker_name or "the group", address, epoch)
            for callback in self._moved:
                callback(address)

    def refused(self, answer: NotMaster, by: str) -> None:
        """A broker said that it is not the master; it may know who is."""
        if answer.address and answer.address != by:
            self.told(answer.address, answer.epoch)
        elif self.address == by:
            # Whom the controllers just named may still be on the way to being it.
            self._denials += 1

    def _heard(self, routes: PushedRoutes) -> None:
        """A controller tells of groups that changed, one of which may be ours."""
        group = routes.groups.get(self.broker_name)
        if group is not None:
            self.told(group.brokers.get(MASTER_ID, ""), group.epoch)
        elif not self.broker_name and not self.address:
            for callback in self._moved if any(MASTER_ID in one.brokers for one in routes.groups.values()) else ():
                callback("")  # somebody leads some group: it pays to ask now

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
            self.told(await self._find(), self.epoch)
        except LightMQError as error:
            LOG.info("nobody says who is the master of %s: %s", self.broker_name or "the group", error)

    async def dial(self) -> Connection:
        """A connection to the master. Raises what went wrong, also when there is no master at the moment."""
        known = self.address
        asks = self._denials % ASK_EVERY != 0
        if asks and self._watch.subscribed:
            self._watch.ask()
            asks = False
        if known and not asks:
            try:
                return await self._dial(known)
            except ConnectionLost:
                if self.address == known:
                    self.address = ""
        try:
            found = await self._find()
        except LightMQError:
            if not self.address:
                raise
            self._denials = 0
            return await self._dial(self.address)
        connection = await self._dial(found)
        if found != self.address:
            self.address, self._denials = found, 0
        return connection

    async def _find(self) -> str:
        """Ask the controllers."""
        if self.broker_name:
            return await self._routes.master(self.broker_name, refresh=True)
        cluster = await self._routes.cluster(refresh=True)
        for name in sorted(cluster.broker_addr_table):
            address = cluster.broker_addr_table[name].master()
            if address is not None:
                self.broker_name = name
                return address
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "no broker is registered at " + ", ".join(self._controllers))
