"""TLS between a link and its socket: any split of the bytes, large frames in both directions, and every failure."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from remoting.client.connection import connect
from remoting.client.tls import ClientTls
from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import FrameDecoder, encode_frame
from remoting.transport import tls
from remoting.transport.certificates import ServerTls
from remoting.transport.failures import reason_of
from remoting.transport.link import RECEIVE_BUFFER_BYTES
from remoting.transport.tls import TlsTransport
from tests.support.certificates import HAVE_OPENSSL, Authority

pytestmark = pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.calls: list[str] = []

    def write(self, data: bytes) -> None:
        self.out += data

    def get_write_buffer_size(self) -> int:
        return len(self.out)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


class Side:
    """One end: what it has received, why it failed."""

    def __init__(self, context: ssl.SSLContext, name: str | None = None, size: int = 4_096) -> None:
        self.wire, self.got, self.reasons = Wire(), bytearray(), list[str]()
        self.buffer = memoryview(bytearray(size))
        self.tls = TlsTransport(
            self.wire,  # type: ignore[arg-type]
            context, self.buffer, plain=self.plain, failed=self.reasons.append, server_name=name,
        )  # fmt: skip

    def plain(self, size: int) -> None:
        self.got += self.buffer[:size]

    def take(self, data: bytes) -> None:
        for at in range(0, len(data), len(self.buffer)):
            piece = data[at : at + len(self.buffer)]
            self.buffer[: len(piece)] = piece
            self.tls.received(len(piece))


def carry(one: Side, other: Side, step: int = 1 << 20) -> None:
    """Deliver everything, `step` bytes at a time, until nothing moves."""
    while one.wire.out or other.wire.out:
        for giver, taker in ((one, other), (other, one)):
            data = bytes(giver.wire.out)
            giver.wire.out.clear()
            for at in range(0, len(data), step):
                taker.take(data[at : at + step])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def pair(authority: Authority, trusting: ssl.SSLContext | None = None, name: str = "localhost") -> tuple[Side, Side]:
    identity = authority.issue()
    client = Side(trusting or authority.trusting(), name)
    server = Side(ServerTls(identity.certificate, identity.key).context)
    server.tls.begin()
    client.tls.begin()
    return client, server


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
async def test_bytes_in_any_pieces(authority: Authority, step: int) -> None:
    """What was written before the handshake is done comes first, and nothing is lost or duplicated."""
    client, server = pair(authority)
    client.tls.write(b"early")
    assert client.tls.get_write_buffer_size() >= 5
    carry(client, server, step)
    assert client.tls.done.done()
    assert server.tls.version in ("TLSv1.2", "TLSv1.3")
    data = bytes(range(256)) * (3 if step == 1 else 3_000)
    server.tls.write(data)
    client.tls.write(data)
    assert data[:64] not in server.wire.out
    carry(client, server, step)
    assert (bytes(server.got), bytes(client.got)) == (b"early" + data, data)
    client.tls.close()
    carry(client, server, step)
    assert "close" in client.wire.calls
    assert client.reasons == server.reasons == []


async def test_more_than_is_encrypted_at_once(authority: Authority) -> None:
    client, server = pair(authority)
    carry(client, server)
    data = bytes(2 * tls.ENCRYPT_BYTES + 5)
    server.tls.write(data)
    carry(client, server)
    assert bytes(client.got) == data


async def test_a_certificate_that_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    """Both sides give the reason, once, and deliver nothing; what is written afterwards is dropped."""
    client, server = pair(authority, Authority(tmp_path / "other").trusting())
    carry(client, server)
    assert "certificate" in client.reasons[0]
    assert "unknown ca" in server.reasons[0].replace("_", " ").lower()
    assert isinstance(client.tls.done.exception(), ssl.SSLCertVerificationError)
    client.wire.out.clear()
    client.tls.write(b"secret")
    client.take(b"more")
    assert (bytes(client.wire.out), len(client.reasons), client.got) == (b"", 1, b"")


async def test_another_name(authority: Authority) -> None:
    client, server = pair(authority, name="elsewhere.example")
    carry(client, server)
    assert "elsewhere.example" in client.reasons[0]


async def test_bytes_that_are_no_tls(authority: Authority) -> None:
    """In the handshake and after it: the connection ends with a reason."""
    client, server = pair(authority)
    server.take(b"GET / HTTP/1.1\r\n\r\n")
    assert "TLS handshake" in server.reasons[0]
    client, server = pair(authority)
    carry(client, server)
    server.take(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert server.reasons
    assert server.got == b""


async def test_a_handshake_has_a_deadline(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_TIMEOUT_SECONDS", 0.01)
    client, _ = pair(authority)
    with pytest.raises(TimeoutError, match="not finished"):
        await client.tls.done
    assert "not finished" in client.reasons[0]


async def test_a_socket_that_ends_before(authority: Authority) -> None:
    """Waiters for the handshake get the error; the rest goes to the socket's own transport."""
    client, _ = pair(authority)
    client.tls.pause_reading()
    client.tls.resume_reading()
    client.tls.get_extra_info("peername")
    client.tls.lost()
    with pytest.raises(ssl.SSLEOFError):
        await client.tls.done
    client.tls.abort()
    assert client.wire.calls == ["pause_reading", "resume_reading", "get_extra_info", "abort"]


def test_reasons_are_for_people(authority: Authority) -> None:
    assert reason_of(OSError("plain")) == "plain"
    failure = ssl.SSLError(1, "[SSL: X] long (_ssl.c:1)")
    failure.reason = "SHORT"
    assert reason_of(failure) == "SHORT"


async def test_over_a_real_socket(serve, authority: Authority) -> None:
    """Frames larger than every buffer in both directions, many at once, and a plain client at the same port."""
    identity = authority.issue()
    server = await serve(
        lambda peer, command: command.reply(body=command.body), tls=ServerTls(identity.certificate, identity.key)
    )
    trusting = ClientTls(ca_file=authority.certificate)
    connection = await connect("127.0.0.1", server.port, tls=trusting)
    bodies = [bytes([n]) * size for n, size in enumerate((0, 1, 16_384, RECEIVE_BUFFER_BYTES, 3_000_000))] * 4
    replies = await asyncio.gather(*(connection.request(Command(1, body=body)) for body in bodies))
    assert [reply.body for reply in replies] == bodies
    plain = await connect("127.0.0.1", server.port)
    assert (await plain.request(Command(1, body=b"plain"))).body == b"plain"
    await connection.close()
    await plain.close()
    assert (server.link_counters.tls_handshakes, server.link_counters.tls_failures) == (1, 0)


async def test_first_bytes_of_a_handshake_one_by_one(serve, authority: Authority) -> None:
    """The first byte alone already decides that this is TLS."""
    identity = authority.issue()
    server = await serve(lambda peer, command: command.reply(), tls=ServerTls(identity.certificate, identity.key))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = authority.trusting().wrap_bio(incoming, outgoing, server_hostname="localhost")
    done = False
    while not done:
        try:
            client.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            pass
        for byte in outgoing.read():
            writer.write(bytes([byte]))
            await writer.drain()
        if not done:
            incoming.write(await reader.read(1_000))
    client.write(encode_frame(Command(1)))
    writer.write(outgoing.read())
    decoder, answers = FrameDecoder(), []
    while not answers:
        incoming.write(await reader.read(1_000))
        try:
            answers = decoder.feed(client.read(1_000))
        except ssl.SSLWantReadError:
            continue
    assert answers[0].code == 0
    writer.close()
