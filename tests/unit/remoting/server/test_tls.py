"""The mode and the certificate of a remoting port."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from remoting.client.connection import connect
from remoting.client.tls import ClientTls
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.tls import DISABLED, ENFORCING, ServerTls
from remoting.transport.failures import TlsFailed
from runtime.tls_config import ListenTlsConfig
from tests.support.certificates import HAVE_OPENSSL, Authority, Identity

pytestmark = pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")


def echo(peer, command):
    return command.reply(body=command.body)


def test_what_a_configuration_makes(tmp_path: Path) -> None:
    """Nothing without a certificate or when disabled; enforcing without one cannot be."""
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


async def test_enforcing_tells_a_plain_client_and_closes(serve, tmp_path: Path) -> None:
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


async def test_a_new_certificate_without_a_drop(serve, tmp_path: Path, caplog) -> None:
    """Connections go on with what they began with; new ones see the new one; a bad one changes nothing."""
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
