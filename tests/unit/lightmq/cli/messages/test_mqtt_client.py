from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path
from typing import Any

import pytest

from lightmq.cli.messages.mqtt_client import MqttLink, MqttTarget
from lightmq.cli.outcome import CommandFailed
from tests.support.certificates import HAVE_OPENSSL, Authority


def test_a_connection_with_user_and_session(mqtt_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTMQ_PASSWORD", "secret")
    mqtt_server.session_present = 1
    link = MqttLink(MqttTarget(port=mqtt_server.port, user="ann", client_id="c"), persistent=True)
    link.open()
    assert link.session_present
    link.close()
    assert b"ann" in mqtt_server.connects[0]
    assert b"secret" in mqtt_server.connects[0]
    assert mqtt_server.connects[0][7] & 2 == 0  # clean session is off


def test_a_refusal_is_reported_in_words(mqtt_server: Any) -> None:
    mqtt_server.connack = 4
    with pytest.raises(CommandFailed, match=r"refused the connection: .*user name or password"):
        MqttLink(MqttTarget(port=mqtt_server.port)).open()


def test_no_server_and_bad_options(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandFailed, match="lightmq up"):
        MqttLink(MqttTarget(port=1)).open()
    with pytest.raises(CommandFailed, match="cannot connect to"):
        MqttLink(MqttTarget(host="no-such-host.invalid")).open()
    with pytest.raises(CommandFailed, match="--client-id"):
        MqttLink(MqttTarget(), persistent=True)
    monkeypatch.delenv("LIGHTMQ_PASSWORD", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(CommandFailed, match="LIGHTMQ_PASSWORD"):
        MqttLink(MqttTarget(user="ann"))


@pytest.mark.skipif(not HAVE_OPENSSL, reason="openssl makes the certificates")
async def test_tls_verifies_the_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    identity = authority.issue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.write(b"\x20\x02\x00\x00")
        await reader.read(1_000)
        writer.close()

    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    link = MqttLink(MqttTarget(port=port, cafile=authority.certificate, cert=identity.certificate, key=identity.key))
    await asyncio.to_thread(link.open)
    await asyncio.to_thread(link.close)
    with pytest.raises(CommandFailed, match=r"TLS certificate verification failed for .*see --cafile"):
        await asyncio.to_thread(MqttLink(MqttTarget(port=port, tls=True)).open)
    with pytest.raises(CommandFailed, match=r"is it an MQTT port\? A port with TLS needs --tls or --cafile"):
        await asyncio.to_thread(MqttLink(MqttTarget(port=port)).open)
    server.close()
    with pytest.raises(CommandFailed, match=r"there is no file .*none"):
        MqttLink(MqttTarget(cafile=tmp_path / "none"))
    with pytest.raises(CommandFailed, match="cannot use --cafile"):
        MqttLink(MqttTarget(cafile=identity.key))


async def test_tls_at_a_plain_port_is_reported() -> None:
    """By its cause, not by a library's text."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(CommandFailed, match=f"no TLS connection to 127.0.0.1:{port}: .*; is it an MQTT port with TLS"):
        await asyncio.to_thread(MqttLink(MqttTarget(port=port, tls=True)).open)
    server.close()


def test_version_5_sets_the_session_expiry(mqtt_server: Any) -> None:
    mqtt_server.connack_tail = b"\0"
    link = MqttLink(MqttTarget(port=mqtt_server.port, client_id="c", mqtt_version="5"), persistent=True)
    link.open()
    link.close()
    assert mqtt_server.connects[0][6:8] == b"\x05\x00"
    assert b"\x05\x11\xff\xff\xff\xff" in mqtt_server.connects[0]
