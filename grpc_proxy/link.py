"""The proxy's connection to the master of one broker group: one request, one answer, on behalf of one client.

A request carries the access key that its client has proved; the broker judges it by the rights of that key. While the
connection is down a request waits for it within its own time limit. A group that did not answer in time is passed over
for some seconds where another one can do the same.
A replica that stands in for the master refuses what only a master can do: the group cannot be reached for that.
Invariant: a request ends with an answer of code 0, `Refused`, `ConnectionLost` or `RequestTimeout`; after the last two
it is unknown whether it was carried out. Loop rule: everything on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from grpc_proxy.mapping.metadata import GrpcCaller
from remoting import clock
from remoting.client.uplink import Uplink
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection, PushCallback, RespondingConnection
from remoting.transport.failures import ConnectionLost, NotMaster, RequestTimeout, checked
from runtime.logs import get_logger

ON_BEHALF_FIELD, ON_BEHALF_HOST_FIELD, ON_BEHALF_CLIENT_FIELD = "onBehalfOf", "onBehalfHost", "onBehalfClient"
PASSED_OVER_S = 3.0
"""How long a group is passed over after a request that it did not answer in time, and for messages after a refusal."""


class BrokerLink:
    """Requests to one broker group."""

    def __init__(self, uplink: Uplink, *, name: str, timeout_ms: int) -> None:
        self.name = name
        """Of the broker group; of a broker that is given by its address it is known after the start."""
        self._uplink = uplink
        self._timeout_ms = timeout_ms
        self._passed_over_until_s = self._read_only_until_s = 0.0
        self._log = get_logger("grpc.link")
        self._stopping = False
        self._current: Connection | None = None
        """The newest connection; when it has ended, what is sent over it is dropped."""
        uplink.line.on_up(self._came_up)
        uplink.line.on_down(self._went_down)

    @property
    def up(self) -> bool:
        """Whether the group's master is connected."""
        return self._uplink.line.up

    @property
    def preferred(self) -> bool:
        """Whether its master is connected and has not let a request time out lately."""
        return self.up and clock.monotonic_s() >= self._passed_over_until_s

    @property
    def takes_messages(self) -> bool:
        """Whether no replica that stands in for its master has refused a request lately."""
        return clock.monotonic_s() >= self._read_only_until_s

    def on_push(self, callback: PushCallback) -> None:
        """Call with each command that the broker sends on its own."""
        self._uplink.line.on_push(callback)

    def responder(self) -> Callable[[Command], None]:
        """What answers the broker's requests over the connection that is up now; a later one gets none of it."""
        current = self._current
        return current.respond if isinstance(current, RespondingConnection) else lambda _answer: None

    def on_up(self, callback: Callable[[], None]) -> None:
        """Call after every connection made."""
        self._uplink.line.on_up(lambda _connection: callback(), at_once=False)

    def start(self) -> None:
        """Begin to connect, without waiting."""
        self._uplink.start()

    async def stop(self) -> None:
        """Close and do not reconnect."""
        self._stopping = True
        await self._uplink.close()

    async def request(
        self, caller: GrpcCaller | None, code: int, fields: dict[str, str], body: bytes = b"", *, wait_ms: int = 0
    ) -> Command:
        """Return the answer of code 0 to a request for a client, or for the proxy itself. Raises Refused for another.

        `wait_ms`: how long the broker waits by request.
        """
        answer = await self.answer(caller, code, fields, body, wait_ms=wait_ms)
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            raise ConnectionLost(answer.remark or f"the broker group {self.name} does not serve this now")
        return checked(answer)

    async def answer(
        self, caller: GrpcCaller | None, code: int, fields: dict[str, str], body: bytes = b"", *, wait_ms: int = 0
    ) -> Command:
        """Return the answer, whatever its code is."""
        if caller is not None:
            fields = {
                **fields, ON_BEHALF_FIELD: caller.key, ON_BEHALF_HOST_FIELD: caller.host,
                ON_BEHALF_CLIENT_FIELD: caller.client_id,
            }  # fmt: skip
        language = "PYTHON" if caller is None else caller.language
        command = Command(code, fields=fields, body=body, language=language)
        connection, timeout_ms = self._uplink.connection, self._timeout_ms + wait_ms
        try:
            if not self._uplink.line.up:
                return await connection.request(command, timeout_ms)
            answered = asyncio.get_running_loop().create_future()
            connection.call(command, partial(_answer, answered), timeout_ms)
            return cast("Command", await answered)
        except RequestTimeout:
            self._passed_over_until_s = clock.monotonic_s() + PASSED_OVER_S
            raise
        except NotMaster as refusal:
            if refusal.is_acting:
                self._read_only_until_s = clock.monotonic_s() + PASSED_OVER_S
            raise

    def _came_up(self, connection: Connection) -> None:
        self._current = connection
        self._log.info("broker_connected", broker=self.name, address=connection.address)

    def _went_down(self, reason: str) -> None:
        if not self._stopping:
            self._log.warning("broker_lost", broker=self.name, reason=reason)


def _answer(waiting: asyncio.Future[Command], answer: Command | None, error: Exception | None) -> None:
    """Give a request its answer, unless it is no longer waited for."""
    if waiting.done():
        return
    if error is not None:
        waiting.set_exception(error)
    elif answer is not None:
        waiting.set_result(answer)
