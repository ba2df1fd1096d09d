"""The port for replicas: sockets whose bytes go to and come from `replica_streams`, where everything is decided.

It listens in every role. `ReplicaConnection` is the master's end of one replica's socket, with TLS or without
(`tls_detection`). Invariant: the streams are told of the end of each connection once; nothing is decided here but who
runs on this machine. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any, cast

from broker.replication.frames import NONCE_BYTES
from broker.replication.host import StreamHost
from broker.replication.replica_streams import ReplicaStream, ReplicaStreams
from broker.replication.tls_detection import TlsAcceptor
from remoting import background
from remoting.server.peer import is_loopback
from remoting.transport.certificates import ServerTls
from remoting.transport.turn import soon, turn_of
from runtime.clock import Clock


def stream_host(now_ms: Callable[[], int], log: Any) -> StreamHost:
    """The event loop as streams see it."""
    return StreamHost(
        now_ms=now_ms,
        later=lambda seconds, callback: asyncio.get_running_loop().call_later(seconds, callback),
        soon=soon,
        nonce=lambda: secrets.token_bytes(NONCE_BYTES),
        chance=lambda: secrets.randbelow(1_000) / 1_000,
        log=log,
    )


class ReplicaConnection(asyncio.Protocol):
    """One socket of a replica."""

    def __init__(self, streams: ReplicaStreams) -> None:
        self._streams = streams
        self._stream: ReplicaStream | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say the first word."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)  # at once, and what the socket does not take is the last
        name = transport.get_extra_info("peername")
        address = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "local"
        self._stream = self._streams.opened(self, address, is_near=is_loopback(address))

    def data_received(self, data: bytes) -> None:
        """Bytes of the replica; what they cause at the end of the turn is done at once."""
        if self._stream is None:
            return
        turn = turn_of(asyncio.get_running_loop())
        turn.begin()
        try:
            self._stream.received(data)
        finally:
            turn.run()

    def send(self, head: bytes, data: bytes | memoryview = b"") -> None:
        """Hand bytes to the socket, whose last ones they may be: nothing happens when it is closing."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines((head, data)) if len(data) else self._transport.write(head)

    def close(self) -> None:
        """Close when what was sent has left."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close without flushing."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        """Stop sending: the socket's buffer is full."""
        if self._stream is not None:
            self._stream.has_room = False

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        if self._stream is not None:
            self._stream.resume()

    def connection_lost(self, error: Exception | None) -> None:
        """The socket has ended, from here or from there: its stream hears of it once."""
        self._transport = None
        if self._stream is not None:
            self._stream.ended(str(error or "closed by the replica"))


TICK_S = 0.1  # how often silence is counted


class HaServer:
    """The listening port."""

    def __init__(
        self,
        clock: Clock,
        log: Any,
        *,
        keys: Mapping[str, str],
        open_to_all: bool,
        superseded: Callable[[int], None],
        tls: ServerTls | None = None,
        permitted: Callable[[str], bool] = lambda _key: True,
    ) -> None:
        """The arguments are those of `ReplicaStreams`."""
        host = stream_host(lambda: clock.monotonic_ns() // 1_000_000, log)
        self.streams = ReplicaStreams(
            host, keys=keys, open_to_all=open_to_all, superseded=superseded, permitted=permitted
        )
        self.acceptor = TlsAcceptor(tls, lambda: ReplicaConnection(self.streams), self._tls_refused)
        self.port = 0
        self._log = log
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port. Raises OSError when it is taken."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self.acceptor, host, port)
        except OSError as error:
            message = f"cannot listen for replicas on {host}:{port} ({error.strerror or error})"
            raise OSError(error.errno, message) from error
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._ticker = background.task(self._tick(), "serves the replicas")
        return self.port

    async def stop(self) -> None:
        """Close the port and every connection."""
        self.streams.step_down("the broker stops")
        self.acceptor.close()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.acceptor.refresh(self.streams.now_ms())
            self.streams.tick()

    def _tls_refused(self, address: str, reason: str) -> None:
        self.streams.refused += 1
        self._log.warning("replica_sent_away", address=address, reason=reason)
