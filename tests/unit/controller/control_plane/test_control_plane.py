"""The parts together: routes follow what was agreed, state survives, the engine depends on the controllers' number."""

from __future__ import annotations

import asyncio

import pytest

from controller.config import ControllerConfig
from controller.consensus.engine import SingleEngine
from controller.control_plane.control_plane import make_engine, members_of, role_command
from controller.name_server.state import RemoveMember
from remoting import inprocess
from remoting.protocol.bodies.controller_body import (
    PERM_READ,
    ClusterInfo,
    DataVersion,
    MasterHeader,
    PushedGroup,
    PushedRoutes,
    RegisterBrokerBody,
    SyncStateSetBody,
    TopicConfig,
    TopicConfigTable,
    decode_body,
    encode_body,
    from_fields,
)
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.unit.controller.conftest import World
from tests.unit.controller.control_plane.test_controller_api import alter, elect
from tests.unit.controller.control_plane.test_masters import group_of, settle


async def register_master(world, broker_id, epoch):
    table = TopicConfigTable({"t": TopicConfig("t")}, DataVersion(epoch, 0, 1))
    fields = {"clusterName": "C", "brokerName": "g", "brokerId": "0", "brokerAddr": f"h:{broker_id}"}
    command = Command(103, fields=fields, body=encode_body(RegisterBrokerBody(table)))
    assert (await world.connection.request(command, 2_000)).code == 0


async def test_the_routes_follow_the_election(world):
    """The old master is removed at once, the new one appears when it registers with its epoch."""
    await group_of(world, 2)
    await register_master(world, 1, 1)
    assert world.name_server.topic_route("t").broker_datas[0].broker_addrs == {0: "h:1"}
    await elect(world, 2, "true")
    await settle(world, lambda: world.name_server.topic_route("t").broker_datas == [])
    await register_master(world, 2, 2)
    assert world.name_server.topic_route("t").broker_datas[0].broker_addrs == {0: "h:2"}


async def test_live_replicas_are_shown_with_their_master(world):
    """By the ids that they have at the controllers, until their heartbeats end; the master is id 0.

    Only those that serve readers. Routes have them too, and stay while there is one, read only.
    """
    await group_of(world, 4)
    await register_master(world, 1, 1)
    for each in (2, 3):
        await world.beat(each, epoch="1", servesReads="true")

    async def shown(**fields):
        answer = await world.connection.request(Command(RequestCode.GET_BROKER_CLUSTER_INFO, fields=fields), 2_000)
        return decode_body(answer.body, ClusterInfo).broker_addr_table["g"].broker_addrs

    assert await shown() == {0: "h:1"}, "RocketMQ's tools ask everything of every broker they are shown"
    assert await shown(withReplicas="true") == {0: "h:1", 2: "h:2", 3: "h:3"}
    assert world.name_server.topic_route("t").broker_datas[0].broker_addrs == {0: "h:1", 2: "h:2", 3: "h:3"}
    world.plane.masters.live.forget("g", 3)
    assert await shown(withReplicas="true") == {0: "h:1", 2: "h:2"}
    assert world.plane.masters.replicas("x") == {}
    world.name_server.apply(RemoveMember("C", "h:1", "it was silent for too long"))
    route = world.name_server.topic_route("t")
    assert (route.broker_datas[0].broker_addrs, route.queue_datas[0].perm) == ({2: "h:2"}, PERM_READ)


async def test_what_was_agreed_survives(world, tmp_path):
    """The same directory, another start."""
    await group_of(world, 2)
    views = world.plane.views()
    await world.plane.stop()
    again = World(tmp_path)
    await again.plane.start()
    assert again.plane.views() == views
    assert (again.plane.ready(), again.plane.fenced_epoch("g"), again.plane.fenced_epoch("x")) == (True, 1, 0)
    assert again.plane.status()["groups"] == {"g": {"master": 1, "epoch": 1, "in_sync": [1, 2]}}
    await again.plane.stop()


async def test_one_controller_decides_alone(tmp_path):
    """Without peers there is no other vote."""
    config = ControllerConfig(data_directory=tmp_path, port=5)
    members = members_of(config)
    assert members["n1"].address == "127.0.0.1:5"
    assert isinstance(make_engine(config, members, None), SingleEngine)


async def test_several_controllers_agree(tmp_path):
    """With peers the engine is Raft's, the secret is created beside the data; impossible timers are refused."""
    peers = ("n1@127.0.0.1:1@11", "n2@127.0.0.1:2@12", "n3@127.0.0.1:3@13")
    config = ControllerConfig(data_directory=tmp_path / "n2", node_id="n2", peers=peers)
    members = members_of(config)
    engine = make_engine(config, members, None)
    assert (type(engine).__name__, engine.node_id) == ("DledgerEngine", "n2")
    assert (tmp_path / "raft.secret").exists()
    slow = ControllerConfig(data_directory=tmp_path, peers=peers, raft_heartbeat_ms=100)
    with pytest.raises(LocalMisuse, match="three times"):
        make_engine(slow, members, None)


async def subscriber(world, body=b""):
    """A connection that follows routes: (its answer, its pushes)."""
    connection, pushed = inprocess.connect(world.router), []
    connection.on_push(lambda command: pushed.append((command.code, decode_body(command.body, PushedRoutes).groups)))
    answer = await connection.request(Command(9060, body=body), 2_000)
    return connection, decode_body(answer.body, PushedRoutes).groups, pushed


async def test_roles_are_pushed_over_the_connection_of_the_heartbeats(world):
    """To master and replicas alike, with epochs, addresses and the set."""
    connections, told = [inprocess.connect(world.router) for _ in range(2)], []
    connections[1].on_push(lambda command: told.append(command) if command.code == 1008 else None)
    await group_of(world, 2, connections)
    await connections[0].close()
    await settle(world, lambda: told and told[-1].fields.get("masterBrokerId") == "2")
    assert from_fields(told[-1].fields, MasterHeader) == MasterHeader(2, 3, 2, "h:2", "ha:2", "g")
    assert decode_body(told[-1].body, SyncStateSetBody) == SyncStateSetBody([1, 2], 3)


async def test_roles_are_pushed_to_an_address_without_connection(world):
    """Presumed replicas have none yet; one that cannot be reached is counted."""
    machine = await group_of(world, 1)
    world.masters.live.forget("g", 1)
    world.masters._leadership(True)
    world.plane.roles.push(machine.groups["g"].view())
    await settle(world, lambda: len(world.dialed) == 1)
    assert (world.dialed[0][0], world.dialed[0][1].code) == ("h:1", 1008)

    async def fail(_address):
        raise OSError("no route")

    world.plane.roles._dial = fail
    world.plane.roles.push(machine.groups["g"].view())
    await settle(world, lambda: world.plane.roles.failed == 1)


async def test_brokers_of_rocketmq_get_pushes_at_their_own_port(world):
    """They send no boot id, and answer no request on a connection they made."""
    heartbeats = [inprocess.connect(world.router) for _ in range(2)]
    told = []
    heartbeats[1].on_push(told.append)
    await world.replica(1, heartbeats[0], bootId="")
    await world.replica(2, heartbeats[1], bootId="")
    await elect(world, 1)
    await alter(world, (1, 2))
    world.dialed.clear()
    await heartbeats[0].close()
    await settle(world, lambda: bool(world.dialed))
    address, command = world.dialed[-1]
    assert (address, command.code, command.fields["masterBrokerId"]) == ("h:2", 1008, "2")
    assert not told


async def test_a_role_without_master(world):
    """The push has the epoch and leaves the master out."""
    machine = await group_of(world, 1)
    world.pass_elections_ms(2_000)
    await settle(world, lambda: machine.groups["g"].master is None)
    assert role_command(machine.groups["g"].view()).fields == {
        "masterEpoch": "2",
        "syncStateSetEpoch": "2",
        "brokerName": "g",
    }


async def test_subscribers_learn_of_a_new_master(world):
    """The address they know is replaced in one push; the routes drop the old master at once."""
    machine = await group_of(world, 2)
    _, groups, pushed = await subscriber(world)
    assert groups == {"g": PushedGroup("C", {0: "h:1", 2: "h:2"}, 1)}
    await elect_other(world)
    await settle(world, lambda: bool(pushed))
    assert pushed == [(9061, {"g": PushedGroup("C", {0: "h:2", 1: "h:1"}, 2)})]
    assert machine.groups["g"].master == 2


async def elect_other(world):
    assert (await elect(world, 2, "true")).code == 0


async def test_plain_groups_are_pushed_too(world):
    """Brokers that only register; a group that leaves is pushed without brokers, a topic filter leaves others out."""
    await world.register(name="a", address="h:7", topics=("t",))
    _, everything, pushed = await subscriber(world)
    _, filtered, pushed_filtered = await subscriber(world, b'{"topics":["t"]}')
    assert everything == filtered == {"a": PushedGroup("C", {0: "h:7"}, 0)}
    await world.register(name="b", address="h:8", topics=("u",))
    await settle(world, lambda: bool(pushed))
    assert pushed.pop() == (9061, {"b": PushedGroup("C", {0: "h:8"}, 0)})
    await world.ask(104, clusterName="C", brokerName="a", brokerAddr="h:7", brokerId="0")
    await settle(world, lambda: bool(pushed_filtered) and bool(pushed))
    assert pushed_filtered == [(9061, {"a": PushedGroup("C", {}, 0)})]
    await world.register(name="b", address="h:8", topics=("u",), version=2)
    await asyncio.sleep(0.01)
    assert len(pushed) == 1


async def test_a_subscriber_that_leaves_is_forgotten(world):
    """And an invalid body is refused."""
    connection, _, _ = await subscriber(world)
    assert len(world.plane.routes) == 1
    await connection.close()
    await settle(world, lambda: len(world.plane.routes) == 0)
    refused = await world.ask(9060, b"[")
    assert refused.code == 29
