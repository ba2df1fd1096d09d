"""Hosts and message ids of RocketMQ.

    offset id   hex(ip 4 or 16 | i32 port | i64 position): where the message lies; 32 or 56 digits
    unique id   hex(ip4 | u16 pid | i32 class loader hash | i32 ms of the month | u16 counter): who made it; 32 digits

Invariant: parse(make(x)) == x. Thread rule: pure functions; time and counters are the caller's.
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
_ID_TAIL = struct.Struct(">iq")
_UNIQUE = struct.Struct(">4sHIIH")
_DIGITS_V4 = 32
_DIGITS_V6 = 56


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


def parse_offset_message_id(message_id: str) -> tuple[Host, int]:
    """Return (store host, position); RemoteViolation for anything else than such an id."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError as error:
        raise RemoteViolation(f"message id {message_id[:64]!r} is not hexadecimal") from error
    if len(message_id) not in (_DIGITS_V4, _DIGITS_V6):
        raise RemoteViolation(f"message id of {len(message_id)} digits, it has {_DIGITS_V4} or {_DIGITS_V6}")
    return unpack_host(raw[:-8]), int.from_bytes(raw[-8:], "big")


def unique_message_id(ip: str, process_id: int, salt: int, month_ms: int, counter: int) -> str:
    """Return an id for a message whose client sent none; numbers are taken modulo their width."""
    packed = ip_address(ip).packed[-4:]
    fields = (process_id & 0xFFFF, salt & 0xFFFFFFFF, month_ms & 0xFFFFFFFF, counter & 0xFFFF)
    return _UNIQUE.pack(packed, *fields).hex().upper()
