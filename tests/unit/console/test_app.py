"""The certificate of the administration port is renewed without a restart."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest

from console.app import admin_tls
from console.config import ConsoleConfig, ConsoleTlsConfig
from remoting.protocol.errors import LocalMisuse
from remoting.transport.certificates import LOOK_INTERVAL_MS
from tests.support.certificates import HAVE_OPENSSL, Authority
from tests.support.clock import ManualClock

pytestmark = pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")


async def shown(port: int) -> bytes:
    """The certificate that a new connection gets."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return bytes(found)


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text()[path.read_text().index("-----BEGIN") :])


async def test_new_connections_get_a_renewed_certificate(tmp_path: Path) -> None:
    authority, clock = Authority(tmp_path), ManualClock()
    first, second = authority.issue("first"), authority.issue("second")
    used = tmp_path / "used.pem", tmp_path / "used.key"

    def place(certificate: Path, key: Path) -> None:
        shutil.copyfile(certificate, used[0])
        shutil.copyfile(key, used[1])

    place(first.certificate, first.key)
    context = admin_tls(ConsoleConfig(tls=ConsoleTlsConfig(certificate=used[0], key=used[1])), clock)
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]

    async def settled() -> bytes:
        """After two looks with the same files."""
        for _ in range(2):
            clock.advance_ms(LOOK_INTERVAL_MS)
            found = await shown(port)
        return found

    async with server:
        assert await settled() == der(first.certificate)
        place(second.certificate, first.key)  # half of a pair
        assert await settled() == der(first.certificate)
        place(second.certificate, second.key)
        assert await settled() == der(second.certificate)


def test_without_a_certificate_the_port_is_plain_and_an_unusable_one_is_named(tmp_path: Path) -> None:
    assert admin_tls(ConsoleConfig()) is None
    missing = ConsoleTlsConfig(certificate=tmp_path / "none.pem", key=tmp_path / "none.key")
    with pytest.raises(LocalMisuse, match=r"console\.tls: .*none\.pem"):
        admin_tls(ConsoleConfig(tls=missing))
