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
from remoting.client.route_watch import RouteWatch
from remoting.protocol.bodies.controller_body import PushedRoutes
from remoting.protocol.bodies.route_body import ClusterInfo, decode_body
from remoting.protocol.errors import LightMQError, LocalMisuse
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import ConnectionLost, NotMaster, RequestTimeout, checked

LOG = logging.getLogger("remoting")

ASK_TIMEOUT_MS = 3_000
"""How long one controller may take before the next is asked."""

Moved = Callable[[str], None]
"""Called with the address of a new master; with an empty one when a master may be found that was missing."""


class _Controllers:
    """Whoever of them answers is asked; it is asked first the next time. One question is under way at a time."""

    def __init__(self, addresses: Sequence[str], dial: Dial) -> None:
        if not addresses:
            raise LocalMisuse("a master is found by the address of at least one controller")
        self._addresses = list(addresses)
        self._dial = dial
        self._connections: dict[str, Connection] = {}
        self._asking = asyncio.Lock()

    async def cluster(self) -> ClusterInfo:
        """Every broker group and its addresses; `ConnectionLost` names all that did not answer."""
        async with self._asking:
            failures: list[str] = []
            for address in list(self._addresses):
                try:
                    connection = await self._connection(address)
                    answer = await connection.request(Command(RequestCode.GET_BROKER_CLUSTER_INFO), ASK_TIMEOUT_MS)
                except (ConnectionLost, RequestTimeout) as error:
                    failures.append(str(error))
                    continue
                self._addresses.remove(address)
                self._addresses.insert(0, address)
                return decode_body(checked(answer).body, ClusterInfo)
        raise ConnectionLost("no controller answers: " + "; ".join(failures))

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    async def _connection(self, address: str) -> Connection:
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = self._connections[address] = await self._dial(address)
        return connection


class Masters:
    """The master of one broker group."""

    def __init__(self, controllers: Sequence[str], broker_name: str = "", *, dial: Dial) -> None:
        self._link = MasterLink(broker_name, asked=", ".join(controllers))
        self._controllers = _Controllers(controllers, dial)
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
        await self._controllers.close()

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
            self.told(self._link.choose(await self._controllers.cluster()), self.epoch)
        except LightMQError as error:
            LOG.info("the master of %s is unknown: %s", self._group, error)

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
                link.found(await self._controllers.cluster())
            except LightMQError as error:
                link.failed(error)
        assert link.failure is not None
        raise link.failure
