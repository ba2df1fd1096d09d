"""Every code of controller mode as brokers and operators send it, to one that leads and to one that does not."""

from __future__ import annotations

import json

import pytest

from controller.consensus.engine import ConsensusFailed, NotLeading
from controller.consensus.members import ControllerNode
from remoting.protocol.bodies.controller_body import (
    ControllerMetadata,
    Elected,
    MasterHeader,
    SyncStateData,
    SyncStateSetBody,
    decode_body,
    encode_body,
    from_fields,
)

GROUP = {"clusterName": "C", "brokerName": "g"}


async def elect(world, broker_id=-1, designate="false"):
    return await world.ask(1002, **GROUP, brokerId=str(broker_id), designateElect=designate)


async def alter(world, members, **wrong):
    group = world.plane.machine.groups["g"]
    fields = {"brokerName": "g", "masterBrokerId": str(group.master), "masterEpoch": str(group.master_epoch), **wrong}
    return await world.ask(1001, encode_body(SyncStateSetBody(list(members), group.set_epoch)), **fields)


async def test_the_requests_of_a_first_broker(world):
    """Ask for an id, apply for it, register, appear, be elected, as RocketMQ's brokers do it."""
    assert (await world.ask(1012, **GROUP)).fields == {**GROUP, "nextBrokerId": "1"}
    registered = await world.replica(1)
    assert (registered.code, registered.fields) == (0, {"masterEpoch": "0", "syncStateSetEpoch": "0"})
    assert (await world.ask(1012, **GROUP)).fields["nextBrokerId"] == "2"
    assert (await world.beat(1, epoch="-1", maxOffset="0")).code == 0
    elected = await elect(world, 1)
    assert from_fields(elected.fields, MasterHeader) == MasterHeader(1, 1, 1, "h:1", "ha:1")
    body = decode_body(elected.body, Elected)
    assert (body.sync_state_set, body.broker_member_group.broker_addrs) == ([1], {1: "h:1"})
    again = await elect(world, 1)
    assert (again.code, again.fields) == (2011, elected.fields)
    info = await world.ask(1004, brokerName="g")
    assert (info.fields, json.loads(info.body)) == (
        elected.fields,
        {"syncStateSet": [1], "syncStateSetEpoch": 1},
    )


async def test_an_id_that_is_taken(world):
    """With another broker's check code."""
    await world.replica(1)
    answer = await world.ask(1013, **GROUP, appliedBrokerId="1", registerCheckCode="other")
    assert (answer.code, "taken" in answer.remark) == (2014, True)


async def test_the_set_is_changed_and_shown(world):
    """By the master of the epoch; operators see which members are in sync and alive."""
    for each in (1, 2):
        await world.replica(each)
    await elect(world, 1)
    changed = await alter(world, [1, 2])
    assert (changed.code, changed.fields) == (0, {"newSyncStateSetEpoch": "2"})
    assert decode_body(changed.body, SyncStateSetBody) == SyncStateSetBody([1, 2], 2)
    fenced = await alter(world, [1], masterEpoch="9")
    assert (fenced.code, fenced.fields) == (2000, {"newSyncStateSetEpoch": "2"})
    world.pass_elections_ms(1_000)
    await world.beat(1)
    world.pass_elections_ms(1_500)
    answer = await world.ask(1006, b'["g","x"]')
    state = decode_body(answer.body, SyncStateData).replicas_info_table["g"]
    assert [(each.broker_id, each.alive) for each in state.in_sync_replicas] == [(1, True), (2, False)]
    assert (state.master_address, state.not_in_sync_replicas) == ("h:1", [])


async def test_cleaning(world):
    """Living ones by force only."""
    await world.replica(1)
    clean = {"brokerName": "g", "clusterName": "C", "brokerControllerIdsToClean": "1"}
    assert (await world.ask(1011, **clean)).code == 2009
    assert (await world.ask(1011, **{**clean, "brokerControllerIdsToClean": "x"})).code == 29
    assert (await world.ask(1011, **clean, isCleanLivingBroker="true")).code == 0
    assert (await world.ask(1004, brokerName="g")).code == 2008
    assert world.masters.live.alive("g") == ()


async def test_a_dead_master_is_not_named_to_a_new_replica(world):
    """It would follow nothing."""
    await world.replica(1)
    await elect(world, 1)
    assert (await world.replica(2)).fields["masterBrokerId"] == "1"
    world.masters.live.forget("g", 1)
    assert "masterBrokerId" not in (await world.replica(2)).fields


async def test_every_controller_names_the_leader(world):
    """1005 needs no leader."""
    header = from_fields((await world.ask(1005)).fields, ControllerMetadata)
    assert (header.is_leader, header.controller_leader_id) == (True, "n1")
    assert header.peers == f"n1-127.0.0.1:{world.config.port}"


@pytest.mark.parametrize("code", [1001, 1002, 1003, 1004, 1006, 1011, 1012, 1013])
async def test_a_controller_that_does_not_lead_names_the_leader(world, monkeypatch, code):
    """With the leader's address where it is known, also when leadership is lost meanwhile."""
    world.plane.members["n2"] = ControllerNode("n2", "h", 7, 8)
    monkeypatch.setattr(type(world.plane.engine), "is_leader", False)
    monkeypatch.setattr(type(world.plane.engine), "leader", "n2")
    answer = await world.ask(code)
    assert (answer.code, answer.fields) == (2007, {"leaderAddress": "h:7"})
    monkeypatch.setattr(type(world.plane.engine), "leader", None)
    assert (await world.ask(code)).fields == {}


async def test_errors_of_consensus_are_answers(world, monkeypatch):
    """Leadership lost while a command was in progress, and a disk that fails."""
    for error, code in ((NotLeading(None), 2007), (ConsensusFailed("disk"), 1)):

        async def fail(*_data, error=error):
            raise error

        monkeypatch.setattr(world.plane.engine, "propose", fail)
        monkeypatch.setattr(world.plane.engine, "barrier", fail)
        assert (await world.ask(1004, brokerName="g")).code == code
        assert (await elect(world, 1)).code == code


async def test_malformed_requests_change_nothing(world):
    """Missing fields, invalid bodies."""
    await world.replica(1)
    before = world.plane.machine.groups
    for code in (1001, 1002, 1003, 1004, 1011, 1012, 1013):
        assert (await world.ask(code)).code == 29
    assert (await world.ask(1006, b"{")).code == 29
    assert world.plane.machine.groups is before


async def test_configuration_is_shown_and_not_changed(world):
    """As with the name server."""
    assert "replica_timeout_ms=2000\n" in (await world.ask(1010)).body.decode()
    assert (await world.ask(1009, b"x=1")).code == 16


async def test_heartbeats_of_unknown_brokers(world):
    """An id that never registered, or another address under a known id, must register first."""
    assert (await world.beat(1)).code == 2010
    await world.replica(1)
    assert (await world.beat(1)).code == 0
    assert (await world.beat(1, brokerAddr="h:9")).code == 2010


async def test_a_former_master_is_kept_out_of_the_routes(world):
    """By the epoch the controllers agreed on, whether or not the new master has registered."""
    await world.replica(1)
    await elect(world, 1)
    refused = await world.register(name="g", address="h:9")
    assert (refused.code, "epoch 1" in refused.remark) == (2000, True)
    assert world.name_server.topic_route("t") is None
