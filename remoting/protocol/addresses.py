"""Addresses as text: `host:port`, with brackets around an IPv6 address.

Invariant: splitting what was joined gives the same host and port. Pure.
"""

from __future__ import annotations


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address; the inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Return (host, port) of `host:port` or `[v6]:port`. Raises ValueError."""
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        message = f"{address!r} is not an address of the form host:port"
        raise ValueError(message)
    return host.strip("[]"), int(port)
