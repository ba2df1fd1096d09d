"""Up and down alternate; what waits is served or told why not."""

from __future__ import annotations

import asyncio

import pytest

from remoting import inprocess
from remoting.client.connection import connect
from remoting.client.reconnecting import ReconnectingConnection
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.commands import Command
from remoting.server.server import RemotingServer
from remoting.transport.failures import ConnectionLost, RequestTimeout, Unreachable


def echo(peer, command):
    if command.code == 9:
        peer.close("restart")
        return None
    if command.code == 8:
        peer.send(Command(9003, body=b"news"))
    return command.reply(body=command.body)


async def test_it_comes_back_after_a_restart_and_tells():
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


async def test_requests_under_way_fail_and_are_not_repeated():
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


async def test_whatever_a_dialler_refuses_with_is_tried_again():
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
    """A pause is cut short, an attempt that hangs begins anew, and a dropped connection is made again at once."""
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
