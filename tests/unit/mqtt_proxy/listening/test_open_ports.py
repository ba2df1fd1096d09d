"""From configuration to ports: what is open, and that a failure leaves nothing open."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from mqtt_proxy.config import ListenConfig, ProxyConfig
from mqtt_proxy.listening.handshakes import CertificateProblem
from mqtt_proxy.listening.listener import Listening, PortUnavailable
from tests.support.certificates import HAVE_OPENSSL, Authority
from tests.unit.mqtt_proxy.listening.world import World

pytestmark = pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")


def listening(here: World, listen: ListenConfig) -> Listening:
    return Listening(ProxyConfig(port=0, listen=listen), here.listener, here.counters)


async def test_the_configured_ports_are_open(tmp_path: Path) -> None:
    """The plain port always, TLS when it is set, each with its own number and its own use of the PROXY header."""
    here = World()
    authority = Authority(tmp_path)
    identity = authority.issue()
    listen = ListenConfig(
        tls_port=0,
        ws_port=0,
        wss_port=0,
        tls_certificate=identity.certificate,
        tls_key=identity.key,
        proxy_protocol=("tcp",),
    )
    made = listening(here, listen)
    await made.start()
    assert set(made.ports) == {"tcp", "tls", "ws", "wss"}
    kept = [await here.open_at(made.ports["tls"], tls=authority.trusting()), await here.open_at(made.ports["tcp"])]
    while not here.listener.entrances:
        await asyncio.sleep(0)
    assert len(here.handlers) == len(kept) - 1
    await here.listener.stop()


async def test_a_port_in_use_leaves_none_open(tmp_path: Path) -> None:
    """The error names the port and its option."""
    here = World()
    identity = Authority(tmp_path).issue()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listen = ListenConfig(tls_port=port, tls_certificate=identity.certificate, tls_key=identity.key)
        made = listening(here, listen)
        with pytest.raises(PortUnavailable) as caught:
            await made.start()
    assert (caught.value.port, caught.value.option) == (port, "--tls-port")
    assert made.ports == {}
    assert not here.listener._servers


async def test_more_connections_than_descriptors_are_not_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy's own limit is reached first: it refuses one socket with a reason; the kernel's would hit whatever
    opens something next."""
    monkeypatch.setattr("mqtt_proxy.listening.listener.room_for", lambda wanted: min(wanted, 2))
    here = World()
    made = listening(here, ListenConfig())
    await made.start()
    kept = [await here.open_at(made.ports["tcp"]) for _ in range(3)]
    assert await asyncio.wait_for(kept[2][0].read(), 5) == b""
    assert here.counters.refused.child("connections_max").value == 1
    await here.listener.stop()


def test_a_bad_certificate_is_reported_before_anything_is_open(tmp_path: Path) -> None:
    """The first client is not the one to find out."""
    here = World()
    with pytest.raises(CertificateProblem):
        listening(here, ListenConfig(tls_port=0, tls_certificate=tmp_path / "c", tls_key=tmp_path / "k"))
