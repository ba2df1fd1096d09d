"""What only the socket connection promises; what it shares with its twin is tested there."""

from __future__ import annotations

import socket

import pytest

from remoting.client.connection import connect, dial
from remoting.protocol.frames.commands import Command
from remoting.server.access import Access
from remoting.server.router import Router
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
