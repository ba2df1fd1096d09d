"""What only the socket connection promises; what it shares with its twin is tested there."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from remoting import inprocess
from remoting.client.connection import ReconnectingConnection, connect, dial, read_signer, signing_dial
from remoting.protocol.errors import LocalMisuse, Refused, RemoteViolation
from remoting.protocol.frames.commands import Command
from remoting.server.router import Access, Router
from remoting.server.server import RemotingServer
from remoting.transport.contracts import Peer
from remoting.transport.failures import ConnectionLost, RequestTimeout, Unreachable
from remoting.transport.signature import Signer


async def test_a_missing_listener_is_reported_with_host_port_and_remedy():
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
    """A secret may contain colons."""
    assert read_signer(write(tmp_path / "key", b"proxy:a:b\n")) == Signer("proxy", "a:b")


@pytest.mark.parametrize("content", [b"", b"a", b"a:", b":hush", b"a:hush\nb:hush", b"\xff:hush", b"a:" + b"x" * 4_096])
def test_content_that_is_not_a_key(tmp_path: Path, content: bytes) -> None:
    """And the error reveals none of it."""
    with pytest.raises(LocalMisuse, match="key:secret") as caught:
        read_signer(write(tmp_path / "key", content))
    assert "hush" not in str(caught.value)


def test_unusable_files(tmp_path: Path) -> None:
    """Missing, readable by others, not a file."""
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
    """So that a server accepts them from another machine; others are not."""
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


def echo(peer, command):
    if command.code == 9:
        peer.close("restart")
        return None
    if command.code == 8:
        peer.send(Command(9003, body=b"news"))
    return command.reply(body=command.body)


async def test_it_reconnects_after_a_restart_and_reports_it():
    server = RemotingServer(echo)
    port = await server.start("127.0.0.1", 0)
    connection = ReconnectingConnection(lambda: connect("127.0.0.1", port), f"127.0.0.1:{port}", pause_first_ms=5)
    story, ups, downs, pushes = [], asyncio.Queue(), asyncio.Queue(), []
    connection.on_up(lambda current: (story.append("up"), ups.put_nowait(current)))
    connection.on_down(lambda reason: (story.append(reason), downs.put_nowait(reason)))
    connection.on_push(lambda command: pushes.append(command.body))
    connection.start()
    await ups.get()
    assert (await connection.request(Command(8, body=b"1"))).body == b"1"
    await server.stop()
    await downs.get()
    with pytest.raises(ConnectionLost):
        connection.oneway(Command(1))
    server = RemotingServer(echo)
    waiting = asyncio.ensure_future(connection.request(Command(8, body=b"2")))
    await server.start("127.0.0.1", port)
    assert (await waiting).body == b"2"
    connection.oneway(Command(1))
    assert connection.up
    assert connection.writable
    assert [story[0], story[-1], len(story)] == ["up", "up", 3]
    assert pushes == [b"news", b"news"]
    await connection.close()
    await server.stop()


async def test_requests_in_flight_fail_and_are_not_repeated():
    connection = ReconnectingConnection(
        lambda: asyncio.sleep(0, inprocess.connect(echo)), "here", pause_first_ms=1, spread=lambda: 0.5
    )
    connection.start()
    with pytest.raises(ConnectionLost):
        await connection.request(Command(9))
    assert (await connection.request(Command(1, body=b"again"))).body == b"again"
    assert connection.attempts == 2
    await connection.close()


async def test_while_it_is_down_requests_wait_for_their_own_time_only():
    async def refuse():
        raise Unreachable("nowhere", 1, ConnectionRefusedError(111, "refused"))

    connection = ReconnectingConnection(refuse, "nowhere:1", pause_first_ms=1)
    connection.start()
    with pytest.raises(ConnectionLost, match=r"nowhere:1 is down: .*refused"):
        await connection.request(Command(1), timeout_ms=30)
    assert connection.attempts > 1
    assert not connection.up
    assert not connection.closed
    waiting = asyncio.ensure_future(connection.wait_up(5_000))
    await asyncio.sleep(0)
    await connection.close()
    with pytest.raises(ConnectionLost, match="closed"):
        await waiting
    gone = asyncio.Queue()
    connection.on_close(gone.put_nowait)
    await gone.get()
    with pytest.raises(ConnectionLost):
        await connection.request(Command(1))


async def test_the_time_limit_covers_waiting_and_answering():
    connection = ReconnectingConnection(
        lambda: asyncio.sleep(0.01, inprocess.connect(lambda peer, command: None)), "here"
    )
    connection.start()
    with pytest.raises(RequestTimeout):
        await connection.request(Command(1), timeout_ms=40)
    closed = []
    connection.on_close(closed.append)
    connection.on_up(lambda current: 1 // 0)
    await connection.close()
    await connection.close()
    assert closed == ["closed by this side"]


async def test_whatever_error_dialling_raises_it_is_tried_again():
    outcomes = iter([RemoteViolation("no cluster"), Refused(1, "no broker yet")])

    async def dial():
        for error in outcomes:
            raise error
        return inprocess.connect(echo)

    connection = ReconnectingConnection(dial, "here", pause_first_ms=1)
    connection.start()
    await connection.wait_up(5_000)
    assert connection.attempts == 3
    story = []
    connection.on_up(lambda current: story.append("at once"))
    connection.on_up(lambda current: story.append("next time"), at_once=False)
    assert story == ["at once"]
    await connection.close()


async def test_what_is_dropped_is_dialled_without_a_pause():
    """A pause is cut short, a hanging attempt is restarted, and a dropped connection is made again at once."""
    hanging, attempts = asyncio.Event(), asyncio.Queue()

    async def dial():
        attempts.put_nowait(1)
        if attempts.qsize() == 1:
            raise ConnectionLost("nobody there")
        if attempts.qsize() == 2:
            await hanging.wait()
        return inprocess.connect(echo)

    connection = ReconnectingConnection(dial, "here", pause_first_ms=1_000_000, pause_ms_max=1_000_000)
    connection.start()
    for wanted in (2, 3):
        while attempts.qsize() < wanted - 1:
            await asyncio.sleep(0)
        connection.drop("somebody is there now")
    await connection.wait_up(5_000)
    assert attempts.qsize() == 3
    ups, downs = asyncio.Queue(), asyncio.Queue()
    connection.on_up(ups.put_nowait, at_once=False)
    connection.on_down(downs.put_nowait)
    connection.drop("the master is elsewhere")
    await ups.get()
    assert await downs.get() == "the master is elsewhere"
    await connection.close()
    connection.drop("too late")
