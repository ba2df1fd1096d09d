"""Connections to a server: requests with answers, one-way commands, pushes, close reasons; and one that reconnects.

The key with which a process signs its requests is one line `key:secret` in a file that no other user may read; it is
read at the start, which blocks.

`ReconnectingConnection` repeats nothing: a request in flight when the connection is lost fails with `ConnectionLost`,
because only its caller can tell whether it may be carried out twice. A request made while the connection is down waits
for it within its own time limit.
Invariants: reading never stops, so that a server can always send its output; the bytes of requests in flight are
limited instead. `up` and `down` callbacks alternate, up first. No error text contains any part of a key file.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from remoting import background, clock
from remoting.client.master_link import Backoff, full
from remoting.client.tls import ClientTls, handshake_with
from remoting.protocol.addresses import split_address
from remoting.protocol.errors import LightMQError, LocalMisuse
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import FRAME_SIZE_BYTES_MAX
from remoting.transport.calls import Calls
from remoting.transport.contracts import (
    IN_FLIGHT_BYTES_MAX,
    REQUEST_TIMEOUT_MS,
    Answered,
    CloseCallback,
    Connection,
    Dial,
    Ending,
    PushCallback,
    run_close_callback,
)
from remoting.transport.dead_peers import end_when_unreachable
from remoting.transport.failures import ConnectionLost, RequestTimeout, Unreachable, checked
from remoting.transport.link import OUTPUT_BYTES_MAX, FrameLink, LinkSettings
from remoting.transport.signature import BoundSigner, Signer

__all__ = [
    "Connection",
    "ConnectionLost",
    "RequestTimeout",
    "SocketConnection",
    "Unreachable",
    "checked",
    "connect",
    "dial",
]

LOG = logging.getLogger("remoting")

CONNECT_TIMEOUT_MS = 3_000
"""Longest time to connect."""


class SocketConnection:
    """A `Connection` on a socket; made by `connect`."""

    def __init__(self, address: str, settings: LinkSettings, in_flight_bytes_max: int, signer: Signer | None) -> None:
        self.address = address
        self.link = FrameLink(settings, self)
        """The socket's protocol."""
        self._unbound = signer
        self._signer: Signer | BoundSigner | None = None
        self._calls = Calls(address, in_flight_bytes_max)
        self._push_callbacks: list[PushCallback] = []
        self._ended = asyncio.Event()

    @property
    def closed(self) -> bool:
        """True as soon as it is closing."""
        return self.link.closing is not None

    @property
    def writable(self) -> bool:
        """False while output above the limit is queued."""
        return self.link.writable

    async def request(self, command: Command, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Command:
        """Send a request and return its answer, of any code (`checked` turns refusals into exceptions)."""
        self._check_open()
        return await self._calls.call(command, timeout_ms, self._transmit)

    def call(self, command: Command, answered: Answered, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """Send a request; `answered(response, None)` or `answered(None, error)` follows, never inside this call."""
        self._check_open()
        self._calls.begin(command, timeout_ms, self._transmit, answered)

    def oneway(self, command: Command) -> None:
        """Send a request that gets no answer."""
        self._check_open()
        command.opaque = self._calls.next_opaque()
        command.flag |= 2
        self._transmit(command)

    def respond(self, command: Command) -> None:
        """Send the answer to a command that came by `on_push`; dropped when the connection has ended."""
        if self.link.closing is None:
            self.link.send(command)

    def on_push(self, callback: PushCallback) -> None:
        """Call `callback(command)` for each command the server sends on its own."""
        self._push_callbacks.append(callback)

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` once when it has ended; in the next turn if it already has."""
        self.link.on_close(callback)

    def abort(self, reason: str) -> None:
        """Close without sending what is queued."""
        self.link.abort(reason)

    async def close(self) -> None:
        """Close and wait until closed."""
        self.link.end("closed by this side")
        await self._ended.wait()

    async def bind(self, timeout_ms: int) -> None:
        """Get a challenge for bound signatures; with a server that gives none, signatures have RocketMQ's form."""
        if self._unbound is not None:
            answer = await self.request(Command(RequestCode.SIGN_CHALLENGE), timeout_ms)
            self._signer = self._unbound.bound(answer) or self._unbound

    def link_made(self, own_address: tuple[str, int] | None) -> None:  # noqa: ARG002 - used on the server's side
        """Keep the name that was dialled as the address: it is clearer than the socket's numbers."""
        self.link.address = self.address

    def command_received(self, command: Command) -> None:
        """Pass an answer to its request, anything else to the push callbacks."""
        if command.is_response:
            self._calls.answer(command)
            return
        for callback in self._push_callbacks:
            try:
                callback(command)
            except Exception:
                LOG.exception("a callback failed on push %d from %s", command.code, self.address)

    def link_lost(self, reason: str) -> None:
        """Fail the pending requests."""
        self._calls.fail(reason)
        self._ended.set()

    def _check_open(self) -> None:
        if self.link.closing is not None:
            raise ConnectionLost(f"connection to {self.address} is closed: {self.link.closing}")

    def _transmit(self, command: Command) -> None:
        if self._signer is not None:
            self._signer.sign(command)
        self.link.send(command)


async def connect(
    host: str,
    port: int,
    *,
    timeout_ms: int = CONNECT_TIMEOUT_MS,
    signer: Signer | None = None,
    in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
    frame_size_bytes_max: int = FRAME_SIZE_BYTES_MAX,
    output_bytes_max: int = OUTPUT_BYTES_MAX,
    tls: ClientTls | None = None,
) -> SocketConnection:
    """Connect to a server. Raises `Unreachable` with host, port and remedy, or `TlsFailed` with the reason."""
    loop = asyncio.get_running_loop()
    settings = LinkSettings(frame_size_bytes_max, output_bytes_max)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    context = tls.context() if tls is not None else None
    connection = SocketConnection(address, settings, in_flight_bytes_max, signer)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            transport, _link = await loop.create_connection(lambda: connection.link, host, port)
            end_when_unreachable(transport.get_extra_info("socket"))
            if tls is not None and context is not None:
                await _secured(connection, context, tls.name_for(host), (host, port))
            await _bound(connection, timeout_ms)
    except OSError as error:  # TimeoutError is one
        raise Unreachable(host, port, error) from error
    return connection


async def _secured(connection: SocketConnection, context: ssl.SSLContext, name: str, place: tuple[str, int]) -> None:
    """Do the handshake; if it fails or is cancelled, close the connection."""
    try:
        with handshake_with(*place):
            await connection.link.start_tls(context, name)
    except BaseException:
        connection.abort("no TLS")
        raise


async def _bound(connection: SocketConnection, timeout_ms: int) -> None:
    """Bind the signatures; if that fails or is cancelled, close the connection."""
    try:
        await connection.bind(timeout_ms)
    except RequestTimeout as error:
        connection.abort("no answer to the first request")
        raise TimeoutError(str(error)) from error
    except BaseException:
        connection.abort("its signatures were not bound")
        raise


async def dial(address: str) -> Connection:
    """Connect to `host:port` without TLS and signatures."""
    host, port = split_address(address)
    return await connect(host, port)


KEY_FILE_BYTES_MAX = 4_096
"""Largest key file read; a larger one is refused as a mistake."""


def read_signer(path: Path) -> Signer:
    """Return the signer of a key file. Raises LocalMisuse when it cannot be used or is readable by others."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not block the start
    except OSError as error:
        raise LocalMisuse(f"key file {path}: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise LocalMisuse(f"key file {path} is not a regular file")
        if found.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise LocalMisuse(f"key file {path} is open to every user; run: chmod 600 {path}")
        data = os.read(descriptor, KEY_FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    return signer_of(data.decode(errors="replace"), f"key file {path}")


def signer_of(line: str, source: str) -> Signer:
    """Return the signer of a line ``key:secret``. Raises LocalMisuse, naming the source and never the line."""
    key, separator, secret = line.strip().partition(":")
    if len(line) > KEY_FILE_BYTES_MAX or not (separator and key and secret and _is_plain(key + secret)):
        raise LocalMisuse(f"{source} is not one line of the form key:secret")
    return Signer(key, secret)


def _is_plain(text: str) -> bool:
    return text.isprintable() and "\ufffd" not in text


def signing_dial(path: Path | None, tls: ClientTls | None = None) -> Dial:
    """Return a `dial` for connections with TLS and, if there is a key file, signed requests."""
    return dial_as(read_signer(path) if path is not None else None, tls)


def dial_as(signer: Signer | None, tls: ClientTls | None = None) -> Dial:
    """Return a `dial` for connections with TLS and, if there is a signer, signed requests."""
    if signer is None and tls is None:
        return dial
    if tls is not None:
        tls.context()  # files that cannot be used are reported at the start

    async def dial_signed(address: str) -> Connection:
        host, port = split_address(address)
        return await connect(host, port, signer=signer, tls=tls)

    return dial_signed


PAUSE_FIRST_MS = 50
"""Pause after the first failure to connect; doubles with each further one."""

PAUSE_MS_MAX = 5_000
"""Longest pause between two attempts."""

CLOSED = "closed by this side"

UpCallback = Callable[[Connection], None]


class ReconnectingConnection:
    """Keeps one connection up, from `start` to `close`."""

    def __init__(
        self,
        dial: Callable[[], Awaitable[Connection]],
        address: str,
        *,
        pause_first_ms: int = PAUSE_FIRST_MS,
        pause_ms_max: int = PAUSE_MS_MAX,
        spread: Callable[[], float] = full,
    ) -> None:
        """`spread` returns a factor 0..1 for each pause, so that many clients do not dial in step."""
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
        """The address of the server connected to now; empty while it is down."""
        return "" if self._current is None else self._current.address

    @property
    def reason(self) -> str:
        """Why it is down; empty while it is up."""
        return "" if self.up else self._reason

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
            self._task = background.task(self._keep_up(), f"keeps the connection to {self.address}")

    def on_up(self, callback: UpCallback, *, at_once: bool = True) -> None:
        """Call `callback(connection)` each time it comes up; `at_once`: also now if it is already up."""
        self._up_callbacks.append(callback)
        if at_once and self._current is not None:
            self._run_up(callback, self._current)

    def on_down(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` each time it goes down."""
        self._down_callbacks.append(callback)

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` when it is closed by `close`."""
        self._ending.on_close(callback)

    def on_push(self, callback: PushCallback) -> None:
        """Call `callback(command)` for each push, on this connection and on all later ones."""
        self._push_callbacks.append(callback)
        if self._current is not None:
            self._current.on_push(callback)

    async def wait_up(self, timeout_ms: int) -> Connection:
        """Wait until it is up. Raises `ConnectionLost` with the reason when it does not come up in time."""
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
        deadline = clock.monotonic_s() + timeout_ms / 1000
        connection = await self.wait_up(timeout_ms)
        left_ms = int((deadline - clock.monotonic_s()) * 1000)
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
        """Abort the current connection and dial again without a pause; unanswered requests fail with `ConnectionLost`.

        While it is down, skip the rest of the pause and restart an attempt in progress.
        """
        if self.closed:
            return
        self._wanted.set()
        if self._dialling is not None:
            self._dialling.cancel()
        if self._current is not None:
            self._current.abort(reason)

    def abort(self, reason: str) -> None:
        """Abort the current connection; another one is made after a pause."""
        if self._current is not None:
            self._current.abort(reason)

    async def close(self) -> None:
        """Close without reconnecting, and wait until closed."""
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
                pause_ms = self._backoff.failed(clock.monotonic_s() * 1000)
                assert pause_ms is not None, "the patience is infinite"
                await self._pause(pause_ms)
                continue
            self._backoff.reached()
            ended = self._take(connection)
            await ended.wait()
            await self._pause(self._backoff.lost())

    async def _attempt(self) -> Connection | None:
        """Return a connection, or None when the attempt failed."""
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
            # The attempt was cancelled by `drop`, not this task.
        finally:
            self._dialling = None
        return None

    async def _pause(self, pause_ms: float) -> None:
        """Wait before the next attempt; `drop` ends the pause."""
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
