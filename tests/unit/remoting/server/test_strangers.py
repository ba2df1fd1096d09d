"""Silence of connections that have proved nothing. Time and connections are made up but in the last two tests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from remoting.client.connection import connect
from remoting.protocol.frames.commands import Command
from remoting.server import strangers as module
from remoting.server.access import Access
from remoting.server.intake import IntakeLimits
from remoting.server.router import Router
from remoting.server.strangers import UNPROVEN_FIRST_S, Strangers
from remoting.transport.failures import ConnectionLost
from remoting.transport.signature import Signer

IDLE_S = 120.0


class Socket:
    def __init__(self, *, proved: bool = False) -> None:
        self.proved, self.begun, self.frames_in = proved, False, 0


@pytest.fixture
def strangers() -> Strangers:
    return Strangers(int(IDLE_S * 1_000))


def test_who_says_nothing_at_all_has_little_time(strangers: Strangers) -> None:
    one = Socket()
    strangers.came(one, 0)
    assert list(strangers.overdue(UNPROVEN_FIRST_S)) == []
    assert list(strangers.overdue(UNPROVEN_FIRST_S + 0.1)) == [one]
    assert strangers.closed == 1
    strangers.forget(one)
    assert list(strangers.overdue(1_000)) == []


def test_who_has_asked_something_may_be_silent_for_longer(strangers: Strangers) -> None:
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


def test_who_has_proved_a_key_is_idle_for_as_long_as_it_likes(strangers: Strangers) -> None:
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


async def test_where_no_key_is_needed_silence_is_nobodys_matter(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNPROVEN_FIRST_S", 0.0)
    server = await serve(lambda _peer, command: command.reply(), intake=IntakeLimits(unproven_idle_ms=0))
    idle = await connect("127.0.0.1", server.port)
    await asyncio.sleep(1.2)
    assert (await idle.request(Command(1))).code == 0
    assert len(server.strangers) == 0
    await idle.close()
