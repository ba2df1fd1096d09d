"""The simulated loop and network by themselves: what the schedules rest on."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.whole.loop import Host, World
from tests.sim.whole.network import Network


class Talk(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard = b""
        self.ended: list[object] = []

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.heard += data

    def connection_lost(self, error):
        self.ended.append(error)


@pytest.fixture
def two():
    """A world with two hosts that are connected: (world, network, the dialling end, the accepting end)."""
    world = World(1)
    network = world.network = Network(world)
    left, right = Host(world, "l", "10.0.0.1"), Host(world, "r", "10.0.0.2")
    here, there = Talk(), Talk()

    async def listen():
        await asyncio.get_running_loop().create_server(lambda: there, "10.0.0.2", 7)

    async def dial():
        await asyncio.get_running_loop().create_connection(lambda: here, "10.0.0.2", 7)

    right.start(listen)
    world.run(0.1)
    left.start(dial)
    world.run(0.2)
    return world, network, (left, here), (right, there)


def test_bytes_arrive_in_order_and_a_cut_only_delays_them(two):
    """As over TCP."""
    world, network, (_, here), (_, there) = two
    sent = [b"%d," % number for number in range(200)]
    for each in sent[:100]:
        here.transport.write(each)
    network.cuts.add(("10.0.0.1", "10.0.0.2"))
    for each in sent[100:]:
        here.transport.write(each)
    world.run(5.0)
    assert b"".join(sent) != there.heard
    network.heal()
    world.run(6.0)
    assert there.heard == b"".join(sent)


def test_a_killed_process_resets_and_one_without_power_says_nothing(two):
    """Until it runs again and is written to."""
    world, network, (left, here), (right, _) = two
    right.kill()
    network.process_ended(right, silently=True)
    here.transport.write(b"hello")
    world.run(10.0)
    assert here.ended == []

    async def nothing():
        pass

    right.start(nothing)
    here.transport.write(b"are you there")
    world.run(11.0)
    assert [type(each) for each in here.ended] == [ConnectionResetError]
    left.kill()


def test_a_paused_process_does_later_what_was_due_and_a_killed_one_never(two):
    """Not even what it would do at its end."""
    world, _, (left, here), (_, there) = two
    left.pause()
    there.transport.write(b"early")
    world.run(3.0)
    assert here.heard == b""
    left.go_on()
    world.run(3.1)
    assert here.heard == b"early"
    done = []

    async def work():
        try:
            await asyncio.sleep(1)
        finally:
            done.append("cleaned up")

    third = Host(world, "t", "10.0.0.3")
    third.start(work)
    world.run(3.5)
    third.kill()
    world.run(9.0)
    assert done == []
