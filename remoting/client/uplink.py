"""The reconnecting connection of a process to its broker: one broker by its address, or the master of a group.

    line        reconnects whenever the connection is lost, and reports when it is up and when it is down
    connection  takes the requests: the line itself, or a `MasterConnection` over it
    masters     finds the master; None for a fixed broker

    async with connect("127.0.0.1:9876") as connection: ...
    async with connect(controllers=["10.0.0.1:9876", "10.0.0.2:9876"], broker_name="broker-a") as connection: ...

A request that a broker refused because it is not the master was not carried out: it is repeated at the master, within
its own time limit. One that was begun before the broker ceased to be master fails with `NotMaster`, a `ConnectionLost`:
whether it was carried out is unknown, as when a connection breaks.
Invariant: no answer NOT_MASTER reaches a caller; nothing here waits for a connection: a request made while the line is
down waits for it within its own time limit. Loop rule: all on the loop's thread; a `BackgroundConnection` has a loop on
a thread of its own, and is called from any other thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from remoting import clock
from remoting.client.connection import PAUSE_FIRST_MS, PAUSE_MS_MAX, ReconnectingConnection
from remoting.client.connection import connect as connect_socket
from remoting.client.masters import Masters
from remoting.client.tls import ClientTls
from remoting.protocol.addresses import split_address
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import REQUEST_TIMEOUT_MS, Answered, CloseCallback, Connection, Dial, PushCallback
from remoting.transport.failures import ConnectionLost, NotMaster, RequestTimeout, not_master
from remoting.transport.signature import Signer


class MasterConnection:
    """Sends requests to the master, over a line that dials through `masters`."""

    def __init__(self, line: ReconnectingConnection, masters: Masters, *, stays: bool = False) -> None:
        """`stays`: with a replica that stands in for the master, although it refuses some requests."""
        self.address = line.address
        self._line = line
        self._stays = stays
        self._masters = masters
        masters.on_moved(self._moved)

    @property
    def closed(self) -> bool:
        """True after `close`; a connection that is merely down is not closed."""
        return self._line.closed

    @property
    def writable(self) -> bool:
        """False while it is down or its output is above the limit."""
        return self._line.writable

    async def request(self, command: Command, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Command:
        """Send a request to the master and return its answer, within one time limit even if the master changes."""
        deadline = clock.monotonic_s() + timeout_ms / 1000
        while True:
            left_ms = int((deadline - clock.monotonic_s()) * 1000)
            if left_ms <= 0:
                raise RequestTimeout(command.code, self.address, timeout_ms)
            connection = await self._line.wait_up(left_ms)
            if connection.closed:
                await asyncio.sleep(0)  # it was dropped in this turn
                continue
            response = await self._asked(connection, _copy(command), left_ms)
            refusal = not_master(response)
            if refusal is None:
                return response
            self.leave(connection.address, refusal)
            if refusal.is_begun or self._is_kept(refusal):
                raise refusal

    async def _asked(self, connection: Connection, command: Command, timeout_ms: int) -> Command:
        try:
            return await connection.request(command, timeout_ms)
        except RequestTimeout:
            self._masters.check()  # a suspended broker does not report its successor
            raise

    def call(self, command: Command, answered: Answered, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """Send a request with a callback; a refusal by a broker that is not the master is reported as `NotMaster`."""
        by = self._line.connected_to

        def judged(response: Command | None, error: Exception | None) -> None:
            refusal = None if response is None else not_master(response)
            if refusal is not None:
                self.leave(by, refusal)
                answered(None, refusal)
            else:
                answered(response, error)

        self._line.call(command, judged, timeout_ms)

    def oneway(self, command: Command) -> None:
        """Send a request that gets no answer; `ConnectionLost` while it is down."""
        self._line.oneway(command)

    def on_push(self, callback: PushCallback) -> None:
        """Call `callback(command)` for each push of this and all later masters."""
        self._line.on_push(callback)

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` when it is closed by `close`."""
        self._line.on_close(callback)

    def abort(self, reason: str) -> None:
        """Abort the current connection; another one is made after a pause."""
        self._line.abort(reason)

    async def close(self) -> None:
        """Close the line without reconnecting."""
        await self._line.close()

    def leave(self, by: str, refusal: NotMaster) -> None:
        """Leave the broker at `by`, which is not the master: dial the one that is, after a pause if unknown."""
        if self._is_kept(refusal):
            return
        is_there = self._line.connected_to == by
        self._masters.refused(refusal, by)
        if not is_there:
            return
        if self._masters.address not in ("", by):
            self._line.drop(str(refusal))
        else:
            self._line.abort(str(refusal))

    def _is_kept(self, refusal: NotMaster) -> bool:
        return self._stays and refusal.is_acting

    def _moved(self, address: str) -> None:
        """Leave any master but the one at `address`. Without an address: try again, there may be a master now."""
        if not self._line.up or (address and self._line.connected_to != address):
            self._line.drop(f"the master is {address} now")


def _copy(command: Command) -> Command:
    """Return a copy, because each attempt needs its own command."""
    return Command(command.code, flag=command.flag, fields=dict(command.fields), body=command.body)


MASTER_PAUSE_FIRST_MS = 10
"""First pause: clients are notified of an election at the same moment as the new master."""

MASTER_PAUSE_MS_MAX = 500
"""Longest pause between two attempts: a group without a master has one within seconds."""


class Uplink:
    """The connection with its search for the master, from `start` to `close`."""

    def __init__(
        self,
        dial: Callable[[], Awaitable[Connection]],
        name: str = "the broker",
        *,
        masters: Masters | None = None,
        pause_first_ms: int = PAUSE_FIRST_MS,
        pause_ms_max: int = PAUSE_MS_MAX,
        stays: bool = False,
    ) -> None:
        """`dial` connects to the broker `name`; with `masters`, they choose the address.

        `stays`: with a replica that stands in for the master; what that refuses fails with `NotMaster` at once.
        """
        self._masters = masters
        self._master: MasterConnection | None = None
        if masters is None:
            self.line = ReconnectingConnection(dial, name, pause_first_ms=pause_first_ms, pause_ms_max=pause_ms_max)
            self.connection: Connection = self.line
            return
        self.line = ReconnectingConnection(
            masters.dial,
            f"the master of {masters.broker_name or 'the group'}",
            pause_first_ms=min(pause_first_ms, MASTER_PAUSE_FIRST_MS),
            pause_ms_max=min(pause_ms_max, MASTER_PAUSE_MS_MAX),
        )
        self.connection = self._master = MasterConnection(self.line, masters, stays=stays)

    @classmethod
    def configured(
        cls,
        dial: Dial,
        address: str,
        controllers: Sequence[str],
        broker_name: str,
        *,
        present: Connection | None = None,
        pause_first_ms: int = PAUSE_FIRST_MS,
        pause_ms_max: int = PAUSE_MS_MAX,
        stays: bool = False,
        has_mqtt: bool = False,
    ) -> Uplink:
        """Make an uplink to the broker at `address` or, without one, to the group's master named by `controllers`.

        `present` is the connection to a broker inside this process; `stays` as at the constructor. `has_mqtt`: to the
        group that has MQTT, as the controllers hold it.
        """

        async def dial_broker() -> Connection:
            if present is None:
                return await dial(address)
            if present.closed:
                raise ConnectionLost("the broker of this process has stopped")
            return present

        name, masters = address or "the broker", None
        if present is None and not address:
            masters = Masters(controllers, broker_name, dial=dial, has_mqtt=has_mqtt)
        return cls(
            dial_broker, name, masters=masters, pause_first_ms=pause_first_ms, pause_ms_max=pause_ms_max, stays=stays
        )

    @property
    def broker_name(self) -> str:
        """The group whose master is followed; empty until it is known, and for a fixed broker."""
        return "" if self._masters is None else self._masters.broker_name

    def start(self) -> None:
        """Begin to connect, without waiting."""
        if self._masters is not None:
            self._masters.start()
        self.line.start()

    def leave(self, by: str, refusal: NotMaster) -> None:
        """Leave the broker at `by`, which is not the master of its group, and dial again after a pause."""
        if self._master is not None:
            self._master.leave(by, refusal)
        elif self.line.connected_to == by:
            self.line.abort(str(refusal))

    async def close(self) -> None:
        """Close the connection, and those to the controllers."""
        await self.line.close()
        if self._masters is not None:
            await self._masters.stop()


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A broker's `address`, or the `controllers` and the name of the group whose master is followed.

    Without a name it is the first group that has a master. Raises LocalMisuse for both or neither, ValueError for a
    malformed address.
    """

    address: str = ""
    controllers: Sequence[str] = ()
    broker_name: str = ""
    signer: Signer | None = None
    tls: ClientTls | None = None

    def __post_init__(self) -> None:
        if bool(self.address) == bool(self.controllers):
            raise LocalMisuse("a client is given either a broker's address or its controllers")
        for each in self.controllers or (self.address,):
            split_address(each)

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Uplink]:
        """Keep a connection for the `async with` block, without waiting for it to be up."""
        uplink = Uplink.configured(self._dial, self.address, self.controllers, self.broker_name)
        uplink.start()
        try:
            yield uplink
        finally:
            await uplink.close()

    async def _dial(self, address: str) -> Connection:
        host, port = split_address(address)
        return await connect_socket(host, port, signer=self.signer, tls=self.tls)


@contextlib.asynccontextmanager
async def connect(
    address: str = "",
    *,
    controllers: Sequence[str] = (),
    broker_name: str = "",
    signer: Signer | None = None,
    tls: ClientTls | None = None,
) -> AsyncIterator[Connection]:
    """Connect for `AsyncProducer`, `AsyncConsumer` and `AsyncAdmin`; closed with the `async with` block."""
    async with Endpoint(address, controllers, broker_name, signer, tls).connected() as uplink:
        yield uplink.connection


class BackgroundConnection:
    """An event loop on a thread, with a reconnecting connection; made without waiting for a server."""

    def __init__(self, endpoint: Endpoint, *, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()
        self._opened = contextlib.AsyncExitStack()
        self.uplink: Uplink = self.run(self._opened.enter_async_context(endpoint.connected()))

    @property
    def is_closed(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop and wait for its result; an interrupted wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call `callback` on the loop's thread, without waiting."""
        self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Close the connection and end the thread; idempotent."""
        if self.is_closed:
            return
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _end(self) -> None:
        await self._opened.aclose()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


class Closing:
    """A client for threads with a connection of its own, closed at the end of a `with` block."""

    _background: BackgroundConnection

    def close(self) -> None:
        """Close the connection."""
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
