"""Which connections of replicas begin, with TLS or without: real sockets, certificates made with openssl."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.replication import tls_detection as ha_door
from broker.replication.tls_detection import TlsAcceptor
from remoting.client.tls import ClientTls
from remoting.transport.certificates import ENFORCING, PERMISSIVE, ServerTls
from tests.support.certificates import HAVE_OPENSSL, Authority
from tests.unit.broker.replication.streams import Master, Replica, fill, same_bytes, until

pytestmark = pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")
GREETING = b"speaks first"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> tuple[Path, Path]:
    identity = authority.issue()
    return identity.certificate, identity.key


class Echo(asyncio.Protocol):
    """Greets, echoes its input, and records its events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def connection_made(self, transport) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=0)
        assert transport.get_extra_info("peername")[0] == "127.0.0.1"
        assert not transport.is_closing()
        transport.write(GREETING)

    def data_received(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        self.transport.writelines((data[:1], memoryview(data)[1:]))

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, error) -> None:
        self.events.append("lost")
        assert self.transport.is_closing()


class Port:
    """A listening port with TLS detection."""

    def __init__(self, tls: ServerTls | None) -> None:
        self.made: list[Echo] = []
        self.refused: list[str] = []
        self.doors = TlsAcceptor(tls, self.make, lambda _address, reason: self.refused.append(reason))

    def make(self) -> Echo:
        self.made.append(Echo())
        return self.made[-1]

    async def connect(self, tls: ssl.SSLContext | None = None):
        name = {"ssl": tls, "server_hostname": "localhost"} if tls is not None else {}
        return await asyncio.open_connection("127.0.0.1", self.number, **name)


@asynccontextmanager
async def port(tls: ServerTls | None) -> AsyncIterator[Port]:
    made = Port(tls)
    server = await asyncio.get_running_loop().create_server(made.doors, "127.0.0.1", 0)
    made.number = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.doors.close()


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes = b"hello") -> None:
    assert await reader.readexactly(len(GREETING)) == GREETING
    writer.write(data)
    assert await reader.readexactly(len(data)) == data


@pytest.mark.parametrize("mode", [None, PERMISSIVE])
async def test_without_tls_a_replica_is_greeted(files, mode) -> None:
    """At once where there is no certificate, else after a moment of silence."""
    async with port(None if mode is None else ServerTls(*files, mode=mode)) as made:
        reader, writer = await made.connect()
        await talk(reader, writer)
        writer.transport.abort()
        await until(lambda: made.made[0].events == ["lost"])
        assert not made.doors.open


@pytest.mark.parametrize("mode", [PERMISSIVE, ENFORCING])
async def test_with_tls_it_is_greeted_encrypted(files, authority, mode) -> None:
    """More than one buffer in both directions."""
    async with port(ServerTls(*files, mode=mode)) as made:
        reader, writer = await made.connect(authority.trusting())
        assert writer.get_extra_info("ssl_object").version().startswith("TLS")
        await talk(reader, writer, bytes(range(256)) * 8_000)
        writer.transport.abort()
        await until(lambda: "lost" in made.made[0].events)
        assert not made.doors.open
        assert made.refused == []


async def test_the_connection_behind_is_paused_when_its_peer_does_not_read(files, authority) -> None:
    """Its protocol is paused, and resumed when everything has been sent."""
    async with port(ServerTls(*files)) as made:
        reader, writer = await made.connect(authority.trusting())
        await talk(reader, writer)
        echo, size = made.made[0], 32 * 1024 * 1024
        echo.transport.write(bytes(size))
        await until(lambda: echo.events == ["pause"])
        await reader.readexactly(size)
        await until(lambda: echo.events == ["pause", "resume"])
        writer.transport.abort()


async def test_where_tls_is_enforced_nothing_is_sent_without_it(files, monkeypatch) -> None:
    """Neither with a silent peer nor with one of another protocol."""
    monkeypatch.setattr(ha_door, "TLS_WITHIN_S", 0.05)
    async with port(ServerTls(*files, mode=ENFORCING)) as made:
        silent, _writer = await made.connect()
        assert await silent.read() == b""
        loud, writer = await made.connect()
        writer.write(b"hello")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await loud.readexactly(1)
        assert made.made == []
        assert made.refused == ["this port takes TLS only, and none began", "what came first is no TLS"]


async def test_a_failed_handshake_is_reported(files, tmp_path) -> None:
    """A replica that trusts another authority leaves; nothing was begun for it."""
    stranger = Authority(tmp_path / "other").trusting()
    async with port(ServerTls(*files)) as made:
        with pytest.raises(ssl.SSLError):
            await made.connect(stranger)
        await until(lambda: made.refused)
        assert made.made == []
        assert not made.doors.open


async def test_connections_that_do_not_begin_are_limited(files, monkeypatch) -> None:
    """Only so many sockets wait, one more ends the oldest; `close` ends those that wait."""
    monkeypatch.setattr(ha_door, "UNDECIDED_MAX", 1)
    monkeypatch.setattr(ha_door, "PLAIN_AFTER_S", 60.0)
    async with port(ServerTls(*files)) as made:
        first, _writer = await made.connect()
        await until(lambda: made.doors.open)
        second, _other = await made.connect()
        assert await first.read() == b""
        assert made.refused == ["too many connections that have not begun"]
        made.doors.close()
        assert await second.read() == b""


async def test_certificates_are_renewed(files, authority) -> None:
    """A new pair of files is used for later connections."""
    identity = authority.issue()
    for source, target in zip(files, (identity.certificate, identity.key), strict=True):
        target.write_bytes(source.read_bytes())
    tls = ServerTls(identity.certificate, identity.key)
    TlsAcceptor(None, Echo, lambda _address, _reason: None).reload()
    doors = TlsAcceptor(tls, Echo, lambda _address, _reason: None)
    doors.reload()
    assert tls.reloads == 1
    doors.refresh(0)
    identity.certificate.write_bytes(identity.certificate.read_bytes() + b"\n")
    doors.refresh(10_000)
    doors.refresh(20_000)
    assert tls.reloads == 2


async def test_a_log_is_replicated_inside_tls(tmp_path, files, authority) -> None:
    """The whole stream, with large parts; a replica without TLS, or with another authority, gets nothing."""
    tls = ServerTls(*files, mode=ENFORCING)
    master = Master(tmp_path / "1", 1, {1, 2}, tls=tls)
    address = await master.start()
    fill(master.store, b"q", 2_000)
    trusting = ClientTls(authority.certificate, server_name="localhost")
    replica = Replica(tmp_path / "2", 2, address, 1, tls=trusting)
    plain = Replica(tmp_path / "3", 3, address, 1)
    doubting = Replica(tmp_path / "4", 4, address, 1, tls=ClientTls())
    missing = Replica(tmp_path / "5", 5, address, 1, tls=ClientTls(tmp_path / "no such file"))
    await until(lambda: same_bytes(master.store, replica.store))
    await until(
        lambda: master.server.streams.refused >= 1 and missing.client.following.said and doubting.client.following.said
    )
    assert "no such file" in missing.client.following.said
    for other in (plain, doubting, missing):
        assert not other.client.following.connected
        assert other.failures == []
        assert other.store.end_position == other.store.begin_position
    for each in (replica, plain, doubting, missing, master):
        await each.stop()
