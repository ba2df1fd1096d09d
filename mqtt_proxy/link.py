"""The proxy's one connection to a broker: in-process, or TCP that reconnects whenever it is lost.

Requests are sent in the order of the calls (`call`, `post`, `request` alike), which everything above relies on: a
SESSION_CLOSE posted before a SESSION_OPEN is handled before it. A request ends with its reply's body, `Refused`, or
`LinkDownError` when it is unknown whether the broker executed it. Listeners of `up` are called after every
(re)connection, those of `down` after every loss.
Invariant: between `down` and the next `up` no request is sent. Loop rule: everything on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from remoting.client.uplink import Uplink
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.transport.contracts import REQUEST_TIMEOUT_MS, Connection, PushCallback
from remoting.transport.failures import NotMaster, not_master, refusal
from runtime.logs import get_logger

Done = Callable[[bytes, Exception | None], None]
"""Called with the reply's body and None, or with b"" and `Refused` or `LinkDownError`."""


class LinkDownError(LightMQError):
    """The broker cannot be reached, or was lost before it answered."""


class _Asked:
    """A request in flight: its callback, and the connection it was sent on."""

    __slots__ = ("_connection", "_done", "_link")

    def __init__(self, link: Link, connection: Connection, done: Done) -> None:
        self._link = link
        self._connection = connection
        self._done = done

    def answered(self, reply: Command | None, error: Exception | None) -> None:
        """The connection's answer, or its failure."""
        if reply is None:
            self._done(b"", LinkDownError(str(error)))
        elif reply.code == 0:
            self._done(reply.body, None)
        elif (denial := not_master(reply)) is not None:
            self._done(b"", self._link.not_master(self._connection, denial))
        else:
            self._done(b"", refusal(reply))


class Link:
    """A connection that reconnects. `start` begins to connect, `wait_up` waits for the first success."""

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink
        self._line = uplink.line
        self._connection: Connection | None = None
        self._pushes: dict[int, PushCallback] = {}
        self._stopping = False
        self._first = asyncio.Event()
        self._log = get_logger("proxy.link")
        self._line.on_up(self._came_up)
        self._line.on_down(self._went_down)
        self._line.on_push(self._pushed)

    @property
    def up(self) -> bool:
        """Whether requests can be made now."""
        return self._connection is not None and not self._connection.closed

    @property
    def reason(self) -> str:
        """Why no request can be made now; empty when one can."""
        return "" if self.up else f"the broker cannot be reached: {self._line.reason}"

    def on_up(self, callback: Callable[[], None]) -> None:
        """Call after every connection made, in order of registration."""
        self._line.on_up(lambda _connection: callback(), at_once=False)

    def on_down(self, callback: Callable[[str], None]) -> None:
        """Call with the reason after every loss."""
        self._line.on_down(lambda reason: None if self._stopping else callback(reason))

    def on_push(self, code: int, callback: PushCallback) -> None:
        """Call with each command of this code that the broker sends on its own."""
        self._pushes[code] = callback

    async def start(self) -> None:
        """Begin to connect; does not wait for success."""
        self._uplink.start()

    async def wait_up(self) -> None:
        """Wait for the first connection."""
        await self._first.wait()

    async def stop(self) -> None:
        """Close and do not reconnect."""
        self._stopping = True
        await self._uplink.close()

    def post(
        self,
        code: int,
        body: bytes,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        *,
        fields: dict[str, str] | None = None,
    ) -> asyncio.Future[bytes]:
        """Send a request; the future resolves to the reply's body. Raises LinkDownError at once without a
        connection."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def done(reply: bytes, error: Exception | None) -> None:
            if future.done():  # the waiting task was cancelled
                return
            if error is None:
                future.set_result(reply)
            else:
                future.set_exception(error)

        self.call(code, body, done, timeout_ms, fields=fields)
        return future

    def call(
        self,
        code: int,
        body: bytes,
        done: Done,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        *,
        fields: dict[str, str] | None = None,
    ) -> None:
        """Send a request; `done` follows, never inside this call. Raises LinkDownError when down."""
        connection = self._connection
        if connection is None or connection.closed:
            raise LinkDownError("no connection to the broker")

        command = Command(code, 0, 0, None, fields or {}, body)
        connection.call(command, _Asked(self, connection, done).answered, timeout_ms)

    def oneway(self, code: int, body: bytes) -> None:
        """Send a request that gets no answer. Raises LinkDownError when down."""
        connection = self._connection
        if connection is None or connection.closed:
            raise LinkDownError("no connection to the broker")
        connection.oneway(Command(code, flag=FLAG_ONEWAY, body=body))

    async def request(self, code: int, body: bytes, timeout_ms: int = REQUEST_TIMEOUT_MS) -> bytes:
        """Send a request and wait for its reply's body. Raises Refused or LinkDownError."""
        return await self.post(code, body, timeout_ms)

    def drop(self, reason: str) -> None:
        """Drop the connection and reconnect: unanswered requests fail with LinkDownError first."""
        self._line.drop(reason)

    def not_master(self, connection: Connection, denial: NotMaster) -> LinkDownError:
        """Drop a connection whose broker does not lead the group; returns the error of the request."""
        self._uplink.leave(connection.address, denial)
        return LinkDownError(str(denial))

    def _came_up(self, connection: Connection) -> None:
        self._connection = connection
        self._log.info("broker_connected", address=connection.address)
        self._first.set()

    def _went_down(self, reason: str) -> None:
        self._connection = None
        if not self._stopping:
            self._log.warning("broker_lost", reason=reason)

    def _pushed(self, command: Command) -> None:
        callback = self._pushes.get(command.code)
        if callback is None:
            self._log.warning("push_unknown", code=command.code)
            return
        try:
            callback(command)
        except LightMQError as error:
            self._log.error("push_unreadable", code=command.code, error=str(error))
