"""Every name server code as brokers, clients and operators send it."""

from __future__ import annotations

import json

import pytest

from controller.api import handlers
from remoting import inprocess
from remoting.protocol.bodies.controller_body import (
    ClusterInfo,
    DataVersion,
    MemberGroupBody,
    QueueData,
    TopicList,
    TopicRoute,
    decode_body,
    encode_body,
)

BROKER = {"clusterName": "C", "brokerName": "b", "brokerAddr": "h:1", "brokerId": "0"}


def test_the_table_is_complete(world):
    codes = {103, 104, 105, 106, 206, 322, 901, 904, 9062, 100, 101, 102, 219, 205, 327, 216, 217, 304, 224, 318, 319}
    assert handlers(world.name_server).keys() == codes
    more = {1001, 1002, 1003, 1004, 1005, 1006, 1009, 1010, 1011, 1012, 1013, 9060, 9063, 9064, 9074, 9075, 9076, 9077}
    assert handlers(world.name_server, world.plane).keys() == codes | more


async def test_register_route_unregister(world):
    answer = await world.register(topics=("t", "u"))
    assert (answer.code, json.loads(answer.body)) == (0, {"table": {}})
    route = decode_body((await world.ask(105, topic="t", acceptStandardJsonOnly="true")).body, TopicRoute)
    assert route.broker_datas[0].broker_addrs == {0: "h:1"}
    assert decode_body((await world.ask(206)).body, TopicList).topic_list == ["t", "u"]
    assert decode_body((await world.ask(224, cluster="C")).body, TopicList).topic_list == ["t", "u"]
    assert decode_body((await world.ask(304)).body, TopicList).broker_addr == "h:1"
    assert decode_body((await world.ask(106)).body, ClusterInfo).cluster_addr_table == {"C": ["b"]}
    await world.ask(104, **{**BROKER, "brokerId": "5"})
    assert (await world.ask(105, topic="t")).code == 0
    assert (await world.ask(104, **BROKER)).code == 0
    away = decode_body((await world.ask(105, topic="t")).body, TopicRoute)
    assert ([one.perm for one in away.queue_datas], away.broker_datas) == ([4], [])
    told = decode_body((await world.ask(105, topic="t", asConfigured="true")).body, TopicRoute)
    assert [one.perm for one in told.queue_datas] == [6]
    assert decode_body((await world.ask(106)).body, ClusterInfo).absent() == ["b"]


async def test_a_group_is_forgotten_by_request(world, another):
    """On disk when it is answered; not while a broker of it runs, or the controllers know its brokers."""
    await world.register(topics=("t",))
    running = await world.ask(9062, brokerName="b")
    assert (running.code, running.remark) == (1, "the broker group 'b' has brokers that run: h:1")
    await world.ask(104, **BROKER)
    assert (await world.ask(9062, brokerName="b")).code == 0
    gone = await world.ask(105, topic="t")
    assert (gone.code, gone.remark) == (17, "No topic route info in name server for the topic: t")
    assert another().name_server.metadata.groups == {}


async def test_a_replica_learns_its_master(world):
    await world.register()
    answer = await world.register(broker_id=1, address="h:2")
    assert answer.fields == {"masterAddr": "h:1", "haServerAddr": "ha-h:1"}
    body = (await world.ask(901, clusterName="C", brokerName="b")).body
    assert decode_body(body, MemberGroupBody).broker_member_group.broker_addrs == {0: "h:1", 1: "h:2"}


@pytest.mark.parametrize(
    ("fields", "body", "code"),
    [
        ({}, b"", 29),
        ({**BROKER, "brokerId": "-1"}, b"", 29),
        ({**BROKER, "brokerId": "x"}, b"", 29),
        (BROKER, b"{", 29),
        ({**BROKER, "bodyCrc32": "5"}, b"{}", 29),
        ({**BROKER, "compressed": "true"}, b"{}", 29),
    ],
)
async def test_malformed_registrations_change_nothing(world, fields, body, code):
    assert (await world.ask(103, body, **fields)).code == code
    assert world.name_server.metadata.groups == {}


async def test_heartbeats(world):
    first = await world.ask(904, **BROKER)
    assert (first.code, first.remark) == (2010, "broker h:1 must register first")
    await world.register(heartbeatTimeoutMillis="10000")
    world.pass_ms(9_999)
    assert (await world.ask(904, **BROKER)).code == 0
    world.pass_ms(9_999)
    assert world.name_server.topic_route("t") is not None
    world.pass_ms(1)
    assert world.name_server.topic_route("t").broker_datas == []


async def test_shall_i_register(world):
    same = encode_body(DataVersion(0, 0, 1))
    assert (await world.ask(322, same, **BROKER)).fields == {"changed": "true"}
    await world.register(version=1)
    world.pass_ms(119_999)
    unchanged = await world.ask(322, same, **BROKER)
    assert unchanged.fields == {"changed": "false"}
    assert decode_body(unchanged.body, DataVersion) == DataVersion(0, 0, 1)
    world.pass_ms(119_999)
    assert world.name_server.topic_route("t") is not None
    newer = encode_body(DataVersion(0, 0, 2))
    assert (await world.ask(322, newer, **BROKER)).fields == {"changed": "true"}


async def test_a_broker_that_hangs_up_has_a_grace(world):
    connection = inprocess.connect(world.router)
    await world.register(connection=connection)
    await connection.close()
    world.pass_ms(world.config.broker_lost_grace_ms)
    assert world.name_server.topic_route("t").broker_datas == []


async def test_write_permission(world, another):
    await world.register(topics=("t", "u"))
    assert (await world.ask(205, brokerName="b")).fields == {"wipeTopicCount": "2"}
    assert another().name_server.topic_route("t").queue_datas[0].perm == 4
    assert (await world.ask(327, brokerName="b")).fields == {"addTopicCount": "2"}
    assert world.name_server.topic_route("t").queue_datas[0].perm == 6
    assert (await world.ask(205, brokerName="x")).fields == {"wipeTopicCount": "0"}


async def test_topics_by_hand(world, another):
    await world.register(topics=())
    body = encode_body(TopicRoute(queue_datas=[QueueData("b", 2, 2, 6)]))
    assert (await world.ask(217, body, topic="t")).code == 0
    assert world.name_server.topic_route("t").queue_datas[0].read_queue_nums == 2
    assert (await world.ask(216, topic="t", clusterName="D")).code == 0
    assert world.name_server.topic_route("t") is not None
    assert (await world.ask(216, topic="t")).code == 0
    assert another().name_server.topic_route("t") is None
    refused = await world.ask(217, encode_body(TopicRoute(queue_datas=[QueueData("x", 2, 2, 6)])), topic="t")
    assert "not registered: x" in refused.remark


async def test_ordered_topics_are_told_to_brokers(world):
    await world.ask(100, namespace="ORDER_TOPIC_CONFIG", key="t", value="b:4")
    answer = await world.register()
    assert json.loads(answer.body) == {"table": {"t": "b:4"}}


async def test_the_template_topic(world, another):
    await world.register()
    route = decode_body((await world.ask(105, topic="TBW102")).body, TopicRoute)
    assert (route.queue_datas[0].perm, route.queue_datas[0].write_queue_nums) == (7, 4)
    without = another(template_queue_count=0)
    await without.register()
    assert (await without.ask(105, topic="TBW102")).code == 17


async def test_configuration_is_shown_without_secrets(another):
    world = another(access_keys=("device:hidden",))
    text = (await world.ask(319)).body.decode()
    assert "broker_timeout_ms=120000\n" in text
    assert "hidden" not in text
    assert "access_keys" not in text
    refused = await world.ask(318, b"port=1")
    assert (refused.code, "restart" in refused.remark) == (16, True)
