"""Where a client is connected to, and the connection: one broker by its address, or the master of a broker group.

    async with connect("127.0.0.1:9876") as connection: ...
    async with connect(controllers=["10.0.0.1:9876", "10.0.0.2:9876"], broker_name="broker-a") as connection: ...

Invariant: nothing is waited for: the connection is made in the background and made again whenever it is lost, and what
is asked meanwhile waits for it within its own time limit. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from remoting.client.connection import connect as connect_socket
from remoting.client.master_connection import MasterConnection
from remoting.client.masters import Masters
from remoting.client.reconnecting import ReconnectingConnection
from remoting.client.tls import ClientTls
from remoting.protocol.errors import LocalMisuse
from remoting.transport.contracts import Connection
from remoting.transport.failures import split_address
from remoting.transport.signature import Signer


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
    async def connected(self) -> AsyncIterator[ReconnectingConnection]:
        """Keep a connection up; does not wait for it."""
        masters = None
        if self.controllers:
            masters = Masters(self.controllers, self.broker_name, dial=self._dial)
            connection: ReconnectingConnection = MasterConnection(masters)
            masters.start()
        else:
            connection = ReconnectingConnection(lambda: self._dial(self.address), self.address)
        connection.start()
        try:
            yield connection
        finally:
            await connection.close()
            if masters is not None:
                await masters.stop()

    async def _dial(self, address: str) -> Connection:
        host, port = split_address(address)
        return await connect_socket(host, port, signer=self.signer, tls=self.tls)


def connect(
    address: str = "",
    *,
    controllers: Sequence[str] = (),
    broker_name: str = "",
    signer: Signer | None = None,
    tls: ClientTls | None = None,
) -> contextlib.AbstractAsyncContextManager[ReconnectingConnection]:
    """A connection for `AsyncProducer`, `AsyncConsumer` and `AsyncAdmin`, closed with the `async with` block."""
    return Endpoint(address, controllers, broker_name, signer, tls).connected()
