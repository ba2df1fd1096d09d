"""The key file, and connections whose requests carry its signature."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remoting.client.connection import dial
from remoting.client.key_file import read_signer, signing_dial
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.commands import Command
from remoting.server.access import Access
from remoting.server.server import RemotingServer
from remoting.transport.contracts import Peer
from remoting.transport.signature import Signer


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
