"""The listening side: limits, violations that affect no other peer, the order of the end."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from remoting.client.connection import connect
from remoting.protocol.frames.commands import Command
from remoting.server import server as module
from remoting.server.peer import IntakeLimits
from remoting.server.router import Access, Router
from remoting.server.server import UNPROVEN_FIRST_S, RemotingServer, Strangers
from remoting.transport.failures import ConnectionLost
from remoting.transport.signature import Signer


def echo(peer, command):
    return command.reply(body=command.body)


async def test_connections_have_a_limit(serve):
    server = await serve(echo, connections_max=2)
    first, second = await connect("127.0.0.1", server.port), await connect("127.0.0.1", server.port)
    await first.request(Command(1))
    await second.request(Command(1))
    third = await connect("127.0.0.1", server.port)
    with pytest.raises(ConnectionLost):
        await third.request(Command(1))
    assert (server.counters.accepted, server.counters.refused, len(server.peers)) == (2, 1, 2)
    await first.close()
    while len(server.peers) > 1:
        await asyncio.sleep(0)
    fourth = await connect("127.0.0.1", server.port)
    assert (await fourth.request(Command(1, body=b"room"))).body == b"room"
    await second.close()
    await fourth.close()


@pytest.mark.parametrize("bad", [struct.pack(">I", 2_000_000) + bytes(10), b"\x00\x00\x00\x06\x00\x00\x00\x02{x"])
async def test_a_bad_peer_affects_no_other(serve, bad):
    server = await serve(echo, frame_size_bytes_max=1_000_000)
    good = await connect("127.0.0.1", server.port)
    await good.request(Command(1))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(bad)
    assert await reader.read() == b""
    writer.close()
    assert server.link_counters.violations == 1
    assert (await good.request(Command(1, body=b"fine"))).body == b"fine"
    await good.close()


async def test_stop_lets_output_out_and_closes_everyone(serve):
    server = await serve(echo)
    connection = await connect("127.0.0.1", server.port)
    answer = asyncio.ensure_future(connection.request(Command(1, body=b"last")))
    while not server.link_counters.frames_in:
        await asyncio.sleep(0)
    await server.stop()
    assert (await answer).body == b"last"
    with pytest.raises(ConnectionLost):
        await connection.request(Command(1))
    assert not server.peers
    assert server.counters.lost == 1
    await server.stop()
    await connection.close()


async def test_a_peer_that_does_not_read_cannot_delay_the_stop(serve):
    server = await serve(lambda peer, command: command.reply(body=bytes(5_000_000)))
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    from remoting.protocol.frames.frame import encode_frame

    writer.write(encode_frame(Command(1)))
    while not server.link_counters.frames_out:
        await asyncio.sleep(0)
    await server.stop(0.02)
    assert not server.peers
    writer.close()


async def test_a_port_in_use_is_named(serve):
    server = await serve(echo)
    other = RemotingServer(echo)
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        await other.start("127.0.0.1", server.port)
    await other.stop()


async def test_each_new_peer_is_announced():
    peers = []
    server = RemotingServer(echo, on_connection=peers.append)
    port = await server.start("127.0.0.1", 0)
    connection = await connect("127.0.0.1", port)
    await connection.request(Command(1))
    assert len(peers) == 1
    assert peers[0].loopback
    await connection.close()
    await server.stop()


async def test_processes_can_share_a_port():
    one, two, three = RemotingServer(echo), RemotingServer(echo), RemotingServer(echo)
    port = await one.start("127.0.0.1", 0, reuse_port=True)
    assert await two.start("127.0.0.1", port, reuse_port=True) == port
    with pytest.raises(OSError, match="another server"):
        await three.start("127.0.0.1", port)
    await one.stop()
    connection = await connect("127.0.0.1", port)
    assert (await connection.request(Command(1, body=b"two"))).body == b"two"
    await connection.close()
    await two.stop()


async def test_a_further_port_shares_handler_and_limits(serve):
    server = await serve(lambda peer, command: command.reply(body=b"%d" % len(server.peers)), connections_max=2)
    further = await server.listen_also("127.0.0.1", 0)
    assert further != server.port
    first, second = await connect("127.0.0.1", server.port), await connect("127.0.0.1", further)
    assert (await first.request(Command(1))).body in (b"1", b"2")
    assert (await second.request(Command(1))).body == b"2"
    third = await connect("127.0.0.1", further)
    with pytest.raises(ConnectionLost):
        await third.request(Command(1))
    assert (server.counters.accepted, server.counters.refused) == (2, 1)
    await server.stop()
    for port in (server.port, further):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
    for connection in (first, second, third):
        await connection.close()


IDLE_S = 120.0


class Socket:
    def __init__(self, *, proved: bool = False) -> None:
        self.proved, self.begun, self.frames_in = proved, False, 0


@pytest.fixture
def strangers() -> Strangers:
    return Strangers(int(IDLE_S * 1_000))


def test_a_silent_connection_has_little_time(strangers: Strangers) -> None:
    one = Socket()
    strangers.came(one, 0)
    assert list(strangers.overdue(UNPROVEN_FIRST_S)) == []
    assert list(strangers.overdue(UNPROVEN_FIRST_S + 0.1)) == [one]
    assert strangers.closed == 1
    strangers.forget(one)
    assert list(strangers.overdue(1_000)) == []


def test_time_in_which_this_side_was_late_is_not_silence(strangers: Strangers) -> None:
    one = Socket()
    strangers.came(one, 0)
    strangers.excuse(5)
    assert list(strangers.overdue(UNPROVEN_FIRST_S + 5)) == []
    assert list(strangers.overdue(UNPROVEN_FIRST_S + 5.1)) == [one]


def test_a_client_that_sent_a_request_may_be_silent_for_longer(strangers: Strangers) -> None:
    one = Socket()
    strangers.came(one, 0)
    one.frames_in = 1
    assert list(strangers.overdue(9)) == []
    assert list(strangers.overdue(9 + IDLE_S)) == []
    assert list(strangers.overdue(9.1 + IDLE_S)) == [one]


def test_requests_keep_it(strangers: Strangers) -> None:
    one = Socket()
    strangers.came(one, 0)
    for now in range(0, 1_000, 60):
        one.frames_in += 1
        assert list(strangers.overdue(now)) == []


def test_while_a_frame_comes_its_own_deadline_runs(strangers: Strangers) -> None:
    one = Socket()
    strangers.came(one, 0)
    one.begun = True
    assert list(strangers.overdue(500)) == []
    one.begun = False
    assert list(strangers.overdue(501 + UNPROVEN_FIRST_S)) == [one]


def test_a_peer_with_a_proved_key_may_be_idle(strangers: Strangers) -> None:
    trusted, later = Socket(proved=True), Socket()
    for each in (trusted, later):
        strangers.came(each, 0)
    assert len(strangers) == 1
    later.proved = True
    assert list(strangers.overdue(9)) == []
    assert len(strangers) == 0
    assert list(strangers.overdue(100_000)) == []


async def test_silent_connections_are_closed_and_clients_with_a_key_stay(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over sockets, where rules exist: also on this machine."""
    monkeypatch.setattr(module, "UNPROVEN_FIRST_S", 0.4)
    access = Access({"key": "secret"}, keys_count=True)
    server = await serve(
        Router({1: lambda _peer, command: command.reply()}, access=access), access=access,
        intake=IntakeLimits(unproven_idle_ms=700),
    )  # fmt: skip
    signed = await connect("127.0.0.1", server.port, signer=Signer("key", "secret"))
    assert (await signed.request(Command(1))).code == 0
    anonymous = await connect("127.0.0.1", server.port)
    assert (await anonymous.request(Command(1))).code == 0
    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
    for reader, writer in silent:
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
    while len(server.peers) > 1:
        await asyncio.sleep(0.01)
    assert server.read_counts()["silent"] == 21
    assert (await signed.request(Command(1))).code == 0
    with pytest.raises(ConnectionLost):
        await anonymous.request(Command(1))
    await signed.close()


async def test_where_no_key_is_needed_silence_is_allowed(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNPROVEN_FIRST_S", 0.0)
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.001)
    swept, overdue = asyncio.Semaphore(0), Strangers.overdue

    def counted(strangers: Strangers, now_s: float) -> Any:
        swept.release()
        return overdue(strangers, now_s)

    monkeypatch.setattr(Strangers, "overdue", counted)
    server = await serve(lambda _peer, command: command.reply(), intake=IntakeLimits(unproven_idle_ms=0))
    idle = await connect("127.0.0.1", server.port)
    for _ in range(3):
        await swept.acquire()
    assert (await idle.request(Command(1))).code == 0
    assert len(server.strangers) == 0
    await idle.close()
