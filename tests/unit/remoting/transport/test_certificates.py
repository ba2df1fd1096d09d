"""Files of a TLS identity: contexts, their renewal, and the errors of unusable files."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
from pathlib import Path

import pytest

from remoting.client.connection import connect
from remoting.client.tls import ClientTls
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.certificates import (
    DISABLED,
    ENFORCING,
    LOOK_INTERVAL_MS,
    CertificateFiles,
    CertificateProblem,
    ServerTls,
    load_authorities,
    load_pair,
)
from remoting.transport.failures import TlsFailed
from runtime.tls_config import ListenTlsConfig
from tests.support.certificates import HAVE_OPENSSL, Authority, Identity

pytestmark = pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")


class Told(CertificateFiles):
    """Records its calls."""

    def __init__(self, identity: Identity, **options: object) -> None:
        self.events: list[str] = []
        super().__init__(identity.certificate, identity.key, **options)  # type: ignore[arg-type]

    def renewed(self) -> None:
        self.events.append("renewed")

    def unusable(self, problem: CertificateProblem) -> None:
        self.events.append(str(problem))


def test_what_a_context_allows(tmp_path: Path) -> None:
    """TLS 1.2 at least, no renegotiation, client certificates only where there are authorities."""
    authority = Authority(tmp_path)
    identity = authority.issue()
    context = Told(identity).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.verify_mode is ssl.CERT_NONE
    wished = Told(identity, client_ca=authority.certificate)
    wanted = Told(identity, client_ca=authority.certificate, client_required=True)
    assert (wished.context.verify_mode, wanted.context.verify_mode) == (ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED)


def test_unusable_files_are_named_and_not_quoted(tmp_path: Path) -> None:
    """Missing, of another pair, no certificate at all: the text has the file's name."""
    authority = Authority(tmp_path)
    one, other = authority.issue(), authority.issue()
    with pytest.raises(CertificateProblem, match=other.key.name):
        Told(Identity(one.certificate, other.key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with pytest.raises(CertificateProblem, match=r"none\.pem: No such file"):
        load_authorities(context, tmp_path / "none.pem", "authorities")
    with pytest.raises(CertificateProblem, match="authorities"):
        load_authorities(context, one.key, "authorities")
    load_pair(context, one.certificate, one.key)


def test_a_change_is_used_once_it_is_stable_and_a_bad_one_never(tmp_path: Path) -> None:
    """Half a pair is not used; files that do not match leave the context in use and are reported."""
    authority = Authority(tmp_path)
    identity, other, third = (authority.issue() for _ in range(3))
    used = Told(identity)
    before = used.context
    used.refresh(0)
    shutil.copy(other.certificate, identity.certificate)
    used.refresh(LOOK_INTERVAL_MS - 1)
    used.refresh(LOOK_INTERVAL_MS)
    shutil.copy(other.key, identity.key)
    used.refresh(2 * LOOK_INTERVAL_MS)
    assert used.context is before
    used.refresh(3 * LOOK_INTERVAL_MS)
    taken = used.context
    assert taken is not before
    shutil.copy(third.key, identity.key)
    assert not used.reload()
    assert used.context is taken
    assert used.events[0] == "renewed"
    assert identity.key.name in used.events[1]


def echo(peer, command):
    return command.reply(body=command.body)


def test_the_result_of_a_configuration(tmp_path: Path) -> None:
    """Nothing without a certificate or when disabled; enforcing without one is impossible."""
    identity = Authority(tmp_path).issue()
    pair = {"certificate": identity.certificate, "key": identity.key}
    assert ServerTls.of(ListenTlsConfig()) is None
    assert ServerTls.of(ListenTlsConfig(mode=DISABLED, **pair)) is None
    made = ServerTls.of(ListenTlsConfig(mode=ENFORCING, **pair))
    assert made is not None
    assert made.mode == ENFORCING
    assert ServerTls.of(ListenTlsConfig(**pair)).mode == "permissive"

    class Loose:
        mode, certificate, key, client_ca, client_required = ENFORCING, None, None, None, False

    with pytest.raises(LocalMisuse, match="enforcing"):
        ServerTls.of(Loose())


async def test_enforcing_refuses_a_plain_client_and_closes(serve, tmp_path: Path) -> None:
    """At its first request, which is not carried out; with TLS the same request is."""
    asked = []

    def handler(peer, command):
        asked.append(command.body)
        return command.reply()

    authority = Authority(tmp_path)
    identity = authority.issue()
    server = await serve(handler, tls=ServerTls(identity.certificate, identity.key, mode=ENFORCING))
    plain = await connect("127.0.0.1", server.port)
    gone = asyncio.Event()
    plain.on_close(lambda _reason: gone.set())
    reply = await plain.request(Command(1, body=b"plain"))
    assert reply.code == ResponseCode.NO_PERMISSION
    assert "TLS only" in reply.remark
    await gone.wait()
    secure = await connect("127.0.0.1", server.port, tls=ClientTls(ca_file=authority.certificate))
    assert (await secure.request(Command(1, body=b"secure"))).code == 0
    await secure.close()
    assert asked == [b"secure"]


async def test_a_new_certificate_without_a_disconnect(serve, tmp_path: Path, caplog) -> None:
    """Connections continue with what they began with; later ones get the new one; a bad one changes nothing."""
    caplog.set_level(logging.INFO, "remoting")
    one, two = Authority(tmp_path / "one"), Authority(tmp_path / "two")
    identity = one.issue()
    tls = ServerTls(identity.certificate, identity.key)
    server = await serve(echo, tls=tls)
    first = await connect("127.0.0.1", server.port, tls=ClientTls(ca_file=one.certificate))
    replacement = two.issue()
    shutil.copy(replacement.certificate, identity.certificate)
    shutil.copy(replacement.key, identity.key)
    server.reload()
    assert (await first.request(Command(1, body=b"on"))).body == b"on"
    with pytest.raises(TlsFailed):
        await connect("127.0.0.1", server.port, tls=ClientTls(ca_file=one.certificate))
    for broken in (False, True):
        if broken:
            Identity(identity.certificate, identity.key).key.write_text("nonsense")
            server.reload()
        second = await connect("127.0.0.1", server.port, tls=ClientTls(ca_file=two.certificate))
        assert (await second.request(Command(1, body=b"new"))).body == b"new"
        await second.close()
    await first.close()
    assert (tls.reloads, tls.reload_failures) == (1, 1)
    assert server.tls_counts() == (4, 1, 1, 1)
    assert "the old one stays in use" in caplog.text
