"""Clients with TLS against real servers: both clients, wrong authorities, wrong names, ports without TLS."""

from __future__ import annotations

import asyncio
import pickle
import ssl
from pathlib import Path

import pytest

from remoting.client.batching import Message, Sent
from remoting.client.blocking import BlockingConnection
from remoting.client.connection import connect, signing_dial
from remoting.client.threads import Producer
from remoting.client.tls import ClientTls, handshake_with
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.certificates import ENFORCING, CertificateProblem, ServerTls
from remoting.transport.failures import ConnectionLost, TlsFailed, Unreachable
from runtime.tls_config import DialTlsConfig
from tests.support.certificates import HAVE_OPENSSL, Authority
from tests.unit.remoting.client.toy_log import ToyLog

pytestmark = pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def echo(peer, command):
    return command.reply(body=command.body)


async def fetch(port: int, tls: ClientTls | None, body: bytes = b"x") -> int:
    """The code of one answer, through the blocking client."""

    def ask() -> int:
        with BlockingConnection("127.0.0.1", port, tls=tls) as connection:
            reply = connection.request(Command(1, body=body))
            assert reply.code or reply.body == body
            assert tls is None or not connection.stale  # tickets of TLS 1.3 arrived with the answer
            return reply.code

    return await asyncio.to_thread(ask)


async def both(port: int, tls: ClientTls | None) -> None:
    """Connect with both clients."""
    connection = await connect("127.0.0.1", port, tls=tls)
    assert (await connection.request(Command(1, body=b"x"))).body == b"x"
    await connection.close()
    assert await fetch(port, tls, bytes(3_000_000)) == 0


async def test_both_clients_and_a_dial(serve, authority: Authority) -> None:
    identity = authority.issue()
    server = await serve(echo, tls=ServerTls(identity.certificate, identity.key, mode=ENFORCING))
    trusting = ClientTls(ca_file=authority.certificate)
    await both(server.port, trusting)
    await both(server.port, ClientTls(verify=False))
    await both(server.port, ClientTls(ca_file=authority.certificate, server_name="localhost"))
    connection = await signing_dial(None, trusting)(f"127.0.0.1:{server.port}")
    assert (await connection.request(Command(1, body=b"x"))).body == b"x"
    await connection.close()
    assert await fetch(server.port, None) == ResponseCode.NO_PERMISSION


async def test_an_untrusted_server_is_reported(serve, authority: Authority, tmp_path: Path) -> None:
    """Another authority, only the system's, another name: each with both clients, and no byte of a request sent."""
    asked = []
    identity = authority.issue()
    server = await serve(lambda peer, command: asked.append(command), tls=ServerTls(identity.certificate, identity.key))
    stranger = Authority(tmp_path / "stranger").certificate
    wrong_name = ClientTls(ca_file=authority.certificate, server_name="other.example")
    untrusted = "issuer|self-signed|signature"
    wrong = {ClientTls(ca_file=stranger): untrusted, ClientTls(): untrusted, wrong_name: "other.example"}
    for tls, words in wrong.items():
        with pytest.raises(TlsFailed, match=f"127.0.0.1:{server.port}.*({words})"):
            await connect("127.0.0.1", server.port, tls=tls)
        with pytest.raises(TlsFailed, match=words):
            await fetch(server.port, tls)
    assert asked == []
    assert server.link_counters.tls_failures > 0


async def test_a_port_without_tls_is_reported(serve) -> None:
    server = await serve(echo)
    with pytest.raises(Unreachable, match="does that port speak TLS"):
        await connect("127.0.0.1", server.port, tls=ClientTls())
    with pytest.raises(Unreachable, match="does that port speak TLS"):
        await fetch(server.port, ClientTls())


async def test_a_certificate_of_the_client(serve, authority: Authority) -> None:
    """Where one is required, a client without one gets no answer; a client with one does."""
    identity, mine = authority.issue(), authority.issue("me", "")
    tls = ServerTls(identity.certificate, identity.key, client_ca=authority.certificate, client_required=True)
    server = await serve(echo, tls=tls)
    shown = ClientTls(authority.certificate, mine.certificate, mine.key)
    await both(server.port, shown)
    with pytest.raises(ConnectionLost):  # by an alert after the handshake of TLS 1.3, or by the end that follows it
        await fetch(server.port, ClientTls(ca_file=authority.certificate))


async def test_a_handshake_without_an_answer_ends(authority: Authority) -> None:
    """A server that accepts and says nothing: the connect timeout holds for TLS too."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Unreachable):
        await connect("127.0.0.1", port, timeout_ms=50, tls=ClientTls(ca_file=authority.certificate))
    server.close()


async def test_the_producer_of_threads(serve, authority: Authority) -> None:
    """What it sends is in the log of a server that accepts TLS only."""
    identity, log = authority.issue(), ToyLog(plain=(2, False))
    server = await serve(log, tls=ServerTls(identity.certificate, identity.key, mode=ENFORCING))

    def send() -> Sent:
        with Producer(f"127.0.0.1:{server.port}", tls=ClientTls(ca_file=authority.certificate)) as producer:
            return producer.send(Message(topic="plain", body=b"over TLS", queue=1)).result(10)

    assert await asyncio.to_thread(send) == Sent("plain", 1, 0)
    assert [body for _, body in log.queues["plain", 1]] == [b"over TLS"]


def test_settings_become_a_picklable_value(tmp_path: Path, authority: Authority) -> None:
    """From a configuration; equal when the settings are, also after pickling; one context until a file changes."""
    assert ClientTls.of(DialTlsConfig()) is None
    made = ClientTls.of(DialTlsConfig(enabled=True, ca=authority.certificate, server_name="n"))
    assert made == ClientTls(ca_file=authority.certificate, server_name="n")
    assert pickle.loads(pickle.dumps(made)) == made
    assert made.context() is made.context()
    assert (made.name_for("host"), ClientTls().name_for("host")) == ("n", "host")
    before = made.context()
    authority.certificate.write_bytes(authority.certificate.read_bytes() + b"\n")
    assert made.context() is not before
    with pytest.raises(CertificateProblem, match="none"):
        ClientTls(ca_file=tmp_path / "none").context()
    with pytest.raises(CertificateProblem, match="none"):
        signing_dial(None, ClientTls(ca_file=tmp_path / "none"))


def test_checks_are_omitted_only_on_request() -> None:
    assert ClientTls().context().verify_mode is ssl.CERT_REQUIRED
    assert ClientTls().context().check_hostname
    assert ClientTls(verify=False).context().verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ssl.SSLEOFError("end"), Unreachable),
        (ConnectionResetError(), Unreachable),
        (ssl.SSLError(1, "bad"), TlsFailed),
    ],
)
def test_failures_in_words(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, handshake_with("h", 1):
        raise error
    assert type(caught.value) is kind
