"""From a socket to MQTT: PROXY headers, TLS, both; incomplete handshakes end at the deadline."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from mqtt_proxy.listening.handshakes import ListenerSpec, TlsFiles
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from tests.support.certificates import HAVE_OPENSSL, Authority
from tests.unit.mqtt_proxy.listening.world import World, world

pytestmark = [
    pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning"),
    pytest.mark.usefixtures("twin"),
]
needs_openssl = pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")
CONNECT = encode(packets.Connect("dev", True, 60))
CONNACK = b"\x20\x02\x00\x00"
LOCAL = (ipaddress.ip_network("127.0.0.0/8"),)
FOREIGN = (ipaddress.ip_network("10.0.0.0/8"),)
LINE = b"PROXY TCP4 203.0.113.7 192.0.2.1 56324 1883\r\n"


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Every test runs on both loops: each has its own TLS on a socket that was read before."""
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def ended(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), 10) == b""
    return True


def tls_door(authority: Authority, here: World, **options: Any) -> ListenerSpec:
    identity = authority.issue()
    balancers = options.pop("balancers", None)
    files = TlsFiles(identity.certificate, identity.key, counters=here.counters, **options)
    return ListenerSpec(name="tls", tls=files, balancers=balancers)


async def test_the_balancer_names_the_client() -> None:
    """Address and locality are the client's, for limits and for anonymous access; bytes after the header are MQTT."""
    async with world(door=ListenerSpec(balancers=LOCAL), connections_per_address_max=1) as here:
        reader, _ = await here.open(LINE, CONNECT)
        assert await asyncio.wait_for(reader.readexactly(4), 5) == CONNACK
        connection = here.handlers[0].connection
        assert (connection.peer.address, connection.peer.loopback, connection.peer.listener) == (
            "203.0.113.7",
            False,
            "tcp",
        )
        refused, _ = await here.open(LINE)
        assert await ended(refused)
        assert here.counters.refused.child("connections_per_address_max").value == 1
        other, _ = await here.open(b"PROXY TCP4 127.0.0.1 192.0.2.1 1 1\r\n", CONNECT)
        assert await asyncio.wait_for(other.readexactly(4), 5) == CONNACK
        assert here.handlers[1].connection.peer.loopback
        assert len(here.listener.sockets) == 2


async def test_a_header_without_a_client_is_not_local() -> None:
    """Health checks and unknown clients keep the socket's address but do not count as local."""
    async with world(door=ListenerSpec(balancers=LOCAL)) as here:
        reader, _ = await here.open(b"PROXY UNKNOWN\r\n", CONNECT)
        assert await asyncio.wait_for(reader.readexactly(4), 5) == CONNACK
        connection = here.handlers[0].connection
        assert (connection.peer.address, connection.peer.loopback) == ("127.0.0.1", False)


@pytest.mark.parametrize(
    ("networks", "sent", "reason"),
    [
        (LOCAL, CONNECT, "proxy_header"),
        (LOCAL, b"GET / HTTP/1.1\r\n\r\n", "proxy_header"),
        (FOREIGN, LINE + CONNECT, "proxy_untrusted"),
    ],
)
async def test_without_a_trusted_header_no_client_is_admitted(networks: Any, sent: bytes, reason: str) -> None:
    """No header, another protocol, or a header from an address that is not trusted."""
    async with world(door=ListenerSpec(balancers=networks)) as here:
        reader, _ = await here.open(sent)
        assert await ended(reader)
        assert here.counters.handshake_failures.child(reason).value == 1
        assert not here.handlers
        assert (len(here.listener.sockets), here.listener.entrances) == (0, set())


@needs_openssl
async def test_tls_and_a_client_certificate(tmp_path: Path) -> None:
    """MQTT over TLS; the name in a certificate of the right authority is used, without a certificate there is none."""
    authority = Authority(tmp_path)
    async with world() as here:
        port = await here.door(tls_door(authority, here, client_ca=authority.certificate))
        reader, writer = await here.open_at(port, CONNECT, tls=authority.trusting())
        assert await asyncio.wait_for(reader.readexactly(4), 5) == CONNACK
        shown = authority.issue("device-7", "URI:spiffe://plant/7,DNS:device-7.example").context(authority.certificate)
        second, _ = await here.open_at(port, CONNECT, tls=shown)
        assert await asyncio.wait_for(second.readexactly(4), 5) == CONNACK
        first, named = (handler.connection for handler in here.handlers)
        assert (first.peer.certificate_name, named.peer.certificate_name) == (None, "spiffe://plant/7")
        assert (first.peer.listener, first.peer.address, first.peer.loopback) == ("tls", "127.0.0.1", True)
        big = packets.Publish(b"t", bytes(200_000), 0, False, False, 0)
        writer.write(encode(big) * 3)
        await until(lambda: sum(len(getattr(e, "publishes", ())) for e in here.handlers[0].events) == 3)
        writer.close()
        assert await asyncio.wait_for(here.handlers[0].closed, 5) == ("peer_closed", False)
    assert len(here.listener.sockets) == 0


@needs_openssl
async def test_required_certificates(tmp_path: Path) -> None:
    """A missing one, or one of another authority, ends the handshake and is counted."""
    authority, stranger = Authority(tmp_path / "a"), Authority(tmp_path / "b", "stranger")
    async with world() as here:
        port = await here.door(tls_door(authority, here, client_ca=authority.certificate, client_required=True))
        for context in (authority.trusting(), stranger.issue().context(authority.certificate)):
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                reader, _ = await here.open_at(port, CONNECT, tls=context)
                with contextlib.suppress(ssl.SSLError):
                    assert await ended(reader)
        await until(lambda: here.counters.handshake_failures.child("tls").value == 2)
        assert not here.handlers
        assert (len(here.listener.sockets), here.listener.entrances) == (0, set())


@needs_openssl
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1")
async def test_plain_bytes_and_old_versions_at_the_tls_port(tmp_path: Path) -> None:
    """A client without TLS, or with too old a version, is refused and counted; so is one that leaves half-way."""
    authority = Authority(tmp_path)
    async with world() as here:
        port = await here.door(tls_door(authority, here))
        reader, _ = await here.open_at(port, CONNECT * 10)
        await asyncio.wait_for(reader.read(), 10)  # an alert or nothing, then the end
        old = authority.trusting()
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await here.open_at(port, tls=old)
        _, writer = await here.open_at(port, b"\x16\x03\x01")
        writer.close()
        await until(lambda: here.counters.handshake_failures.child("tls").value == 3)
        assert not here.handlers
        assert (len(here.listener.sockets), here.listener.entrances) == (0, set())


@needs_openssl
async def test_a_header_before_tls(tmp_path: Path) -> None:
    """Header and hello in one segment: the header is read to its last byte, and TLS gets the rest complete."""
    authority = Authority(tmp_path)
    async with world() as here:
        port = await here.door(tls_door(authority, here, balancers=LOCAL))
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = authority.trusting().wrap_bio(to_client, to_server, server_hostname="localhost")
        reader, writer = await here.open_at(port)
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        writer.write(LINE + to_server.read())
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(to_server.read())
                to_client.write(await asyncio.wait_for(reader.read(65_536), 5))
        client.write(CONNECT)
        writer.write(to_server.read())
        got = b""
        while not got:
            to_client.write(await asyncio.wait_for(reader.read(65_536), 5))
            with contextlib.suppress(ssl.SSLWantReadError):
                got = client.read()
        assert got == CONNACK
        assert here.handlers[0].connection.peer.address == "203.0.113.7"


@needs_openssl
@pytest.mark.parametrize(("kind", "reason"), [("header", "proxy_header_timeout"), ("tls", "tls_timeout")])
async def test_incomplete_handshakes_end_at_the_deadline(kind: str, reason: str, tmp_path: Path) -> None:
    """They have the time of a CONNECT, count as sockets meanwhile, and leave nothing behind."""
    authority = Authority(tmp_path)
    async with world(limits=SessionLimits(connect_deadline_ms=3_000), connections_max=2) as here:
        door = ListenerSpec(balancers=LOCAL) if kind == "header" else tls_door(authority, here)
        port = await here.door(door)
        readers = [(await here.open_at(port, b"" if kind == "header" else b"\x16\x03"))[0] for _ in range(2)]
        await until(lambda: len(here.listener.entrances) == 2)
        over, _ = await here.open_at(port)
        assert await ended(over)
        assert here.counters.refused.child("connections_max").value == 1
        here.clock.advance_ms(3_600)
        here.listener._expire()
        for reader in readers:
            assert await ended(reader)
        assert here.counters.handshake_failures.child(reason).value == 2
        assert (len(here.listener.sockets), here.listener.entrances) == (0, set())


@needs_openssl
async def test_the_deadline_begins_with_the_socket(tmp_path: Path) -> None:
    """A handshake does not extend the time for the CONNECT."""
    authority = Authority(tmp_path)
    async with world(limits=SessionLimits(connect_deadline_ms=3_000)) as here:
        port = await here.door(tls_door(authority, here))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: here.listener.entrances)
        here.clock.advance_ms(2_000)
        await writer.start_tls(authority.trusting(), server_hostname="localhost")
        await until(lambda: here.handlers)
        here.clock.advance_ms(1_600)
        here.listener._expire()
        assert await asyncio.wait_for(here.handlers[0].closed, 5) == ("connect_timeout", False)
        assert await ended(reader)


@needs_openssl
async def test_renewal_keeps_connections(tmp_path: Path) -> None:
    """A connection survives a reload of its certificate, and new ones get the new certificate."""
    authority = Authority(tmp_path)
    async with world() as here:
        door = tls_door(authority, here)
        port = await here.door(door)
        first, writer = await here.open_at(port, CONNECT, tls=authority.trusting())
        assert await first.readexactly(4) == CONNACK
        renewed = authority.issue()
        assert door.tls is not None
        door.tls.certificate.write_bytes(renewed.certificate.read_bytes())
        door.tls._key.write_bytes(renewed.key.read_bytes())
        assert here.listener.reload()
        second, other = await here.open_at(port, CONNECT, tls=authority.trusting())
        assert await second.readexactly(4) == CONNACK
        serials = [each.get_extra_info("peercert")["serialNumber"] for each in (writer, other)]
        assert serials[0] != serials[1]
        writer.write(encode(packets.Pingreq()))
        assert await asyncio.wait_for(first.readexactly(2), 5) == b"\xd0\x00"


@needs_openssl
async def test_stop_ends_incomplete_handshakes_too(tmp_path: Path) -> None:
    """After the stop no socket is open, at whatever stage it was."""
    here = World()
    port = await here.door(tls_door(Authority(tmp_path), here))
    reader, _ = await here.open_at(port)
    await until(lambda: here.listener.entrances)
    await here.listener.stop()
    assert await ended(reader)
    assert here.counters.handshake_failures.child("server_stopping").value == 1
    assert len(here.listener.sockets) == 0
