"""The remoting client without asyncio: one socket, one thread, for Spark's workers and for scripts.

`request` sends one request and waits for its answer; `send` and `receive` allow several requests in flight
(pipelining): answers that arrive early are kept until they are received.
asyncio is not imported and ssl only for TLS, because Spark starts a process for every plan of a stream.
Invariant: every opaque returned by `send` is answered by exactly one `receive`, or the connection has failed, which is
permanent. Thread rule: one thread at a time.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import Self

from remoting.client.master_link import DialMaster, MasterLink
from remoting.client.tls import ClientTls, handshake_with, is_verdict
from remoting.protocol.addresses import split_address
from remoting.protocol.bodies.controller_body import WITH_REPLICAS_FIELD, ClusterInfo, decode_body
from remoting.protocol.errors import LightMQError, LocalMisuse, RemoteViolation
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import FRAME_SIZE_BYTES_MAX, FrameDecoder, encode_frame
from remoting.transport.dead_peers import end_when_unreachable
from remoting.transport.failures import ConnectionLost, RequestTimeout, TlsFailed, Unreachable, checked, reason_of
from remoting.transport.signature import BoundSigner, Signer

__all__ = ["BlockingConnection", "checked", "cluster", "dial_master"]

TIMEOUT_MS = 10_000
"""Longest silence of the server while a request is pending."""

CONNECT_TIMEOUT_MS = 5_000
"""Longest time to connect, however long an answer may take."""

LOOK_MS = 2_000
"""Interval of calls to `while_silent` while the server is silent."""

RECEIVE_BYTES = 1024 * 1024
"""Most bytes per read from the socket."""

PUSHES_MAX = 1_000
"""Pushes kept for the caller; the oldest is dropped first and counted."""


class BlockingConnection:
    """A connection to a server; made by its constructor, which raises `Unreachable` when it cannot connect."""

    def __init__(
        self,
        host: str,
        port: int,
        timeout_ms: int = TIMEOUT_MS,
        *,
        signer: Signer | None = None,
        frame_size_bytes_max: int = FRAME_SIZE_BYTES_MAX,
        tls: ClientTls | None = None,
    ) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.pushes: deque[Command] = deque(maxlen=PUSHES_MAX)
        """Commands the server sent on its own."""
        self.pushes_dropped = 0
        self.while_silent: Callable[[], None] | None = None
        """Called periodically while the server is silent during a request; an exception ends the connection."""
        self._host, self._port = host, port
        self._is_tls = tls is not None
        self._timeout_ms = timeout_ms
        self._signer: Signer | BoundSigner | None = None
        self._decoder = FrameDecoder(frame_size_bytes_max)
        self._opaque = 0
        self._sent: dict[int, int] = {}
        self._arrived: dict[int, Command] = {}
        self._failed: str | None = None
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        try:
            self._socket = socket.create_connection((host, port), min(timeout_ms, CONNECT_TIMEOUT_MS) / 1000)
            self._socket.settimeout(timeout_ms / 1000)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end_when_unreachable(self._socket)
            if tls is not None:
                self._socket = _secured(self._socket, tls, host, port)
        except OSError as error:
            raise Unreachable(host, port, error) from error
        if signer is not None:
            self._bind(signer)

    def _bind(self, signer: Signer) -> None:
        """Get a challenge for bound signatures; with a server that gives none, signatures have RocketMQ's form."""
        try:
            answer = self.request(Command(RequestCode.SIGN_CHALLENGE))
        except BaseException:
            self.close()
            raise
        self._signer = signer.bound(answer) or signer

    @classmethod
    def dial(
        cls, address: str, timeout_ms: int = TIMEOUT_MS, *, signer: Signer | None = None, tls: ClientTls | None = None
    ) -> Self:
        """Connect to `host:port`."""
        host, port = split_address(address)
        return cls(host, port, timeout_ms, signer=signer, tls=tls)

    @property
    def closed(self) -> bool:
        """True after `close` or a failure."""
        return self._failed is not None

    @property
    def in_flight(self) -> int:
        """Requests whose answers have not been received."""
        return len(self._sent)

    @property
    def stale(self) -> bool:
        """True when the server has closed the connection, or pushed something, since the last answer."""
        if self._failed is not None:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def request(self, command: Command) -> Command:
        """Send a request and return its answer, of any code; `RequestTimeout` ends the connection."""
        return self.receive(self.send(command))

    def send(self, command: Command) -> int:
        """Send a request and return its number for `receive`."""
        self._check_open()
        self._opaque = self._opaque % 0x7FFF_FFFF + 1
        command.opaque = self._opaque
        self._sent[command.opaque] = command.code
        self._write(command)
        return command.opaque

    def oneway(self, command: Command) -> None:
        """Send a request that gets no answer."""
        self._check_open()
        command.flag |= 2
        self._write(command)

    def receive(self, opaque: int | None = None) -> Command:
        """Wait for the answer to one request, or for the next answer to any of them."""
        if opaque is None and not self._sent:
            raise LocalMisuse("no request is pending")
        if opaque is not None and opaque not in self._sent:
            raise LocalMisuse(f"request {opaque} was not sent, or its answer was already received")
        while True:
            found = opaque if opaque is not None else next(iter(self._arrived), None)
            if found is not None and found in self._arrived:
                del self._sent[found]
                return self._arrived.pop(found)
            self._check_open()
            self._read(self._sent[opaque if opaque is not None else next(iter(self._sent))])

    def close(self) -> None:
        """Close; pending requests are dropped."""
        self._fail("closed by this side")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, command: Command) -> None:
        if self._signer is not None:
            self._signer.sign(command)
        try:
            with _silence_ends_it():
                self._socket.sendall(encode_frame(command))
        except TimeoutError:
            # Half a frame may have been sent: nothing valid can follow it.
            self._fail(f"nothing could be sent for {self._timeout_ms} ms")
            raise RequestTimeout(command.code, self.address, self._timeout_ms) from None
        except OSError as error:
            raise self._lost_by(error) from error

    def _read(self, code: int) -> None:
        try:
            size = self._received()
        except TimeoutError:
            self._fail(f"no answer within {self._timeout_ms} ms")
            raise RequestTimeout(code, self.address, self._timeout_ms) from None
        except OSError as error:
            raise self._lost_by(error) from error
        if size == 0:
            raise self._lost("closed by the server")
        try:
            commands = self._decoder.feed(self._buffer[:size])
        except RemoteViolation as violation:
            raise self._lost(f"the server sent a malformed frame: {violation}") from violation
        for command in commands:
            if not command.is_response:
                self.pushes_dropped += len(self.pushes) == PUSHES_MAX
                self.pushes.append(command)
            elif command.opaque in self._sent:
                self._arrived[command.opaque] = command

    def _received(self) -> int:
        """Read into the buffer and return the number of bytes. Raises TimeoutError after the longest silence."""
        with _silence_ends_it():
            return self._received_in_time()

    def _received_in_time(self) -> int:
        if self.while_silent is None:
            return self._socket.recv_into(self._buffer)
        left_ms = self._timeout_ms
        try:
            while left_ms > LOOK_MS:
                self._socket.settimeout(LOOK_MS / 1000)
                try:
                    return self._socket.recv_into(self._buffer)
                except TimeoutError as error:
                    if error.errno is not None:
                        raise
                left_ms -= LOOK_MS
                self._check_silence()
            self._socket.settimeout(left_ms / 1000)
            return self._socket.recv_into(self._buffer)
        finally:
            with contextlib.suppress(OSError):  # it may have been closed
                self._socket.settimeout(self._timeout_ms / 1000)

    def _check_silence(self) -> None:
        assert self.while_silent is not None
        try:
            self.while_silent()
        except BaseException as error:
            self._fail(str(error))
            raise

    def _check_open(self) -> None:
        if self._failed is not None:
            raise ConnectionLost(f"connection to {self.address} is closed: {self._failed}")

    def _lost(self, reason: str) -> ConnectionLost:
        self._fail(reason)
        return ConnectionLost(f"connection to {self.address} is lost: {reason}")

    def _lost_by(self, error: OSError) -> ConnectionLost:
        if self._is_tls and is_verdict(error):
            # The server's verdict on our certificate comes after the handshake of TLS 1.3.
            self._fail(reason_of(error))
            return TlsFailed(self._host, self._port, reason_of(error))
        return self._lost(str(error))

    def _fail(self, reason: str) -> None:
        if self._failed is None:
            self._failed = reason
            with contextlib.suppress(OSError):
                self._socket.close()


@contextlib.contextmanager
def _silence_ends_it() -> Iterator[None]:
    """Tell a connection that the kernel has ended from a peer that took too long: both are a TimeoutError."""
    try:
        yield
    except TimeoutError as error:
        if error.errno is None:
            raise
        raise ConnectionAbortedError(error.errno, "its machine cannot be reached") from error


def _secured(plain: socket.socket, tls: ClientTls, host: str, port: int) -> socket.socket:
    """Return the socket with TLS. Raises TlsFailed, or OSError when the server could not be reached."""
    try:
        with handshake_with(host, port):
            return tls.context().wrap_socket(plain, server_hostname=tls.name_for(host))
    except BaseException:
        plain.close()
        raise


def cluster(connection: BlockingConnection, *, replicas: bool = False) -> ClusterInfo:
    """Return every broker group and its addresses, from a name server; with `replicas` also those that only read."""
    fields = {WITH_REPLICAS_FIELD: "true"} if replicas else {}
    response = connection.request(Command(RequestCode.GET_BROKER_CLUSTER_INFO, fields=fields))
    return decode_body(checked(response).body, ClusterInfo)


def dial_master(
    link: MasterLink, dial: Callable[[str], BlockingConnection], ask: Callable[[], ClusterInfo]
) -> BlockingConnection:
    """Make one attempt to connect to the master of a group. Raises its error."""
    link.begin()
    while (step := link.next()) is not None:
        try:
            if isinstance(step, DialMaster):
                connection = dial(step.address)
                link.reached(step.address)
                return connection
            link.found(ask())
        except LightMQError as error:
            link.failed(error)
    assert link.failure is not None
    raise link.failure
