"""A `Connection` that dials again when it is lost, and reports when it is up and when it is down.

Nothing is repeated on its own: a request that was under way when the connection went down fails with `ConnectionLost`,
because only its caller knows whether it may be carried out twice. A request made while it is down waits for it to come
up, for as long as its own time limit.
Invariant: `up` and `down` callbacks alternate, up first. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from remoting.client.master_link import Backoff, full
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import (
    REQUEST_TIMEOUT_MS,
    Answered,
    CloseCallback,
    Connection,
    Ending,
    PushCallback,
    run_close_callback,
)
from remoting.transport.failures import ConnectionLost, RequestTimeout

LOG = logging.getLogger("remoting")

PAUSE_FIRST_MS = 50
"""Pause after the first failure to connect; doubles with each further one."""

PAUSE_MS_MAX = 5_000
"""Longest pause between two attempts."""

CLOSED = "closed by this side"

UpCallback = Callable[[Connection], None]


class ReconnectingConnection:
    """Keeps one connection up; `start` begins dialling, `close` ends it for good."""

    def __init__(
        self,
        dial: Callable[[], Awaitable[Connection]],
        address: str,
        *,
        pause_first_ms: int = PAUSE_FIRST_MS,
        pause_ms_max: int = PAUSE_MS_MAX,
        spread: Callable[[], float] = full,
    ) -> None:
        """`spread` gives a factor 0..1 for each pause, so that many clients do not dial in step."""
        self.address = address
        self.attempts = 0
        self._dial = dial
        self._backoff = Backoff(pause_first_ms, pause_ms_max, spread=spread)
        self._current: Connection | None = None
        self._up = asyncio.Event()
        self._ending = Ending()
        self._task: asyncio.Task[None] | None = None
        self._dialling: asyncio.Future[Connection] | None = None
        self._wanted = asyncio.Event()
        self._reason = "not connected yet"
        self._up_callbacks: list[UpCallback] = []
        self._down_callbacks: list[CloseCallback] = []
        self._push_callbacks: list[PushCallback] = []

    @property
    def up(self) -> bool:
        """True while there is a connection."""
        return self._current is not None

    @property
    def connected_to(self) -> str:
        """The address of the server that it leads to now; empty while it is down."""
        return "" if self._current is None else self._current.address

    @property
    def closed(self) -> bool:
        """True after `close`; a connection that is merely down is not closed."""
        return self._ending.closing is not None

    @property
    def writable(self) -> bool:
        """False while it is down or its output is above the limit."""
        return self._current is not None and self._current.writable

    def start(self) -> None:
        """Begin to connect."""
        if self._task is None and not self.closed:
            self._task = asyncio.get_running_loop().create_task(self._keep_up())

    def on_up(self, callback: UpCallback, *, at_once: bool = True) -> None:
        """Call `callback(connection)` each time it comes up; `at_once`: also now if it is up."""
        self._up_callbacks.append(callback)
        if at_once and self._current is not None:
            self._run_up(callback, self._current)

    def on_down(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` each time it goes down."""
        self._down_callbacks.append(callback)

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` when it is closed for good."""
        self._ending.on_close(callback)

    def on_push(self, callback: PushCallback) -> None:
        """Call `callback(command)` for each push, on this connection and on all later ones."""
        self._push_callbacks.append(callback)
        if self._current is not None:
            self._current.on_push(callback)

    async def wait_up(self, timeout_ms: int) -> Connection:
        """Wait until it is up; `ConnectionLost` has the reason when it does not come up."""
        self._check_open()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self._current is None:
                    await self._up.wait()
                    self._check_open()
        except TimeoutError:
            raise ConnectionLost(f"{self.address} is down: {self._reason}") from None
        return self._current

    async def request(self, command: Command, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Command:
        """Send a request as soon as it is up and wait for the answer, both within the time limit."""
        connection = self._current
        if connection is not None:
            return await connection.request(command, timeout_ms)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        connection = await self.wait_up(timeout_ms)
        left_ms = int((deadline - loop.time()) * 1000)
        if left_ms <= 0:
            raise RequestTimeout(command.code, self.address, timeout_ms)
        return await connection.request(command, left_ms)

    def call(self, command: Command, answered: Answered, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """Send a request whose answer goes to a callback; `ConnectionLost` while it is down."""
        if self._current is None:
            raise ConnectionLost(f"{self.address} is down: {self._reason}")
        self._current.call(command, answered, timeout_ms)

    def oneway(self, command: Command) -> None:
        """Send a request that gets no answer; `ConnectionLost` while it is down."""
        if self._current is None:
            raise ConnectionLost(f"{self.address} is down: {self._reason}")
        self._current.oneway(command)

    def drop(self, reason: str) -> None:
        """Give the present connection up and dial again at once: what is not answered fails with `ConnectionLost`.

        While it is down it is dialled without the pause that is left, and an attempt under way begins anew.
        """
        if self.closed:
            return
        self._wanted.set()
        if self._dialling is not None:
            self._dialling.cancel()
        if self._current is not None:
            self._current.abort(reason)

    def abort(self, reason: str) -> None:
        """Give the present connection up; another one is made after a pause."""
        if self._current is not None:
            self._current.abort(reason)

    async def close(self) -> None:
        """Close for good, and wait until it is closed."""
        if self.closed:
            return
        self._ending.closing = CLOSED
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._current is not None:
            await self._current.close()
        self._reason = CLOSED
        self._up.set()  # callers that wait find it closed
        self._ending.finish()

    def _check_open(self) -> None:
        if self.closed:
            raise ConnectionLost(f"connection to {self.address} is closed: {self._reason}")

    async def _keep_up(self) -> None:
        while not self.closed:
            self.attempts += 1
            connection = await self._attempt()
            if connection is None:
                pause_ms = self._backoff.failed(asyncio.get_running_loop().time() * 1000)
                assert pause_ms is not None, "its patience has no end"
                await self._pause(pause_ms)
                continue
            self._backoff.reached()
            ended = self._take(connection)
            await ended.wait()
            await self._pause(self._backoff.lost())

    async def _attempt(self) -> Connection | None:
        """A connection, or None when there was no way."""
        self._dialling = asyncio.ensure_future(self._dial())
        try:
            return await self._dialling
        except (LightMQError, OSError, TimeoutError) as error:
            if str(error) != self._reason:  # logged once, not at every attempt
                LOG.warning("%s", error)
            self._reason = str(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Not this task was cancelled but the attempt, by `drop`.
        finally:
            self._dialling = None
        return None

    async def _pause(self, pause_ms: float) -> None:
        """Wait before the next attempt, unless `drop` asks for it at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._wanted.wait()
        self._wanted.clear()

    def _take(self, connection: Connection) -> asyncio.Event:
        ended = asyncio.Event()
        self._current = connection

        def down(reason: str) -> None:
            self._current = None
            self._up.clear()
            self._reason = reason
            LOG.info("connection to %s is down: %s", self.address, reason)
            ended.set()
            for callback in list(self._down_callbacks):
                run_close_callback(callback, reason)

        for push_callback in self._push_callbacks:
            connection.on_push(push_callback)
        connection.on_close(down)
        self._up.set()
        for callback in list(self._up_callbacks):
            self._run_up(callback, connection)
        return ended

    def _run_up(self, callback: UpCallback, connection: Connection) -> None:
        try:
            callback(connection)
        except Exception:
            LOG.exception("a callback failed when %s came up", self.address)
