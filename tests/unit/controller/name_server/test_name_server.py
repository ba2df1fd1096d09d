"""State, liveness, clock and file together."""

from __future__ import annotations

import pytest

from controller.name_server.changes import PutTopic, RegisterBroker
from remoting.protocol.bodies.route_body import QueueData, TopicConfig
from remoting.protocol.errors import Refused


def registration(address="h:1", broker_id=0):
    return RegisterBroker("C", "b", broker_id, address, topics={"t": TopicConfig("t")})


async def test_silent_brokers_leave_the_routes(world):
    server = world.name_server
    server.register(registration(), None)
    server.register(registration("h:2", 1), 1_000)
    world.pass_ms(1_000)
    assert list(server.metadata.groups["b"].members) == [0]
    assert server.beat(("C", "h:1"))
    assert not server.beat(("C", "h:2"))
    world.pass_ms(119_999)
    assert server.topic_route("t") is not None
    world.pass_ms(1)
    assert server.topic_route("t") is None
    assert len(server.liveness) == 0


async def test_a_broken_connection_leaves_a_grace(world):
    server = world.name_server
    server.register(registration(), None)
    server.connection_lost(("C", "h:1"))
    world.pass_ms(server.config.broker_lost_grace_ms - 1)
    assert server.topic_route("t") is not None
    world.pass_ms(1)
    assert server.topic_route("t") is None


async def test_who_is_replaced_is_no_longer_expected(world):
    server = world.name_server
    server.register(registration(), None)
    server.register(registration("h:9"), None)
    assert ("C", "h:1") not in server.liveness
    assert ("C", "h:9") in server.liveness


async def test_rejections_are_refusals(world):
    with pytest.raises(Refused, match="not registered"):
        world.name_server.apply(PutTopic("t", [QueueData("nobody", 1, 1, 6)]))


async def test_a_restart_serves_what_was_known_for_one_time_limit(world, another):
    world.name_server.register(registration(), None)
    await world.name_server.persister.durable()
    restarted = another()
    assert restarted.name_server.topic_route("t").broker_datas[0].broker_addrs == {0: "h:1"}
    restarted.pass_ms(120_000)
    assert restarted.name_server.topic_route("t") is None
