"""From an accepted socket to MQTT where something precedes it: PROXY header, TLS, WebSocket, in this order.

    accepted -> (PROXY header) -> admitted -> (TLS handshake) -> (WebSocket handshake) -> MqttConnection

Invariants: the socket counts from its first moment and has until the connect deadline for all of it together, CONNECT
included. Any failure closes it, counted by reason; no exception reaches the loop. The PROXY header is read to its last
byte and not beyond, so that TLS gets its hello. Certificate files are those of `CertificateFiles` (`TlsFiles`): a
reload that fails is counted and logged, and the previous certificate stays in use.
Loop rule: everything on the loop's thread; reading certificate files takes a millisecond and happens when they changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from mqtt_proxy.listening.connection import CLOSE_GRACE_S, LoopState, MqttConnection
from mqtt_proxy.listening.native_sockets import Driver
from mqtt_proxy.listening.open_sockets import OpenSockets
from mqtt_proxy.listening.peer import (
    HeaderReader,
    HeaderViolation,
    ProxyHeader,
    RemoteAddress,
    direct_peer,
    is_loopback,
)
from mqtt_proxy.listening.stream_connection import StreamProtocol
from mqtt_proxy.metrics import FrontCounters
from mqtt_proxy.websocket import Rules
from remoting.transport.certificates import LOOK_INTERVAL_MS, CertificateFiles, CertificateProblem
from runtime.logs import get_logger

__all__ = ["LOOK_INTERVAL_MS", "CertificateProblem", "TlsFiles", "certificate_name"]

_SAN_KINDS = {"uri": "URI", "email": "email", "dns": "DNS"}


class TlsFiles(CertificateFiles):
    """The files of one TLS identity, the context made of them, and the names of its clients."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        counters: FrontCounters,
        client_ca: Path | None = None,
        client_required: bool = False,
        client_name: str = "san",
    ) -> None:
        """Reads the files. CertificateProblem when they cannot be used: do not start then."""
        self._client_name = client_name
        self._counters = counters
        self._log = get_logger("mqtt_proxy.tls")
        super().__init__(certificate, key, client_ca=client_ca, client_required=client_required)

    def name_of(self, certificate: Mapping[str, Any] | None) -> str | None:
        """The name in a verified client certificate (as `getpeercert` returns it); None without one."""
        return certificate_name(certificate, self._client_name) if certificate else None

    def renewed(self) -> None:
        """Count and log that new files are in use."""
        self._counters.certificate_reloads.value += 1
        self._log.info("mqtt_certificate_read", certificate=str(self.certificate))

    def unusable(self, problem: CertificateProblem) -> None:
        """Count and log that new files cannot be used."""
        self._counters.certificate_failures.value += 1
        self._log.error("mqtt_certificate_unusable", problem=str(problem), consequence="the old one stays in use")


def certificate_name(certificate: Mapping[str, Any], wanted: str) -> str | None:
    """The name of the wanted kind (san, cn, uri, email, dns) in a certificate; None when it has none.

    A name with a control character counts as none: C code elsewhere would read only a part of it.
    """
    kinds = list(_SAN_KINDS) if wanted == "san" else [wanted]
    for kind in kinds:
        if kind in _SAN_KINDS:
            found = _first(value for name, value in certificate.get("subjectAltName", ()) if name == _SAN_KINDS[kind])
            if found is not None:
                return found
    if wanted in ("san", "cn"):
        return _first(value for part in certificate.get("subject", ()) for name, value in part if name == "commonName")
    return None


def _first(values: Iterable[object]) -> str | None:
    for value in values:
        if isinstance(value, str) and value and value.isprintable():
            return value
    return None


Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSpec:
    """One kind of listener."""

    name: str = "tcp"
    tls: TlsFiles | None = None
    websocket: Rules | None = None
    balancers: Networks | None = None
    """Balancers whose PROXY headers are accepted; None: none is expected, and one would be a malformed CONNECT."""

    @property
    def plain(self) -> bool:
        """Whether MQTT begins with the first byte of the socket."""
        return self.tls is None and self.websocket is None and self.balancers is None

    def trusts(self, address: str) -> bool:
        """Whether a balancer at this address may name clients."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self.balancers or ())


PLAIN = ListenerSpec()


LATE_S_MAX = 60.0
"""How much later than ours the loop's own limit of a TLS handshake is, which counts the time in which we are late."""
LOG = get_logger("mqtt_proxy.front")


class HandshakesHost(Protocol):
    """What the entrances of one listener share; implemented by the listener."""

    sockets: OpenSockets
    counters: FrontCounters
    entrances: set[Handshakes]

    def connection(self, opened_ms: int) -> MqttConnection:
        """A connection whose socket was opened then."""
        ...

    def stream(self, opened_ms: int, entrance: Handshakes | None) -> StreamProtocol:
        """A connection for a transport, whose socket was opened then and came by this entrance."""
        ...


class Handshakes:
    """One socket until MQTT begins on it."""

    __slots__ = (
        "_admitted",
        "_host",
        "_opened_ms",
        "_peer",
        "_shared",
        "_socket",
        "_spec",
        "_stage",
        "_task",
        "_timeout_ms",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        name: object,
        spec: ListenerSpec,
        *,
        shared: LoopState,
        host: HandshakesHost,
        timeout_ms: int,
    ) -> None:
        self._socket = sock
        self._peer = direct_peer(name, spec.name)
        self._spec = spec
        self._shared = shared
        self._host = host
        self._opened_ms = shared.now_ms()
        self._timeout_ms = timeout_ms
        self._stage = ""
        self._admitted: str | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start, unless a limit is reached."""
        if not self._host.sockets.enter(self._peer):
            self._socket.close()
            return
        self._host.entrances.add(self)
        self._shared.ring.watch(self)
        self._task = self._shared.loop.create_task(self._go())

    def next_deadline_ms(self) -> int:
        """When MQTT has to have begun."""
        return self._opened_ms + self._timeout_ms

    def expire(self) -> None:
        """The deadline passed: close and count the stage that did not finish."""
        self.end(f"{self._stage}_timeout")

    def arrived(self, transport: asyncio.BaseTransport) -> RemoteAddress | None:
        """MQTT begins on this transport: returns its peer. None when it came too late and has to be closed."""
        if self not in self._host.entrances:
            return None
        self._forget()
        if self._spec.tls is None:
            return self._peer
        name = self._spec.tls.name_of(transport.get_extra_info("peercert"))
        return replace(self._peer, certificate_name=name)

    def at(self, stage: str) -> None:
        """The socket has reached this stage; failures from now on are counted under its name."""
        self._stage = stage

    def connection(self) -> MqttConnection:
        """What MQTT begins on."""
        return self._host.connection(self._opened_ms)

    def end(self, reason: str, detail: str = "") -> None:
        """Close the socket and count it, by reason; once, and not after it has arrived."""
        if self in self._host.entrances:
            self.refused(reason, detail)
            with contextlib.suppress(OSError):  # the peer was faster
                self._socket.shutdown(socket.SHUT_RDWR)  # ends any wait for it: our reading, or the handshake

    def refused(self, reason: str, detail: str) -> None:
        """Remove the socket from the counts, with a reason that is counted; the caller closes it."""
        if self not in self._host.entrances:
            return
        self._host.counters.handshake_failures.child(reason).value += 1
        LOG.info(
            "mqtt_handshake_failed", reason=reason, detail=detail, listener=self._spec.name, peer=self._peer.address
        )
        self._leave()

    def _leave(self) -> None:
        self._forget()
        self._host.sockets.leave(self._admitted)

    def _forget(self) -> None:
        self._host.entrances.discard(self)
        self._shared.ring.forget(self)

    # -- stages --------------------------------------------------------------------------------------------------------

    async def _go(self) -> None:
        handed = False
        try:
            if self._spec.balancers is not None and not await self._spoken_for():
                return
            admitted = self._host.sockets.admit(self._peer, self._shared.now_ms())
            if admitted is None:
                self._leave()
                return
            self._peer, self._admitted = admitted, admitted.address
            handed = True
            await self._hand_over()
        except HeaderViolation as violation:
            self.end("proxy_header", str(violation))
        except (OSError, RuntimeError) as error:  # TLS alerts, resets, a socket that was closed
            self.end(self._stage or "left", getattr(error, "reason", None) or str(error) or type(error).__name__)
        finally:
            if not handed:
                self._socket.close()

    async def _spoken_for(self) -> bool:
        """Continue as the client that the balancer names, if this is one."""
        if not self._spec.trusts(self._peer.address):
            self.end("proxy_untrusted")
            return False
        self._stage = "proxy_header"
        reader, header = HeaderReader(), None
        while header is None:
            data = await self._shared.loop.sock_recv(self._socket, reader.wanted)
            if not data:
                self.end("proxy_header_left")
                return False
            header = reader.feed(data)
        self._peer = self._named(header)
        return self in self._host.entrances

    def _named(self, header: ProxyHeader) -> RemoteAddress:
        if header.source is None:
            return RemoteAddress(self._peer.address, False, self._spec.name)  # unknown peer: surely not a local one
        return RemoteAddress(header.source, self._peer.loopback and is_loopback(header.source), self._spec.name)

    async def _hand_over(self) -> None:
        """Make a transport of the socket, through TLS where it is wanted; the connection begins in it."""
        loop, tls = self._shared.loop, self._spec.tls
        if tls is None and self._spec.websocket is None and self._shared.driver is not None:
            self._adopt(self._shared.driver)
            return
        if tls is None:
            self._stage = ""
            await loop.connect_accepted_socket(self._protocol, self._socket)
            return
        self._stage = "tls"
        left_s = (self.next_deadline_ms() - self._shared.now_ms()) / 1_000
        await loop.connect_accepted_socket(
            self._protocol, self._socket, ssl=tls.context,
            ssl_handshake_timeout=max(left_s, 0) + LATE_S_MAX, ssl_shutdown_timeout=CLOSE_GRACE_S,
        )  # fmt: skip

    def _adopt(self, driver: Driver) -> None:
        """MQTT begins on the bare socket."""
        connection = self.connection()
        fd = self._socket.detach()
        try:
            wire = driver.adopt(fd, connection)
        except OSError:
            os.close(fd)
            raise
        self._forget()
        connection.begin(wire, self._peer)

    def _protocol(self) -> asyncio.BaseProtocol:
        if self._spec.websocket is None:
            return self._host.stream(self._opened_ms, self)
        from mqtt_proxy.listening.websocket_connection import (
            WebSocketWire,  # loads an HTTP parser that others need not load
        )

        return WebSocketWire(self._spec.websocket, self, self._shared, self._host.counters)
