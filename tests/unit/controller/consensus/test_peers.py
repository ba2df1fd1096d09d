"""Real sockets: proven controllers are connected once, strangers get nothing run, held or kept."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import struct

import msgspec
import pytest

from controller.consensus import links
from controller.consensus.members import ControllerNode
from controller.consensus.peers import PeerTransport
from controller.consensus.wire import MAGIC, RANDOM_BYTES, Granted, NextIndex, stretch
from tests.support.ports import free_port

KEY = stretch(b"a secret of the controllers")


class Host:
    """One transport and what it tells its node."""

    def __init__(self, node_id, members, key=KEY):
        self.events, self.failures = [], []
        self.transport = PeerTransport(
            members[node_id], members, key, silence_ms=1_000, received=lambda: None, failed=self.failures.append
        )
        self.transport.setOnNodeConnectedCallback(lambda node: self.events.append(("+", node.id)))
        self.transport.setOnNodeDisconnectedCallback(lambda node: self.events.append(("-", node.id)))
        self.transport.setOnMessageReceivedCallback(lambda node, message: self.events.append((node.id, message)))

    async def until(self, event):
        async with asyncio.timeout(20):
            while event not in self.events:
                await asyncio.sleep(0.002)


@pytest.fixture
async def hosts():
    """Two controllers of two, connected."""
    members = {each: ControllerNode(each, "127.0.0.1", 1, free_port()) for each in ("n1", "n2")}
    made = [Host(each, members) for each in members]
    for host in made:
        await host.transport.links.open("127.0.0.1")
    for host, other in zip(made, ("n2", "n1"), strict=True):
        await host.until(("+", other))
    yield made
    for host in made:
        await host.transport.links.close()


def stranger(host):
    """A socket to a controller's port."""
    return socket.create_connection(("127.0.0.1", host.transport.own.raft_port), 10)


async def closed(sock):
    """What the other side says until it closes."""
    sock.setblocking(False)
    loop, received = asyncio.get_running_loop(), b""
    async with asyncio.timeout(20):
        while True:
            try:
                piece = await loop.sock_recv(sock, 4_096)
            except ConnectionError:
                return received
            if not piece:
                return received
            received += piece


async def test_messages_go_both_ways(hosts):
    """To a node that is connected; to another one nothing is sent."""
    one, two = hosts
    assert one.transport.say(one.transport.nodes["n2"], Granted(5))
    await two.until(("n1", {"type": "response_vote", "term": 5}))
    assert two.transport.send(two.transport.nodes["n1"], {"type": "response_vote", "term": 6})
    await one.until(("n2", {"type": "response_vote", "term": 6}))
    await two.transport.links.close()
    await one.until(("-", "n2"))
    assert not one.transport.say(one.transport.nodes["n2"], Granted(5))


async def test_a_member_says_which_commands_it_knows(hosts):
    """One that leaves it out is of an earlier release, also when it takes the place of a newer one."""
    one, two = hosts
    assert (one.transport.outdated, two.transport.outdated) == ({"n2"}, {"n1"})
    assert two.transport.say(two.transport.nodes["n1"], NextIndex(3, 9, True, False))
    came = {"type": "next_node_idx", "term": 3, "next_node_idx": 9, "reset": True, "success": False}
    await one.until(("n2", came))
    assert one.transport.outdated == frozenset()
    (connection,) = two.transport.links._connections.values()
    connection.send(msgspec.msgpack.encode([5, 4, 9, True, False]))
    await one.until(("n2", came | {"term": 4}))
    assert one.transport.outdated == {"n2"}


class Attack:
    """Runs a command wherever it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


async def test_a_pickle_of_a_stranger_is_not_opened(hosts, tmp_path):
    """Bare, in a frame of the library's own protocol, and behind our hello: refused, counted, nothing runs."""
    attack = pickle.dumps(Attack(tmp_path / "owned"))
    framed = struct.pack("i", len(attack)) + attack
    hello = MAGIC + b"\x02n2" + b"r" * RANDOM_BYTES
    for data in (attack, framed, hello + framed, hello + struct.pack("<I", 16) + b"x" * 16):
        with stranger(hosts[0]) as sock:
            sock.sendall(data)
            await closed(sock)
    assert not (tmp_path / "owned").exists()
    assert hosts[0].transport.links.violations == 4
    assert hosts[0].events == [("+", "n2")]


@pytest.mark.parametrize("size", [17, 1_048_576, 60 * 1_048_576])
async def test_what_a_stranger_can_make_us_hold(hosts, size):
    """A frame of 16 bytes; one that announces more, as controllers may, is closed before the rest comes."""
    with stranger(hosts[0]) as sock:
        sock.sendall(MAGIC + b"\x02n2" + b"r" * RANDOM_BYTES + struct.pack("<I", size))
        await closed(sock)
    assert hosts[0].transport.links.violations == 1


async def test_of_too_many_strangers_the_oldest_goes(hosts, monkeypatch):
    """So they keep no controller out; and who says nothing is closed at the next look."""
    monkeypatch.setattr(links, "STRANGERS_MAX", 1)
    with stranger(hosts[0]) as first, stranger(hosts[0]) as second:
        await closed(first)
        monkeypatch.setattr(links, "PROOF_SECONDS", 0.0)
        await asyncio.sleep(0.01)
        hosts[0].transport.links.tick()
        await closed(second)
    assert ("-", "n2") not in hosts[0].events


async def test_a_controller_comes_in_beside_strangers(hosts, monkeypatch):
    """However many hold a connection open, one that proves itself is connected again."""
    one, two = hosts
    monkeypatch.setattr(links, "STRANGERS_MAX", 2)
    held = [stranger(one) for _ in range(4)]
    for connection in list(two.transport.links._connections.values()):
        connection.end("cut")
    async with asyncio.timeout(20):
        while two.events.count(("+", "n1")) < 2:
            await asyncio.sleep(0.01)
    for sock in held:
        sock.close()


async def test_a_hello_in_pieces_buys_no_time(hosts, monkeypatch):
    """What counts is the proof, not that something comes."""
    monkeypatch.setattr(links, "PROOF_SECONDS", 0.3)
    loop = asyncio.get_running_loop()
    with stranger(hosts[0]) as sock:
        ended = asyncio.ensure_future(closed(sock))
        begun = loop.time()
        pieces = iter(MAGIC + b"\x02n2" + b"r" * (RANDOM_BYTES - 1))
        while not ended.done():
            piece = next(pieces, None)
            if piece is not None:
                with contextlib.suppress(OSError):
                    sock.send(bytes([piece]))
            hosts[0].transport.links.tick()
            await asyncio.sleep(0.03)
            assert loop.time() - begun < 10
        await ended


async def test_another_secret_is_a_stranger():
    """Both refuse each other."""
    members = {each: ControllerNode(each, "127.0.0.1", 1, free_port()) for each in ("n1", "n2")}
    one, two = Host("n1", members), Host("n2", members, stretch(b"quite another secret"))
    for host in (one, two):
        await host.transport.links.open("127.0.0.1")
    async with asyncio.timeout(20):
        while not (one.transport.links.violations or two.transport.links.violations):
            await asyncio.sleep(0.002)
    assert one.events == two.events == []
    for host in (one, two):
        await host.transport.links.close()


async def test_silence_ends_a_connection_and_signs_of_life_keep_it(hosts, monkeypatch):
    """And it is made again by the one who dials."""
    one, two = hosts
    one.transport.links.tick()
    two.transport.links.tick()
    assert ("-", "n2") not in one.events
    monkeypatch.setattr(two.transport.links, "_silence_seconds", 0.0)
    await asyncio.sleep(0.01)
    two.transport.links.tick()
    await two.until(("-", "n1"))
    async with asyncio.timeout(20):
        while two.events.count(("+", "n1")) < 2:
            await asyncio.sleep(0.01)


async def test_a_fault_of_ours_is_not_the_peers(hosts):
    """A journal that cannot be written ends the engine; the connection is not blamed."""
    one, two = hosts

    def fail(_node, _message):
        raise OSError("no space")

    two.transport.setOnMessageReceivedCallback(fail)
    one.transport.say(one.transport.nodes["n2"], Granted(5))
    async with asyncio.timeout(20):
        while not two.failures:
            await asyncio.sleep(0.002)
    assert two.transport.links.violations == 0
