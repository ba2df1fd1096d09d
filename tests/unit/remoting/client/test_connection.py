"""What only the socket connection promises; what it shares with its twin is tested there."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from remoting.client.connection import connect, dial, read_signer, signing_dial
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.commands import Command
from remoting.server.router import Access, Router
from remoting.server.server import RemotingServer
from remoting.transport.contracts import Peer
from remoting.transport.failures import Unreachable
from remoting.transport.signature import Signer


async def test_nobody_there_is_said_with_host_port_and_remedy():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(Unreachable, match=rf"cannot reach 127\.0\.0\.1:{port} .*lightmq up"):
        await connect("127.0.0.1", port)
    with pytest.raises(Unreachable, match=r"no-such-host\.invalid:1"):
        await connect("no-such-host.invalid", 1)


async def test_dial_by_address(serve):
    server = await serve(lambda peer, command: command.reply())
    connection = await dial(f"localhost:{server.port}")
    assert connection.address == f"localhost:{server.port}"
    assert (await connection.request(Command(1))).code == 0
    await connection.close()
    with pytest.raises(ValueError, match="host:port"):
        await dial("nowhere")


async def test_signed_requests_open_a_server_that_asks_for_them(serve):
    access = Access({"device": "secret"})
    router = Router({1: lambda peer, command: command.reply(body=command.body)})

    def strict(peer, command):
        peer.loopback = False
        access.check(peer, command)
        return router(peer, command)

    server = await serve(strict)
    plain = await connect("127.0.0.1", server.port)
    signed = await connect("127.0.0.1", server.port, signer=Signer("device", "secret"))
    assert (await plain.request(Command(1))).code == 16
    assert (await signed.request(Command(1, body=b"x"))).body == b"x"
    await plain.close()
    await signed.close()


async def test_frames_above_the_limit_end_the_connection(serve):
    server = await serve(lambda peer, command: command.reply(body=bytes(10_000)))
    connection = await connect("127.0.0.1", server.port, frame_size_bytes_max=5_000)
    with pytest.raises(Exception, match="violation"):
        await connection.request(Command(1))
    assert connection.closed
    await connection.close()


async def test_large_bodies_both_ways(serve):
    server = await serve(lambda peer, command: command.reply(body=command.body))
    connection = await connect("127.0.0.1", server.port)
    body = bytes(range(256)) * 40_000
    assert (await connection.request(Command(1, body=body))).body == body
    await connection.close()


def write(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_one_line(tmp_path: Path) -> None:
    """A secret may hold colons."""
    assert read_signer(write(tmp_path / "key", b"proxy:a:b\n")) == Signer("proxy", "a:b")


@pytest.mark.parametrize("content", [b"", b"a", b"a:", b":hush", b"a:hush\nb:hush", b"\xff:hush", b"a:" + b"x" * 4_096])
def test_content_that_is_no_key(tmp_path: Path, content: bytes) -> None:
    """And the error says none of it."""
    with pytest.raises(LocalMisuse, match="key:secret") as caught:
        read_signer(write(tmp_path / "key", content))
    assert "hush" not in str(caught.value)


def test_files_that_may_not_be_used(tmp_path: Path) -> None:
    """Missing, open to others, not a file."""
    with pytest.raises(LocalMisuse, match="No such file"):
        read_signer(tmp_path / "none")
    with pytest.raises(LocalMisuse, match="chmod 600"):
        read_signer(write(tmp_path / "key", b"a:b", 0o604))
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(LocalMisuse, match="not a regular file"):
        read_signer(tmp_path / "pipe")


class Foreign:
    """A peer of another machine."""

    loopback = False
    address = "10.0.0.9"

    def __init__(self) -> None:
        self.attributes: dict[str, object] = {}


async def test_requests_are_signed(tmp_path: Path) -> None:
    """So that a server lets them in from another machine; others are not."""
    access = Access({"proxy": "hush"})

    def handle(peer: Peer, command: Command) -> Command:
        try:
            access.check(Foreign(), command)  # type: ignore[arg-type]
        except Refused as refused:
            return command.reply(refused.code)
        return command.reply(body=command.body)

    server = RemotingServer(handle)
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    good = signing_dial(write(tmp_path / "good", b"proxy:hush"))
    wrong = signing_dial(write(tmp_path / "wrong", b"proxy:hash"))
    for make, allowed in ((good, True), (wrong, False), (signing_dial(None), False)):
        connection = await make(address)
        reply = await connection.request(Command(9_999, body=b"x" * 1_000))
        assert (reply.code == 0) is allowed
        await connection.close()
    await server.stop()
    assert signing_dial(None) is dial
