"""Connections between controllers: sockets that find each other again, and the frames of proven members.

Of two controllers the one with the greater id dials, again and again, so there is one connection; a newer one replaces
an older. The other one dials too when it was not dialled for a while: its peer may not know that it belongs to it.
Connections that are idle carry empty frames and are closed after `silence_ms` without input, so that a partition is
noticed soon and its end as well.
Invariant: only proven peers are connected; strangers hold little, for a short time, and are few.
Loop rule: everything on the loop that called `open`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Protocol, cast

from controller.consensus.members import ControllerNode
from controller.consensus.wire import RANDOM_BYTES, SecureChannel
from remoting import background, clock
from remoting.protocol.errors import RemoteViolation
from runtime.logs import get_logger

STRANGERS_MAX = 32
"""Connections that have not proven themselves; one more ends the oldest of them."""
PROOF_SECONDS = 3.0
"""Time to prove oneself."""
OUTPUT_BYTES_MAX = 64 * 1024 * 1024
"""Output waiting for one peer above which its connection is closed; it catches up over the next one."""
DIAL_SECONDS = 1.0
DIAL_PAUSE_SECONDS = 0.1
DIALED_PATIENCE_SECONDS = 2.0
"""How long the one with the smaller id waits to be dialled."""
REFUSED_PAUSE_SECONDS = 0.5
"""Before the next attempt at a peer that said why it ended the connection."""


class PeerListener(Protocol):
    """What links tell their owner; one that raises RemoteViolation in `message` ends that connection."""

    def connected(self, peer: str, *, connected: bool) -> None:
        """A member has proven itself here, or its connection is over."""

    def message(self, peer: str, data: bytes) -> None:
        """A whole frame of a proven member."""


class PeerLinks:
    """All connections of one controller."""

    def __init__(
        self,
        own: ControllerNode,
        members: Mapping[str, ControllerNode],
        key: bytes,
        magic: bytes,
        listener: PeerListener,
        *,
        silence_ms: int,
        judged: bool = False,
    ) -> None:
        """`magic` are the first bytes of every connection: members with another engine are refused by it.

        `judged`: who has the secret is connected, and the listener refuses whom it does not want.
        """
        self.own = own
        self.key = key
        self.magic = magic
        self.members = members
        self.judged = judged
        self.violations = 0
        self._configured = members
        self._listener = listener
        self._silence_seconds = silence_ms / 1000
        self._connections: dict[str, PeerConnection] = {}
        self._all: dict[PeerConnection, None] = {}
        """In the order in which they were made."""
        self._dialers: dict[str, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._log = get_logger("consensus")

    async def open(self, host: str) -> None:
        """Listen, and begin to dial. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: PeerConnection(self, None), host, self.own.raft_port
        )
        self.use(self.members)

    def use(self, members: Mapping[str, ControllerNode]) -> None:
        """Dial these from here on, each also at the address that the configuration has for it."""
        self.members = members
        for node_id in [each for each in self._dialers if each not in members]:
            self._dialers.pop(node_id).cancel()
        for node_id in members:
            if node_id != self.own.node_id and node_id not in self._dialers:
                self._dialers[node_id] = background.task(self._dial(node_id), f"connects to controller {node_id}")

    @property
    def connected(self) -> list[str]:
        """Node ids of the peers that proved themselves and are still there."""
        return list(self._connections)

    def refuse(self, peer: str, frame: bytes, reason: str) -> None:
        """End a proven peer's connection, with a last frame that tells it why if there is one."""
        connection = self._connections.get(peer)
        if connection is not None:
            if frame:
                self.violated(connection.address, reason)
            connection.finish(frame, reason)

    async def close(self) -> None:
        """Cancel the dialers, stop listening and drop all connections."""
        for task in self._dialers.values():
            task.cancel()
        await asyncio.gather(*self._dialers.values(), return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for connection in list(self._all):
            connection.end("this controller stops")

    def send(self, peer: str, data: bytes) -> bool:
        """A frame to a member, False when it is not connected."""
        connection = self._connections.get(peer)
        if connection is not None:
            connection.send(data)
        return connection is not None

    def tick(self) -> None:
        """Show every peer that we are here, and give up those that are not."""
        now = clock.monotonic_s()
        for connection in list(self._all):
            limit = self._silence_seconds if connection.session.proven else PROOF_SECONDS
            if now - connection.received_at > limit:
                connection.end("silence")
            elif connection.session.proven:
                connection.send(b"")

    def made(self, connection: PeerConnection) -> None:
        """A socket is connected. Of too many strangers the oldest goes, so that they keep no controller out."""
        self._all[connection] = None
        strangers = [each for each in self._all if not each.session.proven]
        if len(strangers) > STRANGERS_MAX:
            strangers[0].end("too many strangers")
            del self._all[strangers[0]]

    def proved(self, connection: PeerConnection) -> None:
        """The peer has the secret: it is connected now, here instead of on an older connection."""
        peer = connection.session.peer
        assert peer is not None
        older = self._connections.get(peer)
        self._connections[peer] = connection
        if older is not None:
            older.end("it connected again")
            self._listener.connected(peer, connected=False)
        self._listener.connected(peer, connected=True)
        self._log.info("controller_connected", peer=peer)

    def message(self, connection: PeerConnection, data: bytes) -> None:
        """A frame of a proven peer; one from a replaced connection is ignored."""
        peer = connection.session.peer
        assert peer is not None
        if self._connections.get(peer) is connection and not connection.refused:
            self._listener.message(peer, data)

    def lost(self, connection: PeerConnection, reason: str) -> None:
        """Forget a connection; the node counts as disconnected if it was the one in use."""
        self._all.pop(connection, None)
        peer = connection.session.peer
        if peer is not None and self._connections.get(peer) is connection:
            del self._connections[peer]
            self._listener.connected(peer, connected=False)
            self._log.info("controller_disconnected", peer=peer, reason=reason)

    def violated(self, address: str, reason: str) -> None:
        """Note a peer that broke the protocol or has another secret."""
        self.violations += 1
        self._log.warning("controller_refused", address=address, reason=reason)

    async def _dial(self, node_id: str) -> None:
        loop = asyncio.get_running_loop()
        attempts, patience = 0, 0.0 if node_id < self.own.node_id else DIALED_PATIENCE_SECONDS
        without_since = clock.monotonic_s()
        while True:
            pause = DIAL_PAUSE_SECONDS
            if node_id in self._connections:
                without_since = clock.monotonic_s()
            elif clock.monotonic_s() - without_since >= patience:
                known = [each[node_id] for each in (self.members, self._configured) if node_id in each]
                place, attempts = known[attempts % len(known)], attempts + 1
                try:
                    async with asyncio.timeout(DIAL_SECONDS):
                        _, connection = await loop.create_connection(
                            lambda: PeerConnection(self, node_id), place.host, place.raft_port
                        )
                    await asyncio.wait_for(connection.ended.wait(), None)
                    if connection.refused:
                        pause = REFUSED_PAUSE_SECONDS
                    without_since = clock.monotonic_s()
                except OSError:
                    pass  # it is unreachable: the next attempt follows
            await asyncio.sleep(pause)


class PeerConnection(asyncio.Protocol):
    """One socket between two controllers, dialled or accepted, with its encrypted stream."""

    def __init__(self, peers: PeerLinks, dialed: str | None) -> None:
        self.session = SecureChannel(
            peers.key, peers.own.node_id, None if peers.judged else peers.members, os.urandom(RANDOM_BYTES),
            dialed=dialed, magic=peers.magic,
        )  # fmt: skip
        self.refused = False
        """Whether the peer ends this connection, or this side does, because of who the other one is."""
        self.received_at = clock.monotonic_s()
        self.ended = asyncio.Event()
        self._peers = peers
        self._transport: asyncio.Transport | None = None
        self._reason = "it closed"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the hello that opens the encrypted stream."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        self._peers.made(self)
        self._transport.write(self.session.hello())

    def data_received(self, data: bytes) -> None:
        """Open frames; whatever is wrong with them ends the connection."""
        assert self._transport is not None
        was_proven = self.session.proven
        try:
            answer, contents = self.session.feed(data)
            if answer:
                self._transport.write(answer)
            if self.session.proven:
                self.received_at = clock.monotonic_s()
            if self.session.proven and not was_proven:
                self._peers.proved(self)
            for content in contents:
                self._peers.message(self, content)
        except RemoteViolation as violation:
            self._peers.violated(self.address, violation.reason)
            self.end(violation.reason)

    def send(self, data: bytes) -> None:
        """Seal and send; a peer that does not read is given up."""
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._transport.write(self.session.seal(data))
        if self._transport.get_write_buffer_size() > OUTPUT_BYTES_MAX:
            self.end("it does not read")

    @property
    def address(self) -> str:
        """Of the peer, for logs."""
        return str(self._transport.get_extra_info("peername")) if self._transport is not None else ""

    def finish(self, frame: bytes, reason: str) -> None:
        """Send a last frame and close behind it."""
        self._reason, self.refused = reason, True
        if self._transport is not None and not self._transport.is_closing():
            if frame:
                self._transport.write(self.session.seal(frame))
            self._transport.close()

    def end(self, reason: str) -> None:
        """Drop the socket without flushing; `reason` is logged."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        """Wake the dialer and take the connection out of the table."""
        self.ended.set()
        self._peers.lost(self, self._reason)
