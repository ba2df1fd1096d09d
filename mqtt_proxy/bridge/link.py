"""The proxy's one connection to a broker: in-process, or TCP that is made again whenever it is lost.

Requests leave in the order of the calls (`post` and `request` alike), which everything above relies on: a
SESSION_CLOSE posted before a SESSION_OPEN is handled before it. A request ends in its reply's body, `Refused`, or
`LinkDownError` when nobody can say whether the broker carried it out. Listeners hear `up` after every (re)connection
and `down` after every loss.
Invariant: between `down` and the next `up` no request is sent. Loop rule: everything on the loop's thread.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

from remoting.protocol.commands import Command
from remoting.protocol.errors import LightMQError, Refused
from remoting.transport.contracts import REQUEST_TIMEOUT_MS, Connection, PushCallback
from runtime.logs import get_logger

Dial = Callable[[], Awaitable[Connection]]
"""Makes a connection to the broker, asking a controller where it is if need be; raises what went wrong."""

FIRST_DELAY_DIVISOR = 20
"""The first pause between two attempts is the longest one divided by this; it doubles from there."""


class LinkDownError(LightMQError):
    """The broker cannot be reached, or was lost before it answered."""


class Link:
    """A connection that comes back. `start` begins to connect, `wait_up` waits for the first success."""

    def __init__(self, dial: Dial, *, reconnect_delay_ms_max: int) -> None:
        self._dial = dial
        self._delay_s_max = reconnect_delay_ms_max / 1000
        self._connection: Connection | None = None
        self._pushes: dict[int, PushCallback] = {}
        self._up: list[Callable[[], None]] = []
        self._down: list[Callable[[str], None]] = []
        self._keeper: asyncio.Task[None] | None = None
        self._first = asyncio.Event()
        self._log = get_logger("proxy.link")

    @property
    def up(self) -> bool:
        """Whether requests can be made now."""
        return self._connection is not None and not self._connection.closed

    def on_up(self, callback: Callable[[], None]) -> None:
        """Call after every connection made, in order of registration."""
        self._up.append(callback)

    def on_down(self, callback: Callable[[str], None]) -> None:
        """Call with the reason after every loss."""
        self._down.append(callback)

    def on_push(self, code: int, callback: PushCallback) -> None:
        """Call with each command of this code that the broker sends on its own."""
        self._pushes[code] = callback

    async def start(self) -> None:
        """Begin to connect; does not wait for success."""
        assert self._keeper is None
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def wait_up(self) -> None:
        """Wait for the first connection."""
        await self._first.wait()

    async def stop(self) -> None:
        """Close and do not come back."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def post(self, code: int, body: bytes, timeout_ms: int = REQUEST_TIMEOUT_MS) -> asyncio.Task[bytes]:
        """Send a request; the task ends in the reply's body. Raises LinkDownError at once without a connection."""
        connection = self._connection
        if connection is None or connection.closed:
            raise LinkDownError("no connection to the broker")
        # A task's first step runs in the order of creation: that is what keeps requests in order.
        return asyncio.get_running_loop().create_task(_call(connection, Command(code, body=body), timeout_ms))

    async def request(self, code: int, body: bytes, timeout_ms: int = REQUEST_TIMEOUT_MS) -> bytes:
        """Send a request and wait for its reply's body. Raises Refused or LinkDownError."""
        return await self.post(code, body, timeout_ms)

    async def _keep(self) -> None:
        delay_s = first_delay_s = self._delay_s_max / FIRST_DELAY_DIVISOR
        while True:
            try:
                connection = await self._dial()
            except (LightMQError, OSError, TimeoutError) as error:
                self._log.warning("broker_unreachable", error=str(error), retry_in_ms=int(delay_s * 1000))
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, self._delay_s_max)
                continue
            delay_s = first_delay_s
            reason = await self._hold(connection)
            self._log.warning("broker_lost", address=connection.address, reason=reason)
            for heard in self._down:
                self._tell(functools.partial(heard, reason))
            await asyncio.sleep(first_delay_s)

    async def _hold(self, connection: Connection) -> str:
        """Use a connection until it is gone; the answer is why."""
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        connection.on_push(self._pushed)
        connection.on_close(lambda reason: None if lost.done() else lost.set_result(reason))
        self._connection = connection
        self._log.info("broker_connected", address=connection.address)
        for callback in self._up:
            self._tell(callback)
        self._first.set()
        reason = await lost
        self._connection = None
        return reason

    def _tell(self, callback: Callable[[], None]) -> None:
        """A listener that fails must not keep the link from coming back."""
        try:
            callback()
        except Exception as error:  # noqa: BLE001
            self._log.error("listener_failed", error=repr(error), exc_info=error)

    def _pushed(self, command: Command) -> None:
        callback = self._pushes.get(command.code)
        if callback is None:
            self._log.warning("push_unknown", code=command.code)
            return
        try:
            callback(command)
        except LightMQError as error:
            self._log.error("push_unreadable", code=command.code, error=str(error))


async def _call(connection: Connection, command: Command, timeout_ms: int) -> bytes:
    try:
        reply = await connection.request(command, timeout_ms)
    except Refused:
        raise
    except LightMQError as error:  # lost, timed out, closed: in each case nobody knows whether it was done
        raise LinkDownError(str(error)) from error
    if reply.code != 0:
        raise Refused(reply.code, reply.remark or f"refused with code {reply.code}")
    return reply.body
