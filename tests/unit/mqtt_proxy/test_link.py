"""The link keeps the order of requests, reports an unknown outcome, and reconnects."""

from __future__ import annotations

import asyncio

import pytest

from mqtt_proxy.link import Link, LinkDownError
from remoting import inprocess
from remoting.client.masters import Masters
from remoting.client.uplink import Uplink
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection, Peer
from remoting.transport.failures import ConnectionLost

QUICK = {"pause_first_ms": 1, "pause_ms_max": 20}


class Server:
    """Records requests; answers them unless set not to."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.peers: list[Peer] = []
        self.connections: list[Connection] = []
        self.failures = 0

    async def dial(self) -> Connection:
        if self.failures:
            self.failures -= 1
            raise ConnectionLost("nobody there")
        self.connections.append(inprocess.connect(self.handle))
        return self.connections[-1]

    def handle(self, peer: Peer, command: Command) -> Command | None:
        self.peers.append(peer)
        self.bodies.append(command.body)
        if command.body == b"silence":
            return None
        if command.body == b"replica":
            return command.reply(ResponseCode.NOT_MASTER, "a replica")
        return command.reply(5 if command.body == b"no" else 0, "because", body=command.body.upper())


async def test_requests_leave_in_the_order_of_the_calls() -> None:
    """Posted or awaited."""
    server = Server()
    link = Link(Uplink(server.dial, **QUICK))
    await link.start()
    await link.wait_up()
    posted = link.post(1, b"first")
    assert await link.request(1, b"second") == b"SECOND"
    assert await posted == b"FIRST"
    assert server.bodies == [b"first", b"second"]
    await link.stop()
    assert not link.up


async def test_a_refusal_and_a_loss_are_distinguished() -> None:
    """Refused carries the code; after a loss the outcome is unknown."""
    server = Server()
    link = Link(Uplink(server.dial, **QUICK))
    with pytest.raises(LinkDownError):
        link.post(1, b"")
    await link.start()
    await link.wait_up()
    with pytest.raises(Refused, match="because") as refused:
        await link.request(1, b"no")
    assert refused.value.code == 5
    with pytest.raises(LinkDownError):
        await link.request(1, b"silence", 5)
    waiting = link.post(1, b"silence")
    await asyncio.sleep(0)
    await server.connections[0].close()
    with pytest.raises(LinkDownError):
        await waiting
    await link.stop()


async def test_it_reconnects_and_reports_it() -> None:
    """Up, down, up, with failed attempts in between; pushes reach their listener on each connection."""
    server = Server()
    server.failures = 2
    link = Link(Uplink(server.dial, **QUICK))
    heard: list[str] = []
    back = asyncio.Event()
    link.on_up(lambda: heard.append("up"))
    link.on_up(lambda: back.set() if heard.count("up") == 2 else None)
    link.on_down(lambda reason: heard.append("down"))
    pushed = asyncio.Event()
    link.on_push(77, lambda command: pushed.set())
    await link.start()
    await link.wait_up()
    await server.connections[0].close()
    await asyncio.wait_for(back.wait(), 5)
    assert heard == ["up", "down", "up"]
    await link.request(1, b"hello")
    server.peers[-1].send(Command(78, flag=2))
    server.peers[-1].send(Command(77, flag=2))
    await asyncio.wait_for(pushed.wait(), 5)
    await link.stop()


async def test_a_one_way_request_is_sent_or_refused_at_once() -> None:
    """There is nothing to wait for, but a link that is down refuses it."""
    server = Server()
    link = Link(Uplink(server.dial, **QUICK))
    with pytest.raises(LinkDownError):
        link.oneway(1, b"x")
    await link.start()
    await link.wait_up()
    link.oneway(1, b"said")
    assert await link.request(1, b"after") == b"AFTER"
    assert server.bodies == [b"said", b"after"]
    await link.stop()


async def test_a_broker_that_is_not_the_master_is_left() -> None:
    """The answer counts as a loss; a link to a master finds the new one, another link dials its broker again."""
    server = Server()
    for masters in (None, Masters(["c:1"], "g", dial=lambda _address: server.dial())):
        if masters is not None:
            masters.named("in-process", 1)
        link = Link(Uplink(server.dial, masters=masters, **QUICK))
        await link.start()
        await link.wait_up()
        ups: asyncio.Queue[None] = asyncio.Queue()
        link.on_up(lambda ups=ups: ups.put_nowait(None))  # type: ignore[misc]
        dialled = len(server.connections)
        if masters is not None:
            masters.named("elsewhere", 2)
            await ups.get()
        with pytest.raises(LinkDownError, match="a replica"):
            await link.request(1, b"replica")
        if masters is not None:
            masters.named("in-process", 3)
        await ups.get()
        link.drop("for the test")
        await ups.get()
        assert len(server.connections) >= dialled + 2
        await link.stop()
