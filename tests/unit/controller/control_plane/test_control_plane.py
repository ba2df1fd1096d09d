"""The parts put together: routes follow what was agreed, state survives, an engine for the number of controllers."""

from __future__ import annotations

import pytest

from controller.config import ControllerConfig
from controller.consensus.single import SingleEngine
from controller.control_plane.control_plane import make_engine, members_of
from remoting.protocol.bodies.route_body import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_body,
)
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.frames.commands import Command
from tests.unit.controller.conftest import World
from tests.unit.controller.control_plane.test_controller_api import elect
from tests.unit.controller.control_plane.test_masters import group_of, settle


async def register_master(world, broker_id, epoch):
    table = TopicConfigTable({"t": TopicConfig("t")}, DataVersion(epoch, 0, 1))
    fields = {"clusterName": "C", "brokerName": "g", "brokerId": "0", "brokerAddr": f"h:{broker_id}"}
    command = Command(103, fields=fields, body=encode_body(RegisterBrokerBody(table)))
    assert (await world.connection.request(command, 2_000)).code == 0


async def test_the_routes_follow_the_election(world):
    """The old master leaves at once, the new one is in when it registers with its epoch."""
    await group_of(world, 2)
    await register_master(world, 1, 1)
    assert world.name_server.topic_route("t").broker_datas[0].broker_addrs == {0: "h:1"}
    await elect(world, 2, "true")
    await settle(world, lambda: world.name_server.topic_route("t") is None)
    await register_master(world, 2, 2)
    assert world.name_server.topic_route("t").broker_datas[0].broker_addrs == {0: "h:2"}


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
    """Without peers there is nobody to ask."""
    config = ControllerConfig(data_directory=tmp_path, port=5)
    members = members_of(config)
    assert members["n1"].address == "127.0.0.1:5"
    assert isinstance(make_engine(config, members, None), SingleEngine)


async def test_several_controllers_agree(tmp_path):
    """With peers the engine is Raft's, the secret is made beside the data; timers that cannot work are refused."""
    peers = ("n1@127.0.0.1:1@11", "n2@127.0.0.1:2@12", "n3@127.0.0.1:3@13")
    config = ControllerConfig(data_directory=tmp_path / "n2", node_id="n2", peers=peers)
    members = members_of(config)
    engine = make_engine(config, members, None)
    assert (type(engine).__name__, engine.node_id) == ("RaftEngine", "n2")
    assert (tmp_path / "raft.secret").exists()
    slow = ControllerConfig(data_directory=tmp_path, peers=peers, raft_heartbeat_ms=100)
    with pytest.raises(LocalMisuse, match="three times"):
        make_engine(slow, members, None)
