"""The connection of a replica to its master: a socket whose bytes go to and come from `log_following`.

`ReplicationLink` is the socket, from its dialling to its end. Invariant: its stream is told of its end once; nothing is
decided here. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from broker.replication.follower import Follower, ReplicaIdentity
from broker.replication.ha_server import stream_host
from broker.replication.log_following import LogFollowing, MasterStream
from broker.store.log_store import LogStore
from remoting import clock
from remoting.client.tls import ClientTls
from remoting.protocol.addresses import split_address
from remoting.transport.certificates import CertificateProblem
from remoting.transport.failures import ConnectionLost
from remoting.transport.turn import turn_of

CONNECT_TIMEOUT_S = 2.0


class ReplicationLink(asyncio.BufferedProtocol):
    """One connection to a master."""

    def __init__(self, stream: MasterStream) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._has_ended = False

    def dial(self, address: str, tls: ClientTls | None) -> asyncio.Task[None]:
        """Begin to connect; the stream is told how it went."""
        self._dialling = self._loop.create_task(self._connect(address, tls))
        self._dialling.add_done_callback(self._dialled)
        return self._dialling

    async def _connect(self, address: str, tls: ClientTls | None) -> None:
        host, port = split_address(address)
        security = _security(tls, host)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await self._loop.create_connection(lambda: self, host, port, **security)

    def _dialled(self, attempt: asyncio.Task[None]) -> None:
        error = None if attempt.cancelled() else attempt.exception()
        self._dialling = None
        if self._transport is not None and not attempt.cancelled() and error is None:
            return
        if self._transport is not None:  # too late by a moment; of its end uvloop says nothing then
            self._transport.abort()
        self._end("closed here" if attempt.cancelled() else str(error) or type(error).__name__)

    def _end(self, reason: str) -> None:
        """Tell the stream, once."""
        if not self._has_ended:
            self._has_ended = True
            self._stream.ended(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The stream may speak now."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)  # frames are sent at once
        self._stream.opened()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where the next bytes go."""
        return self._stream.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Hand them on; what they ask for at the end of the turn is done at once."""
        turn = turn_of(self._loop)
        turn.begin()
        try:
            self._stream.filled(nbytes)
        finally:
            turn.run()

    def send(self, head: bytes, data: bytes | memoryview = b"") -> None:
        """Say something; nothing when the connection has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines((head, data)) if len(data) else self._transport.write(head)

    def close(self) -> None:
        """Close when what was sent has left."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection, or end the attempt to make one."""
        if self._transport is not None:
            self._transport.abort()
        elif self._dialling is not None:
            self._dialling.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection to the master ended."""
        self._end(str(error or "the master closed the connection"))


def _security(tls: ClientTls | None, host: str) -> dict[str, Any]:
    """What makes the connection one with TLS, where that is configured."""
    if tls is None:
        return {}
    try:
        return {"ssl": tls.context(), "server_hostname": tls.name_for(host)}
    except CertificateProblem as problem:  # files that are being replaced are there again soon
        raise ConnectionLost(str(problem)) from problem


class HaClient:
    """Follows one master in one epoch, over sockets."""

    def __init__(
        self,
        store: LogStore,
        identity: ReplicaIdentity,
        address: str,
        epoch: int,
        *,
        silence_ms: int,
        superseded: Callable[[int], None],
        failed: Callable[[Exception], None],
        log: Any,
        tls: ClientTls | None = None,
    ) -> None:
        """The arguments are those of `LogFollowing`."""
        host = stream_host(lambda: clock.monotonic_ns() // 1_000_000, log)
        self.following = LogFollowing(
            host, store, partial(Follower, identity), address, epoch,
            silence_ms=silence_ms, dial=self._dial, superseded=superseded, failed=failed,
        )  # fmt: skip
        self._identity = identity
        self._tls = tls
        self._dialling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to dial the master and to copy its log."""
        self.following.start()

    async def stop(self, *, good_bye: bool = False) -> None:
        """Leave the master, and tell it when this broker stops; nothing is done to the store afterwards."""
        self.following.stop(good_bye=good_bye)
        await self.rest()

    async def rest(self) -> None:
        """Wait until the attempt to connect has ended that `following` gave up when it was stopped."""
        if self._dialling is not None:
            await asyncio.gather(self._dialling, return_exceptions=True)

    def introduce(self, *, is_learner: bool) -> None:
        """Be a learner, or one no more."""
        self._identity = replace(self._identity, is_learner=is_learner)
        self.following.introduce(partial(Follower, self._identity))

    def _dial(self, address: str, stream: MasterStream) -> ReplicationLink:
        link = ReplicationLink(stream)
        self._dialling = link.dial(address, self._tls)
        return link
