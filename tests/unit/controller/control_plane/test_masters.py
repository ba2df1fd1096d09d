"""When a master is replaced: its silence, its connection, a new leader's patience, no more elections than needed."""

from __future__ import annotations

import asyncio

from controller.consensus.engine import NotLeading
from remoting import inprocess
from tests.unit.controller.control_plane.test_controller_api import GROUP, alter, elect


async def settle(world, condition):
    """Wait for the result of elections in the background."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def group_of(world, count, connections=()):
    for each in range(1, count + 1):
        await world.replica(each, connections[each - 1] if connections else None)
    await elect(world, 1)
    await alter(world, range(1, count + 1))
    return world.plane.machine


def master(world):
    group = world.plane.machine.groups["g"]
    return group.master, group.master_epoch


async def test_a_silent_master_is_replaced(world):
    """By the replica with the best log, after the time limit and not before."""
    await group_of(world, 3)
    world.pass_elections_ms(1_999)
    await world.beat(2, epoch="1", maxOffset="10")
    await world.beat(3, epoch="1", maxOffset="20")
    world.masters.tick()
    assert master(world) == (1, 1)
    world.pass_elections_ms(1)
    await settle(world, lambda: master(world) == (3, 2) and world.masters.counters.won == 2)


async def test_a_master_whose_connection_ends_is_replaced_at_once(world):
    """No time passes."""
    connections = [inprocess.connect(world.router) for _ in range(2)]
    await group_of(world, 2, connections)
    await connections[0].close()
    await settle(world, lambda: master(world) == (2, 2))
    await connections[1].close()
    await settle(world, lambda: master(world) == (None, 3))
    world.masters.tick()
    await settle(world, lambda: world.masters.counters.failed == 1)
    await world.beat(2)
    await settle(world, lambda: master(world) == (2, 4))


async def test_nothing_is_proposed_while_no_candidate_can_win(world, monkeypatch):
    """A group whose candidates are all dead costs no entries of the log."""
    await group_of(world, 2)
    world.pass_elections_ms(2_000)
    await settle(world, lambda: master(world) == (None, 2))
    entries = world.plane.engine.applied
    for _ in range(5):
        world.pass_elections_ms(200)
        await asyncio.sleep(0)
    assert world.plane.engine.applied == entries


async def test_a_new_leader_waits_for_brokers_it_has_not_heard_from(world):
    """They stay for one time limit; a broker that asks meanwhile gets the present master."""
    await group_of(world, 2)
    for each in (1, 2):
        world.masters.live.forget("g", each)
    world.masters._leadership(True)
    world.masters.tick()
    await world.beat(2)
    assert (await elect(world, 2)).code == 2011
    world.pass_elections_ms(1_999)
    await world.beat(2)
    world.masters.tick()
    assert master(world) == (1, 1)
    world.pass_elections_ms(1)
    await settle(world, lambda: master(world) == (2, 2))


async def test_a_follower_elects_no_master(world, monkeypatch):
    """It only maintains its table."""
    await group_of(world, 2)
    monkeypatch.setattr(type(world.plane.engine), "is_leader", False)
    world.pass_elections_ms(2_200)
    world.masters.tick()
    await asyncio.sleep(0.01)
    assert master(world) == (1, 1)


async def test_an_election_that_fails_is_tried_again(world, monkeypatch):
    """At the next check."""
    await group_of(world, 2)
    real = world.plane.engine.propose

    async def refuse(_data):
        raise NotLeading(None)

    monkeypatch.setattr(world.plane.engine, "propose", refuse)
    world.pass_elections_ms(2_000)
    await settle(world, lambda: world.masters.counters.failed == 1)
    monkeypatch.setattr(world.plane.engine, "propose", real)
    world.masters.tick()
    await settle(world, lambda: master(world) == (None, 2))


async def test_a_master_that_boots_again_leads_in_a_new_epoch(world):
    """Without a request, and although it is elected again."""
    await world.replica(1, bootId="a", syncFlush="true")
    await elect(world, 1)
    await world.replica(1, bootId="b", lastEpoch="1", syncFlush="true")
    world.masters.tick()
    await settle(world, lambda: master(world) == (1, 3))


async def test_an_operator_moves_a_master(world):
    """To one that is in sync."""
    await group_of(world, 2)
    answer = await world.ask(1002, **GROUP, brokerId="2", designateElect="true")
    assert (answer.code, answer.fields["masterAddress"]) == (0, "h:2")


async def leave(world, broker_id):
    return await world.ask(1002, **GROUP, brokerId=str(broker_id), leaves="true")


async def test_a_master_that_stops_is_replaced_while_it_lives(world):
    """By the best of the others in sync, never by itself."""
    await group_of(world, 3)
    await world.beat(1, epoch="1", maxOffset="30")
    await world.beat(2, epoch="1", maxOffset="10")
    await world.beat(3, epoch="1", maxOffset="20")
    answer = await leave(world, 1)
    assert (answer.code, answer.fields["masterAddress"], master(world)) == (0, "h:3", (3, 2))
    assert world.masters.counters.won == 2
    world.masters.tick()
    assert master(world) == (3, 2)


async def test_only_the_master_leaves_and_only_to_one_in_sync(world):
    """Otherwise nothing changes: the master stays until it is gone."""
    await group_of(world, 3)
    assert (await leave(world, 2)).code == 2002
    await alter(world, [1, 2])
    world.masters.live.forget("g", 2)
    refused = await leave(world, 1)
    assert (refused.code, master(world)) == (2004, (1, 1))
    assert "in sync: [1, 2]" in refused.remark
