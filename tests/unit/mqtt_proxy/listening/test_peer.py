"""Peers: addresses of any kind of socket, and what is local."""

from __future__ import annotations

import pytest

from mqtt_proxy.listening.peer import RemoteAddress, direct_peer, is_loopback


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
    """Loopback in either family, also mapped."""
    assert is_loopback(address) is expected


def test_direct_peer() -> None:
    """A socket's own words; one that is gone, or not IP, is nobody and certainly not local."""
    assert direct_peer(("127.0.0.1", 5), "tls") == RemoteAddress("127.0.0.1", True, "tls")
    assert direct_peer(("2001:db8::1", 5, 0, 0), "tcp") == RemoteAddress("2001:db8::1", False, "tcp")
    assert (
        direct_peer(None, "tcp") == direct_peer("", "tcp") == direct_peer((), "tcp") == RemoteAddress("", False, "tcp")
    )
