"""Who is at the other end of a socket, as far as the socket and what stands before MQTT on it tell.

Invariant: `loopback` is true only for a client that really is on this machine: its own socket comes from there and,
when a balancer spoke for it, the balancer's does as well. What a header claims can take that away, never give it.
Pure but for reading a transport's peer name.
"""

from __future__ import annotations

import functools
import ipaddress
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class RemoteAddress:
    """The other end of one connection."""

    address: str
    """IP address as text; empty when the socket had none any more."""
    loopback: bool
    listener: str = "tcp"
    """Which listener took it: tcp, tls, ws or wss."""
    certificate_name: str | None = None
    """The name in the client certificate that TLS has verified; None without one."""
    over_connect_rate: bool = False
    """Its address connects too fast: its CONNECT will be refused."""


def socket_address(peername: object) -> str:
    """The IP address in a socket's peer name as text; empty when there is none (already gone, or not IP)."""
    return str(peername[0]) if isinstance(peername, tuple) and peername else ""


def is_loopback(address: str) -> bool:
    """Whether this address, in either family or mapped, is this machine's own."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def direct_peer(peername: object, listener: str) -> RemoteAddress:
    """The peer of a socket that nobody speaks for."""
    return _peer_at(socket_address(peername), listener)


@functools.lru_cache(maxsize=1_024)
def _peer_at(address: str, listener: str) -> RemoteAddress:
    """One object for all connections of an address: many devices come through one gateway."""
    return RemoteAddress(address, is_loopback(address), listener)
