"""Peers: addresses of any kind of socket, and which are local."""

from __future__ import annotations

import ipaddress
import random

import pytest

from mqtt_proxy.listening.peer import (
    HEADER_BYTES_MAX,
    SIGNATURE,
    HeaderReader,
    HeaderViolation,
    ProxyHeader,
    RemoteAddress,
    direct_peer,
    is_loopback,
)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.5", True),
        ("10.0.0.1", False),
        ("", False),
        ("fe80::1%lo", False),
    ],
)
def test_loopback(address: str, expected: bool) -> None:
    """Loopback in either family, mapped addresses included."""
    assert is_loopback(address) is expected


def test_direct_peer() -> None:
    """The socket's own addresses; one that is closed, or not IP, has none and is not local."""
    assert direct_peer(("127.0.0.1", 5), "tls") == RemoteAddress("127.0.0.1", True, "tls")
    assert direct_peer(("2001:db8::1", 5, 0, 0), "tcp") == RemoteAddress("2001:db8::1", False, "tcp")
    assert (
        direct_peer(None, "tcp") == direct_peer("", "tcp") == direct_peer((), "tcp") == RemoteAddress("", False, "tcp")
    )


def binary(source: str, *, tlvs: bytes = b"", command: int = 0x21) -> bytes:
    address = ipaddress.ip_address(source)
    block = address.packed * 2 + b"\x30\x39\x07\x5b" + tlvs
    return SIGNATURE + bytes([command, 0x11 if address.version == 4 else 0x21]) + len(block).to_bytes(2, "big") + block


def read(data: bytes, *, step: int = 1 << 20) -> tuple[ProxyHeader, bytes]:
    """The header and the bytes that were not read, as seen by a reader that asks for the missing number of bytes."""
    reader, position = HeaderReader(), 0
    while position < len(data):
        size = min(reader.wanted, step)
        assert size > 0
        found = reader.feed(data[position : position + size])
        position += size
        if found is not None:
            return found, data[position:]
    raise EOFError


GOOD = [
    (b"PROXY TCP4 203.0.113.7 192.0.2.1 56324 1883\r\n", ProxyHeader("203.0.113.7")),
    (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", ProxyHeader("1.2.3.4")),
    (b"PROXY TCP6 2001:db8::7 ::1 1 65535\r\n", ProxyHeader("2001:db8::7")),
    (b"PROXY TCP6 :: :: 0 0\r\n", ProxyHeader("::")),
    (b"PROXY UNKNOWN\r\n", ProxyHeader(None)),
    (b"PROXY UNKNOWN ffff::1 what ever 1\r\n", ProxyHeader(None)),
    (binary("203.0.113.7"), ProxyHeader("203.0.113.7")),
    (binary("2001:db8::7"), ProxyHeader("2001:db8::7")),
    (binary("203.0.113.7", tlvs=b"\x04\x00\x03xyz\x20\xff\xff"), ProxyHeader("203.0.113.7")),
    (binary("203.0.113.7", command=0x20), ProxyHeader(None, local=True)),
    (SIGNATURE + b"\x20\x00\x00\x00", ProxyHeader(None, local=True)),
    (SIGNATURE + b"\x21\x00\x00\x00", ProxyHeader(None)),
    (SIGNATURE + b"\x21\x31\x00\xd8" + bytes(216), ProxyHeader(None)),
]


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize(("data", "expected"), GOOD)
def test_headers_are_read_to_the_byte(data: bytes, expected: ProxyHeader, step: int) -> None:
    """However the input is cut, the header is found and nothing after it is consumed."""
    assert read(data + b"\x16\x03\x01 hello", step=step) == (expected, b"\x16\x03\x01 hello")


BAD = [
    bytes.fromhex("101000044d51545404020000000473656c66"),
    b"GET /mqtt HTTP/1.1\r\n\r\n",
    b"PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n" + bytes(9),
    b"PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n",
    b"PROXY TCP4 1.2.3.4 5.6.7.8 -1 00002\r\n",
    b"PROXY TCP4 ::1 ::1 11111 22222\r\n      ",
    b"PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n",
    b"PROXY TCP4 host.example 5.6.7.8 1 2\r\n",
    b"PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n",
    b"PROXY TCP4 1.2.3.4 5.6.7.8 1111 2222\n",
    b"PROXY TCP4 1.2.3.4 5.6.7.8 \xb2\xb2 22222\r\n",
    b"PROXY " + b"x" * 200,
    SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12),
    SIGNATURE + b"\x22\x11\x00\x0c" + bytes(12),
    SIGNATURE + b"\x21\x41\x00\x0c" + bytes(12),
    SIGNATURE + b"\x21\x13\x00\x0c" + bytes(12),
    SIGNATURE + b"\x21\x11\x00\x0b" + bytes(11),
    SIGNATURE + b"\x21\x21\x00\x0c" + bytes(12),
    SIGNATURE + b"\x21\x11\xff\xff" + bytes(65_535),
]


@pytest.mark.parametrize("step", [1, 1 << 20])
@pytest.mark.parametrize("data", BAD)
def test_anything_else_is_refused(data: bytes, step: int) -> None:
    """Other protocols, wrong addresses, wrong lengths: all raise the same exception."""
    with pytest.raises(HeaderViolation):
        read(data, step=step)


def test_a_size_limit() -> None:
    """The largest header is accepted; one byte more is refused before it is buffered."""
    room = HEADER_BYTES_MAX - len(binary("1.2.3.4"))
    assert read(binary("1.2.3.4", tlvs=bytes(room)))[0] == ProxyHeader("1.2.3.4")
    reader = HeaderReader()
    over = binary("1.2.3.4", tlvs=bytes(room + 1))
    assert reader.feed(over[:12]) is None
    with pytest.raises(HeaderViolation, match="4097"):
        reader.feed(over[12:16])


def test_changed_bytes_never_raise_anything_else() -> None:
    """Every valid header with single bytes changed: a header, a request for more, or a violation."""
    seeded = random.Random(7)
    for data, _ in GOOD:
        for _ in range(300):
            changed = bytearray(data)
            changed[seeded.randrange(len(changed))] = seeded.randrange(256)
            try:
                read(bytes(changed), step=seeded.choice((1, 5, 100)))
            except (HeaderViolation, EOFError):
                continue
