"""The peer of a socket, as far as the socket and a PROXY header before MQTT identify it.

The PROXY header is how a balancer names the client whose connection it carries. Versions 1 (a line) and 2:

    v2: 12 signature bytes, version and command, family and protocol, length (2), addresses, TLVs
    v1: PROXY TCP4|TCP6|UNKNOWN source destination source-port destination-port CR LF

Invariants
- `loopback` is true only for a client that really is on this machine: its own socket comes from there and, with a
  balancer in between, the balancer's does as well. A header can only remove it.
- `wanted` is never more than what still belongs to the header, so that the reader takes no byte of what follows (a TLS
  hello must reach TLS). No input of a peer raises anything but `HeaderViolation`; at most `HEADER_BYTES_MAX` are kept.
  TLVs are skipped unread.
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


UNKNOWN_PEER = RemoteAddress("", False)
"""Of a connection whose peer was not admitted yet."""


def socket_address(peername: object) -> str:
    """The IP address in a socket's peer name as text; empty when there is none (closed already, or not IP)."""
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
    """The peer of a socket without a balancer."""
    return _peer_at(socket_address(peername), listener)


@functools.lru_cache(maxsize=1_024)
def _peer_at(address: str, listener: str) -> RemoteAddress:
    """One object for all connections of an address: many devices connect through one gateway."""
    return RemoteAddress(address, is_loopback(address), listener)


SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
LINE_BYTES_MAX = 107
"""Longest header of version 1, CR LF included."""
HEADER_BYTES_MAX = 4_096
"""Longest header of version 2; what a balancer adds about a client's certificate stays far below it."""

_LINE_BYTES_MIN = {b"PROXY UNKNO": 15, b"PROXY TCP4 ": 32, b"PROXY TCP6 ": 22}
_FIXED = 16
_ADDRESS_BYTES = {0x1: 4, 0x2: 16}
_BLOCK_BYTES_MIN = {0x0: 0, 0x1: 12, 0x2: 36, 0x3: 216}
_LOCAL, _PROXY = 0x20, 0x21


class HeaderViolation(Exception):
    """The input is no PROXY header; the connection has to be closed."""


@dataclass(slots=True, frozen=True)
class ProxyHeader:
    """The fields of a PROXY protocol header."""

    source: str | None
    """The client's address as text; None when the header names none (a health check, or not over IP)."""
    local: bool = False
    """The balancer's own connection, not a client's."""


class HeaderReader:
    """Takes one header; feed it exactly what it wants."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def wanted(self) -> int:
        """How many bytes certainly still belong to the header; at least one until it is complete."""
        data = self._data
        have = len(data)
        if have < len(SIGNATURE):
            return len(SIGNATURE) - have
        if data[: len(SIGNATURE)] == SIGNATURE:
            return (_FIXED if have < _FIXED else _FIXED + _length(data)) - have
        return max(1, _LINE_BYTES_MIN.get(bytes(data[:11]), 0) - have)

    def feed(self, data: bytes) -> ProxyHeader | None:
        """Take at most `wanted` bytes; returns the header once it is complete. HeaderViolation when it cannot become
        one."""
        held = self._data
        held += data
        if held[: len(SIGNATURE)] == SIGNATURE:
            return self._binary()
        if not SIGNATURE.startswith(held):
            return self._line()
        return None

    def _binary(self) -> ProxyHeader | None:
        held = self._data
        if len(held) < _FIXED:
            return None
        command, family = held[12], held[13] >> 4
        if command not in (_LOCAL, _PROXY) or family not in _BLOCK_BYTES_MIN or held[13] & 0xF > 2:
            raise HeaderViolation(f"command {held[12]:#x}, family {held[13]:#x}")
        size = _FIXED + _length(held)
        if size > HEADER_BYTES_MAX:
            raise HeaderViolation(f"a header of {size} bytes, at most {HEADER_BYTES_MAX}")
        if command == _PROXY and size - _FIXED < _BLOCK_BYTES_MIN[family]:
            raise HeaderViolation(f"{size - _FIXED} bytes for addresses of family {family}")
        if len(held) < size:
            return None
        width = _ADDRESS_BYTES.get(family, 0) if command == _PROXY else 0
        source = str(ipaddress.ip_address(bytes(held[_FIXED : _FIXED + width]))) if width else None
        return ProxyHeader(source, local=command == _LOCAL)

    def _line(self) -> ProxyHeader | None:
        held = self._data
        if not (b"PROXY ".startswith(held) or held.startswith(b"PROXY ")):
            raise HeaderViolation("no PROXY header")
        if not held.endswith(b"\n"):
            if len(held) >= LINE_BYTES_MAX or b"\n" in held:
                raise HeaderViolation(f"no line of at most {LINE_BYTES_MAX} bytes")
            return None
        if not held.endswith(b"\r\n") or not held.isascii():
            raise HeaderViolation("a line that is none")
        return _parse(held[:-2].decode("ascii").split(" "))


def _length(data: bytearray) -> int:
    return int.from_bytes(data[14:16], "big")


def _parse(words: list[str]) -> ProxyHeader:
    """The words of a version 1 line."""
    kind = words[1]
    if kind == "UNKNOWN":
        return ProxyHeader(None)
    if kind not in ("TCP4", "TCP6") or len(words) != 6:
        raise HeaderViolation(f"{len(words)} words, protocol {kind[:8]!r}")
    try:
        source, destination = ipaddress.ip_address(words[2]), ipaddress.ip_address(words[3])
    except ValueError:
        raise HeaderViolation("an address that is none") from None
    if {source.version, destination.version} != {int(kind[3])}:
        raise HeaderViolation("an address of the other family")
    if not all(port.isdecimal() and len(port) <= 5 and int(port) <= 65_535 for port in words[4:]):
        raise HeaderViolation("a port that is none")
    return ProxyHeader(str(source))
