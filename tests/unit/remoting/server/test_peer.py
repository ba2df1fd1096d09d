"""A client's socket as handlers see it."""

from __future__ import annotations

import asyncio

import pytest

from remoting.protocol.commands import Command
from remoting.protocol.frame import FrameDecoder, encode_frame
from remoting.server.peer import is_loopback


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:5", True),
        ("127.8.8.8:5", True),
        ("::1:5", True),
        ("::ffff:127.0.0.1:5", True),
        ("10.0.0.1:5", False),
        ("fe80::1%eth0:5", False),
        ("::ffff:10.0.0.1:5", False),
        ("local", True),
        ("?", False),
        ("name:5", False),
    ],
)
def test_who_is_on_this_machine(address, expected):
    assert is_loopback(address) is expected


async def test_a_tls_handshake_is_told_from_a_frame(serve, caplog):
    server = await serve(lambda peer, command: command.reply())
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
    assert await reader.read() == b""
    writer.close()
    assert "speaks TLS" in caplog.text
    assert server.link_counters.violations == 1


async def test_an_answer_nobody_asked_for_is_counted(serve):
    peers = []

    def handler(peer, command):
        peers.append(peer)
        return command.reply(body=b"ok")

    server = await serve(handler)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(encode_frame(Command(0, flag=1)) + encode_frame(Command(1)))
    (answer,) = FrameDecoder().feed(await reader.read(1_000))
    assert answer.body == b"ok"
    assert len(peers) == 1
    assert peers[0].unasked_answers == 1
    assert peers[0].loopback
    assert peers[0].attributes == {}
    writer.close()
