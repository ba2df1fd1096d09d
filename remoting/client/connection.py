"""One asyncio connection to a server: requests with answers, one-way commands, pushes, and why it ended; signed dials.

The key that a process signs its requests with is one line `key:secret` in a file that no other user may read; it is
read at the start, which blocks.
Invariant: reading never stops, so that a server that waits for its output to be taken always gets rid of it; what is
limited instead is the bytes of requests in flight. No text of an error holds any of a key file's content.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import stat
from pathlib import Path

from remoting.client.tls import ClientTls, handshake_with
from remoting.protocol.errors import LocalMisuse
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
    PushCallback,
)
from remoting.transport.failures import (
    ConnectionLost,
    RequestTimeout,
    Unreachable,
    checked,
    split_address,
)
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
"""How long making a connection may take."""


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
        """False while more output waits than the limit allows."""
        return self.link.writable

    async def request(self, command: Command, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Command:
        """Send a request and wait for its answer, whatever its code (`checked` turns refusals into exceptions)."""
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

    def on_push(self, callback: PushCallback) -> None:
        """Call `callback(command)` for each command the server sends on its own."""
        self._push_callbacks.append(callback)

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` once when it has ended; in the next turn if it already has."""
        self.link.on_close(callback)

    def abort(self, reason: str) -> None:
        """Close at once and forget what is queued."""
        self.link.abort(reason)

    async def close(self) -> None:
        """Close and wait until it is closed."""
        self.link.end("closed by this side")
        await self._ended.wait()

    async def bind(self, timeout_ms: int) -> None:
        """Have the server bind this connection's signatures to it; to one that cannot, they are made as RocketMQ's."""
        if self._unbound is not None:
            answer = await self.request(Command(RequestCode.SIGN_CHALLENGE), timeout_ms)
            self._signer = self._unbound.bound(answer) or self._unbound

    def link_made(self, own_address: tuple[str, int] | None) -> None:  # noqa: ARG002 - a server wants to know it
        """Keep the name that was asked for: it is clearer than the socket's numbers."""
        self.link.address = self.address

    def command_received(self, command: Command) -> None:
        """An answer goes to its request, anything else to the push callbacks."""
        if command.is_response:
            self._calls.answer(command)
            return
        for callback in self._push_callbacks:
            try:
                callback(command)
            except Exception:
                LOG.exception("a callback failed on push %d from %s", command.code, self.address)

    def link_lost(self, reason: str) -> None:
        """Fail the requests that wait for an answer."""
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
    """Connect to a server; `Unreachable` names host, port and remedy, TlsFailed why the server is not trusted."""
    loop = asyncio.get_running_loop()
    settings = LinkSettings(frame_size_bytes_max, output_bytes_max)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    context = tls.context() if tls is not None else None
    connection = SocketConnection(address, settings, in_flight_bytes_max, signer)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await loop.create_connection(lambda: connection.link, host, port)
            if tls is not None and context is not None:
                await _secured(connection, context, tls.name_for(host), (host, port))
            await _bound(connection, timeout_ms)
    except OSError as error:  # TimeoutError is one
        raise Unreachable(host, port, error) from error
    return connection


async def _secured(connection: SocketConnection, context: ssl.SSLContext, name: str, place: tuple[str, int]) -> None:
    """Do the handshake; whatever ends it early, cancellation included, ends the connection."""
    try:
        with handshake_with(*place):
            await connection.link.start_tls(context, name)
    except BaseException:
        connection.abort("no TLS")
        raise


async def _bound(connection: SocketConnection, timeout_ms: int) -> None:
    """Bind the signatures; whatever ends that early ends the connection."""
    try:
        await connection.bind(timeout_ms)
    except RequestTimeout as error:
        connection.abort("no answer to the first request")
        raise TimeoutError(str(error)) from error
    except BaseException:
        connection.abort("its signatures were not bound")
        raise


async def dial(address: str) -> Connection:
    """`connect` by `host:port`."""
    host, port = split_address(address)
    return await connect(host, port)


KEY_FILE_BYTES_MAX = 4_096
"""Largest key file read; a larger one is refused as a mistake."""


def read_signer(path: Path) -> Signer:
    """The signer of a key file. Raises LocalMisuse when it may not be used."""
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
    try:
        key, separator, secret = data.decode().strip().partition(":")
    except UnicodeDecodeError:
        key = separator = secret = ""
    if len(data) > KEY_FILE_BYTES_MAX or not (separator and key and secret and (key + secret).isprintable()):
        raise LocalMisuse(f"key file {path} is not one line of the form key:secret")
    return Signer(key, secret)


def signing_dial(path: Path | None, tls: ClientTls | None = None) -> Dial:
    """`dial` for connections whose requests are signed with the key of a file; without one they are not."""
    if path is None and tls is None:
        return dial
    signer = read_signer(path) if path is not None else None
    if tls is not None:
        tls.context()  # files that cannot be used are reported at the start

    async def dial_signed(address: str) -> Connection:
        host, port = split_address(address)
        return await connect(host, port, signer=signer, tls=tls)

    return dial_signed
