"""Hosts and message ids of RocketMQ.

    offset id   hex(ip 4 or 16 | i32 port | i64 position): where the message lies; 32 or 56 digits

Invariant: unpack(pack(x)) == x. Thread rule: pure functions.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from ipaddress import ip_address

from remoting.protocol.errors import LocalMisuse, RemoteViolation

Host = tuple[str, int]
"""IP address text and port."""

HOSTS_KEPT_MAX = 1_024
"""Hosts whose forms are remembered: messages name the same few over and over."""

_PORT = struct.Struct(">i")


@lru_cache(HOSTS_KEPT_MAX)
def pack_host(host: Host) -> bytes:
    """Return ip and port as stored: 8 bytes for IPv4, 20 for IPv6; LocalMisuse if it is neither."""
    address, port = host
    try:
        return ip_address(address).packed + _PORT.pack(port)
    except (ValueError, struct.error) as error:
        raise LocalMisuse(f"{address}:{port} is not an IP address with a port") from error


@lru_cache(HOSTS_KEPT_MAX)
def unpack_host(packed: bytes) -> Host:
    """Return the host of 8 or 20 stored bytes."""
    if len(packed) not in (8, 20):
        raise RemoteViolation(f"a host of {len(packed)} bytes, it has 8 (IPv4) or 20 (IPv6)")
    return str(ip_address(packed[:-4])), _PORT.unpack(packed[-4:])[0]


def offset_message_id(store_host: Host, position: int) -> str:
    """Return the id that says where a message lies."""
    return (pack_host(store_host) + position.to_bytes(8, "big")).hex().upper()
