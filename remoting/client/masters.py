"""The master of a broker group, as named by brokers and controllers, or by asking the controllers.

    NOT_MASTER ──┐
    push ────────┼──▶ named(address, epoch) ──▶ connections to it are dropped and dial the new master
    question ────┘

`master_link.py` decides; this module carries that out on a loop. While controllers push, their pushes, which have an
epoch, prevail over answers without one, which may be older.

`RouteWatch` keeps a connection to each controller and receives the masters of groups as soon as they are elected (9060,
9061). Each controller is also polled every few seconds, because a push may be lost with a connection whose end went
unnoticed. A name server without these codes is tried again from time to time; its clients find masters by asking.
Invariant: a controller that is down or sends malformed data costs a pause and a log line, nothing else. Loop rule: all
on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial

from remoting import background
from remoting.client.connection import ReconnectingConnection
from remoting.client.master_link import DialMaster, MasterLink
from remoting.protocol.bodies.controller_body import (
    LEADER_ADDRESS_FIELD,
    ClusterInfo,
    PushedRoutes,
    RouteSubscription,
    decode_body,
    encode_body,
)
from remoting.protocol.errors import LightMQError, LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import ConnectionLost, NotMaster, RequestTimeout, checked

LOG = logging.getLogger("remoting")

PAUSE_MS = 500
"""Pause before a lost controller is dialled again."""
UNKNOWN_PAUSE_S = 60.0
"""Pause before a name server that pushes no routes is tried again."""
SUBSCRIBE_TIMEOUT_MS = 3_000
ASK_EVERY_S = 5.0
"""How often a controller that pushes is polled as well; one that does not answer is dialled again."""

RoutesCallback = Callable[[PushedRoutes], None]


class RouteWatch:
    """Subscriptions to the routes of every controller that can be reached."""

    def __init__(self, controllers: Sequence[str], received: RoutesCallback, *, dial: Dial) -> None:
        self._received = received
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
        """Begin to connect and subscribe, without waiting."""
        if self._tasks:
            return
        for address, line in self._lines.items():
            line.on_push(partial(self._pushed, address))
            line.on_down(partial(self._lost, address))
            line.start()
            self._tasks.append(background.task(self._watch(address, line), f"receives routes from {address}"))

    async def stop(self) -> None:
        """End the subscriptions and their connections."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *[line.close() for line in self._lines.values()], return_exceptions=True)

    def ask(self) -> None:
        """Poll every controller that pushes now: something seems to have changed."""
        for address in self.subscribed:
            self._woken[address].set()

    @property
    def started(self) -> bool:
        """Whether routes are received, or will be once a controller can be reached."""
        return bool(self._tasks)

    def connection(self, address: str) -> Connection | None:
        """Return the connection to a controller; None while it is down."""
        line = self._lines[address]
        return line if line.up else None

    async def _watch(self, address: str, line: ReconnectingConnection) -> None:
        """Subscribe repeatedly while the connection lasts."""
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
        self._received(decode_body(answer.body, PushedRoutes))
        self.subscribed.add(address)

    def _lost(self, address: str, _reason: str) -> None:
        self.subscribed.discard(address)
        self._woken[address].set()

    def _pushed(self, address: str, command: Command) -> None:
        if command.code != RequestCode.ROUTES_CHANGED:
            return
        with contextlib.suppress(LightMQError):
            self._received(decode_body(command.body, PushedRoutes))
            return
        LOG.warning("%s pushed malformed routes", address)


MQTT_NOT_HELD = frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION})
"""Answers of name servers that do not hold the name of the group that has MQTT, or not for this key."""
ASK_TIMEOUT_MS = 3_000
"""How long one controller may take to answer before the next is asked."""

Moved = Callable[[str], None]
"""Called with the address of a new master; with an empty one when a missing master may have become available."""


class _Controllers:
    """The controllers, asked in turn with one request at a time; the one that answers is asked first the next time.

    Uses the connection on which a controller's routes are received if it is up, otherwise a separate one, which is
    closed after the question when routes are received at all.
    """

    def __init__(self, addresses: Sequence[str], watch: RouteWatch, dial: Dial) -> None:
        if not addresses:
            raise LocalMisuse("a master is found by the address of at least one controller")
        self._addresses = list(addresses)
        self._watch = watch
        self._dial = dial
        self._connections: dict[str, Connection] = {}
        self._asking = asyncio.Lock()

    async def cluster(self) -> ClusterInfo:
        """Return every broker group and its addresses. Raises `ConnectionLost` with all that did not answer."""
        async with self._asking:
            try:
                return await self._ask()
            finally:
                if self._watch.started:
                    await self.close()

    async def _ask(self) -> ClusterInfo:
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

    async def mqtt_group(self, wanted: str) -> str:
        """Return the group that has MQTT, as the leading controllers hold it; `wanted` is the configured one, if any.

        Name servers that do not hold it leave it to the configuration, which must name the group where there are
        several. Raises Refused for another group than the one held, ConnectionLost where no controller leads.
        """
        async with self._asking:
            try:
                held = await self._held(wanted)
            finally:
                if self._watch.started:
                    await self.close()
        if held:
            return held
        known = sorted((await self.cluster()).broker_addr_table)
        if not wanted and len(known) > 1:
            remark = (
                f"there are the broker groups {', '.join(known)}, and no controller holds which of them has MQTT: set "
                "broker_name at every proxy and bridge, to the same group"
            )
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        return wanted

    async def _held(self, wanted: str) -> str:
        """Ask every controller that leads: name servers that know nothing of one another each lead themselves."""
        waiting, failures = list(self._addresses), dict[str, str]()
        found: dict[str, str] = {}
        for address in waiting:  # which grows by a leader that is named
            try:
                connection = await self._connection(address)
                command = Command(RequestCode.MQTT_GROUP, fields={"brokerName": wanted} if wanted else {})
                answer = await connection.request(command, ASK_TIMEOUT_MS)
            except (ConnectionLost, RequestTimeout) as error:
                failures[address] = str(error)
                continue
            if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
                named = answer.fields.get(LEADER_ADDRESS_FIELD, "")
                failures[address] = answer.remark or "it does not lead"
                waiting += [named] if named and named not in waiting else []
            elif answer.code == ResponseCode.SYSTEM_BUSY:  # what it holds is not known now
                failures[address] = answer.remark or "it is busy"
            elif answer.code in MQTT_NOT_HELD:
                found[address] = ""
            else:
                found[address] = checked(answer).fields["brokerName"]
        names = {name for name in found.values() if name}
        if len(names) > 1:
            told = ", ".join(f"{address}: {name}" for address, name in sorted(found.items()))
            remark = f"name servers hold different broker groups for MQTT: {told}"
            raise Refused(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
        if not found:
            told = "; ".join(f"{address}: {why}" for address, why in failures.items())
            raise ConnectionLost(f"no controller tells which broker group has MQTT: {told}")
        return next(iter(names), "")

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    async def _connection(self, address: str) -> Connection:
        watched = self._watch.connection(address)
        if watched is not None:
            return watched
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = self._connections[address] = await self._dial(address)
        return connection


class Masters:
    """Follows the master of one broker group."""

    def __init__(
        self, controllers: Sequence[str], broker_name: str = "", *, dial: Dial, has_mqtt: bool = False
    ) -> None:
        """`has_mqtt`: it is the group that has MQTT, which the controllers hold; another `broker_name` is refused."""
        self._link = MasterLink(broker_name, asked=", ".join(controllers))
        self._asks_mqtt, self._wanted = has_mqtt, broker_name
        self._mqtt_group = ""
        """The group that has MQTT, once the controllers have told it."""
        self._watch = RouteWatch(controllers, self._routes_received, dial=dial)
        self._controllers = _Controllers(controllers, self._watch, dial)
        self._dial = dial
        self._moved: list[Moved] = []
        self._checking: asyncio.Task[None] | None = None

    @property
    def broker_name(self) -> str:
        """The group; empty until the first master of any was found."""
        return self._link.broker_name

    @property
    def address(self) -> str:
        """The master as last named or found; empty when it is unknown."""
        return self._link.address

    @property
    def epoch(self) -> int:
        """The highest epoch under which a master was named."""
        return self._link.epoch

    def start(self) -> None:
        """Begin to receive routes from the controllers."""
        self._watch.start()

    async def stop(self) -> None:
        """Close the connections to the controllers."""
        await self._watch.stop()
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
        await self._controllers.close()

    def on_moved(self, callback: Moved) -> None:
        """Call `callback(address)` when another broker has become the master."""
        self._moved.append(callback)

    def named(self, address: str, epoch: int) -> None:
        """Note the master and epoch named by a server; an empty address: the known one is no longer the master."""
        if self._link.named(address, epoch):
            self._announce()

    def refused(self, answer: NotMaster, by: str) -> None:
        """Note that a broker denied being the master; it may name the one that is."""
        if self._link.refused(answer, by):
            self._announce()

    def _routes_received(self, routes: PushedRoutes) -> None:
        if self._link.pushed(routes):
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
        """Check the master with the controllers, in the background.

        Those that push are asked for routes with epochs: one cut off from the others has only old ones.
        """
        if self._watch.subscribed:
            self._watch.ask()
        elif self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check())

    async def _check(self) -> None:
        try:
            self.named(self._link.choose(await self._controllers.cluster()), self.epoch)
        except LightMQError as error:
            LOG.info("the master of %s is unknown: %s", self._group, error)

    async def _agree_on_mqtt(self) -> None:
        """Learn, or make sure of, the group that has MQTT; without controllers the one that was told stays."""
        try:
            held = await self._controllers.mqtt_group(self._wanted)
        except (ConnectionLost, RequestTimeout):
            if not self._mqtt_group:
                raise
            return
        if self._mqtt_group and held not in ("", self._mqtt_group):
            remark = f"MQTT was moved from the broker group {self._mqtt_group!r} to {held!r}: restart this process"
            raise Refused(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
        if held:
            self._mqtt_group = self._link.broker_name = held

    async def dial(self) -> Connection:
        """Connect to the master. Raises the error, also when there is no master at the moment."""
        link = self._link
        if self._asks_mqtt:
            await self._agree_on_mqtt()
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
