"""What one listening port speaks before MQTT begins: nothing, a PROXY header, TLS, WebSocket, in this order.

Invariant: a description only; `entrance` acts by it. Immutable but for the certificates behind `tls`.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from mqtt_proxy.listening.tls import TlsFiles
from mqtt_proxy.websocket.rules import Rules

Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSpec:
    """One kind of listener."""

    name: str = "tcp"
    tls: TlsFiles | None = None
    websocket: Rules | None = None
    balancers: Networks | None = None
    """Whose PROXY headers are believed; None: none is expected, and one would be a broken CONNECT."""

    @property
    def plain(self) -> bool:
        """Whether MQTT begins with the first byte of the socket."""
        return self.tls is None and self.websocket is None and self.balancers is None

    def trusts(self, address: str) -> bool:
        """Whether a balancer at this address may speak for clients."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self.balancers or ())


PLAIN = ListenerSpec()
