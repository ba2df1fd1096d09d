"""What counts as one peer where something is bounded per address. Pure."""

from __future__ import annotations

import ipaddress

IPV6_NETWORK_BITS = 64
"""A customer's IPv6 network counts as one address: all addresses in it are theirs."""


def origin_of(address: str) -> str:
    """The unit that counts as one peer: an IPv4 address, or the network of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    mapped = getattr(parsed, "ipv4_mapped", None)
    if mapped is not None:
        return str(mapped)
    return str(ipaddress.ip_network((parsed, IPV6_NETWORK_BITS), strict=False))
