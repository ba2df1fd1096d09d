"""A listening server: accepts sockets, limits their number, gives every peer the same handler, closes all at stop.

Connections of peers that must prove a key and have not are closed when silent, so that they occupy no slot:

    no request yet         a whole request within UNPROVEN_FIRST_S of the connection, TLS included
    requests so far        the next one within `unproven_idle_ms`; `Intake` limits the time of a frame that has begun
    proved, or trusted     no limit

`PageAccess` decides about the pages of an administration port: the reader's key is proved by HTTP, then the
`Authorizer` of the requests decides.

    Authorization: Basic base64(key:secret)      sent by browsers, curl and Prometheus' basic_auth
    Authorization: Bearer key:secret             the line of a key file, for Prometheus' credentials_file

Keys are required as for requests: without an access list, not of clients on this machine, but of all others; with a
list, a peer without a key is anonymous, on this machine too. Pages without an action are for probes, and reveal only
yes or no.
Invariants: a peer is in `peers` from its connection to its loss, and there are never more than `connections_max`; an
unknown key and a wrong secret get the same answer; no secret is logged.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from remoting import clock
from remoting.protocol.frames.frame import FRAME_SIZE_BYTES_MAX
from remoting.server.authorizer import Authorizer
from remoting.server.peer import Intake, IntakeLimits, PeerFrames, SocketPeer, is_loopback
from remoting.server.router import Access
from remoting.transport.certificates import LOOK_INTERVAL_MS, ServerTls
from remoting.transport.contracts import Handler
from remoting.transport.link import OUTPUT_BYTES_MAX, FrameLink, LinkCounters, LinkSettings
from remoting.transport.patience import late_s

UNPROVEN_FIRST_S = 10.0
"""Longest time from a connection without a proved key to its first whole request."""
SILENT = "silent"
"""Reason of closing such a connection, as a metric label."""


class Stranger(Protocol):
    """A connection whose peer has to prove a key."""

    @property
    def proved(self) -> bool:
        """Whether its requests are signed, or need no signature."""
        ...

    @property
    def begun(self) -> bool:
        """Whether there is an unfinished frame, which has its own time limit."""
        ...

    @property
    def frames_in(self) -> int:
        """Number of complete requests so far."""
        ...


class Strangers:
    """Watches the unproved connections of one server for silence."""

    def __init__(self, idle_ms: int) -> None:
        self.closed = 0
        self._idle_s = idle_ms / 1_000
        self._heard: dict[Stranger, tuple[float, int]] = {}
        """Time of the last activity, and number of requests then."""

    def __len__(self) -> int:
        return len(self._heard)

    def came(self, stranger: Stranger, now_s: float) -> None:
        """Watch a new connection, unless it needs no proof."""
        if not stranger.proved:
            self._heard[stranger] = now_s, 0

    def forget(self, stranger: Stranger) -> None:
        """Stop watching a connection that has ended."""
        self._heard.pop(stranger, None)

    def excuse(self, late_s: float) -> None:
        """This side was late by so much: nobody is charged for it."""
        for stranger, (heard_s, frames) in self._heard.items():
            self._heard[stranger] = heard_s + late_s, frames

    def overdue(self, now_s: float) -> Iterator[Stranger]:
        """Yield and count the connections that have been silent for too long; to be called periodically."""
        for stranger, (heard_s, frames) in list(self._heard.items()):
            if stranger.proved:
                del self._heard[stranger]
            elif stranger.begun or stranger.frames_in != frames:
                self._heard[stranger] = now_s, stranger.frames_in
            elif now_s - heard_s > (self._idle_s if frames else UNPROVEN_FIRST_S):
                self.closed += 1
                yield stranger


LOG = logging.getLogger("remoting")

CONNECTIONS_MAX = 10_000
"""Most connections of one server; the next one is closed as soon as it is accepted."""

SWEEP_INTERVAL_S = 0.5
"""How often overdue frames and silent connections are searched for."""

ACCEPT_BACKLOG = 1024
"""Connections the kernel keeps while the loop is busy."""


@dataclass(slots=True)
class ServerCounters:
    """Connections of one server, as plain integers for metrics; bytes and frames are in `LinkCounters`."""

    accepted: int = 0
    refused: int = 0
    """Closed on arrival because there were already `connections_max`."""
    lost: int = 0


class RemotingServer:
    """A port of the remoting protocol, and further ones that share its handler, peers and limits."""

    def __init__(
        self,
        handler: Handler,
        *,
        frame_size_bytes_max: int = FRAME_SIZE_BYTES_MAX,
        output_bytes_max: int = OUTPUT_BYTES_MAX,
        connections_max: int = CONNECTIONS_MAX,
        on_connection: Callable[[SocketPeer], None] | None = None,
        tls: ServerTls | None = None,
        access: Access | None = None,
        intake: IntakeLimits | None = None,
    ) -> None:
        """`tls`: the certificate, and whether peers without TLS are served; None: no TLS. `access`: which peers need no
        proof; None: those on this machine. `intake`: limits on unfinished frames."""
        self._handler = handler
        self._connections_max = connections_max
        self._on_connection = on_connection
        self._tls = tls
        self._access = access
        self.intake = Intake(intake)
        self.strangers = Strangers(self.intake.limits.unproven_idle_ms)
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._settings = LinkSettings(frame_size_bytes_max, output_bytes_max)
        self._listeners: list[asyncio.Server] = []
        self._empty = asyncio.Event()
        self._empty.set()
        self.counters = ServerCounters()
        self.peers: dict[SocketPeer, None] = {}
        """In the order in which they came: they are closed in it, not in one that differs with each process."""
        self.port = 0

    @property
    def link_counters(self) -> LinkCounters:
        """Bytes, frames and violations of all connections so far."""
        return self._settings.counters

    def read_counts(self) -> dict[str, int]:
        """Bytes of unfinished frames now, by kind of peer, and connections cut, by reason."""
        intake = self.intake
        counts = {"proved": intake.reserved_bytes, "unproven": intake.unproven_bytes, **intake.refused}
        return {**counts, SILENT: self.strangers.closed, "foreign": self._settings.counters.foreign}

    def tls_counts(self) -> tuple[int, int, int, int]:
        """Numbers of connections on which TLS began and failed; of certificates reloaded and found unusable."""
        counters, tls = self._settings.counters, self._tls
        files = (0, 0) if tls is None else (tls.reloads, tls.reload_failures)
        return counters.tls_handshakes, counters.tls_failures, *files

    async def start(self, host: str, port: int, *, reuse_port: bool = False) -> int:
        """Listen on host:port (0 = any free port) and return the port; OSError names a port that is taken.

        With `reuse_port` other processes of the same user may listen there too, and the kernel distributes connections.
        """
        self.port = await self._listen(host, port, reuse_port=reuse_port)
        self._watch_certificate()
        self._sweep()
        return self.port

    async def listen_also(self, host: str, port: int) -> int:
        """Accept at a further port of a started server, like at the first one; OSError as for `start`."""
        assert self._listeners, "the server has not started"
        return await self._listen(host, port)

    def reload(self) -> None:
        """Reload the certificate now; connections keep the one they began with."""
        if self._tls is not None:
            self._tls.reload()

    async def stop(self, deadline_seconds: float = 2.0) -> None:
        """Stop listening, send all queued output, close; after the deadline abort the rest."""
        if not self._listeners:
            return
        for timer in (self._look_timer, self._sweep_timer):
            if timer is not None:
                timer.cancel()
        for listener in self._listeners:
            listener.close()
        for peer in list(self.peers):
            peer.close("the server stops")
        try:
            await asyncio.wait_for(self._empty.wait(), deadline_seconds)
        except TimeoutError:
            for peer in list(self.peers):
                peer.abort("the server stops")
            await self._empty.wait()
        self._listeners.clear()

    async def _listen(self, host: str, port: int, *, reuse_port: bool = False) -> int:
        loop = asyncio.get_running_loop()
        try:
            listener = await loop.create_server(
                self._make_peer, host, port, backlog=ACCEPT_BACKLOG, reuse_port=reuse_port or None
            )
        except OSError as error:
            message = f"cannot listen on {host}:{port} ({error.strerror or error}): is another server running there?"
            raise OSError(error.errno, message) from error
        self._listeners.append(listener)
        return int(listener.sockets[0].getsockname()[1])

    def _make_peer(self) -> FrameLink:
        peer = SocketPeer(
            self._handler, self._settings, self._peer_made, self._peer_lost, self._tls, self.intake, self._access
        )
        return peer.link

    def _sweep(self) -> None:
        """Cut the connections with overdue frames, and those that are silent without a proved key."""
        loop = asyncio.get_running_loop()
        if self._sweep_timer is not None:
            late = late_s(self._sweep_timer.when(), clock.monotonic_s())
            if late:
                self.intake.excuse(late)
                self.strangers.excuse(late)
        for reader, reason in self.intake.overdue(clock.monotonic_s()):
            cast("PeerFrames", reader).cut(f"{reason}: a frame that began was not finished in time")
        for stranger in self.strangers.overdue(clock.monotonic_s()):
            cast("PeerFrames", stranger).cut(f"{SILENT}: it has proved no key and was silent for too long")
        self._sweep_timer = loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def _watch_certificate(self) -> None:
        """Check periodically whether the certificate has changed."""
        if self._tls is not None:
            loop = asyncio.get_running_loop()
            self._tls.refresh(int(clock.monotonic_s() * 1_000))
            self._look_timer = loop.call_later(LOOK_INTERVAL_MS / 1_000, self._watch_certificate)

    def _peer_made(self, peer: SocketPeer) -> bool:
        self.peers[peer] = None
        self._empty.clear()
        if len(self.peers) > self._connections_max:
            self.counters.refused += 1
            LOG.warning("connection of %s refused: there are %d already", peer.address, self._connections_max)
            return False
        self.counters.accepted += 1
        self.strangers.came(peer.frames, clock.monotonic_s())
        if self._on_connection is not None:
            self._on_connection(peer)
        return True

    def _peer_lost(self, peer: SocketPeer, reason: str) -> None:
        self.peers.pop(peer, None)
        self.strangers.forget(peer.frames)
        self.counters.lost += 1
        if not self.peers:
            self._empty.set()
        LOG.debug("connection of %s ended: %s", peer.address, reason)


ALLOWED, UNPROVEN, FORBIDDEN = "", "unproven", "forbidden"


class PageAccess:
    """Decides about access to the administration port of one process; see `runtime.admin.Guard`."""

    def __init__(self, access: Access, authorizer: Authorizer, actions: Mapping[str, str]) -> None:
        """`actions`: page -> the action that `authorize` checks; empty for public pages."""
        self._access = access
        self._authorizer = authorizer
        self._actions = dict(actions)

    @property
    def pages(self) -> Collection[str]:
        """The pages it decides about."""
        return self._actions.keys()

    def proves(self, authorization: str) -> bool:
        """Whether the header has a known key with its secret, which no web page can send on its own."""
        return self._access.knows_secret(*credentials(authorization))

    def digest(self, key: str) -> bytes | None:
        """Return what changes when a key's secret does; None for an unknown key."""
        return self._access.digest(key)

    def knows_secret(self, key: str, secret: str) -> bool:
        """Whether this is the secret of a known key; takes the same time for an unknown key."""
        return self._access.knows_secret(key, secret)

    def permits(self, key: str, action: str) -> bool:
        """Whether a proved key may do this in the whole installation."""
        return self._authorizer.permits(key, action, "console", counted=False)

    def judge(self, page: str, address: str, authorization: str, *, counted: bool = True) -> str:
        """Return ALLOWED, UNPROVEN when the peer needs a key, or FORBIDDEN when it needs another one.

        `counted`: count a refusal.
        """
        action = self._actions[page]
        if not action:
            return ALLOWED
        key, secret = credentials(authorization)
        identity = self._access.proved_by_secret(key, secret, loopback=is_loopback(address))
        if identity is None:
            return UNPROVEN
        if self._authorizer.permits(identity, action, page, counted=counted):
            return ALLOWED
        return FORBIDDEN if identity else UNPROVEN


def credentials(authorization: str) -> tuple[str, str]:
    """Return key and secret of the header; two empty texts if it has none."""
    scheme, _, rest = authorization.partition(" ")
    rest = rest.strip()
    if scheme.lower() == "basic":
        try:
            rest = base64.b64decode(rest, validate=True).decode()
        except (binascii.Error, ValueError):
            return "", ""
    elif scheme.lower() != "bearer":
        return "", ""
    key, _, secret = rest.partition(":")
    return key, secret
