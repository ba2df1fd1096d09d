"""Where a client is connected to, and the connection: one broker by its address, or the master of a broker group.

    async with connect("127.0.0.1:9876") as connection: ...
    async with connect(controllers=["10.0.0.1:9876", "10.0.0.2:9876"], broker_name="broker-a") as connection: ...

Invariant: nothing is waited for: the connection is made in the background and made again whenever it is lost, and what
is asked meanwhile waits for it within its own time limit. Loop rule: on the loop's thread; a
`BackgroundConnection` has a loop on a thread of its own, and is called from any other thread.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from remoting.client.connection import connect as connect_socket
from remoting.client.tls import ClientTls
from remoting.client.uplink import Uplink
from remoting.protocol.errors import LocalMisuse
from remoting.transport.contracts import Connection
from remoting.transport.failures import split_address
from remoting.transport.signature import Signer

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A broker's `address`, or the `controllers` and the name of the group whose master is followed.

    Without a name it is the first group that has a master. Raises LocalMisuse for both or neither, ValueError for what
    is no address.
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
        """Keep a connection up; does not wait for it."""
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
    """A connection for `AsyncProducer`, `AsyncConsumer` and `AsyncAdmin`, closed with the `async with` block."""
    async with Endpoint(address, controllers, broker_name, signer, tls).connected() as uplink:
        yield uplink.connection


class BackgroundConnection:
    """An event loop on a thread, with a connection that it keeps up; made without waiting for a server."""

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
        """Run a coroutine on the loop and wait for its result; who is interrupted while waiting cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Have the loop call `callback`; does not wait."""
        self._loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Close the connection and end the thread; nothing when that has been done."""
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


class Closing(abc.ABC):
    """A client for threads that is closed at the end of a `with` block."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
