"""Listening ports: which are plain, and which peers are trusted with a PROXY header."""

from __future__ import annotations

import ipaddress

from mqtt_proxy.listening.handshakes import PLAIN, ListenerSpec

LOCAL = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("2001:db8::/32"))


def test_plain() -> None:
    """Only a port with nothing before MQTT is plain."""
    assert PLAIN.plain
    assert not ListenerSpec(balancers=()).plain


def test_trust() -> None:
    """Networks of both families and mapped addresses; a peer without an address is not trusted."""
    door = ListenerSpec(name="tls", balancers=LOCAL)
    assert all(map(door.trusts, ("127.0.0.9", "::ffff:127.0.0.1", "2001:db8::5", "2001:db8::5%eth0")))
    assert not any(map(door.trusts, ("10.0.0.1", "::1", "", "nobody")))
    assert not PLAIN.trusts("127.0.0.1")
