"""The tables clients see."""

from __future__ import annotations

from controller.name_server import state as routes
from controller.name_server.changes import PutKeyValue, RegisterBroker, RemoveMember, SetWritable
from controller.name_server.state import MetadataState
from remoting.protocol.bodies.route_body import DataVersion, TopicConfig


def world(*registrations, acting=False):
    state = MetadataState()
    for name, broker_id, address in registrations:
        topics = {"t": TopicConfig("t", 8, 8, 6), "rmq_sys_x": TopicConfig("rmq_sys_x", 1, 1, 6)}
        state.apply(
            RegisterBroker("C", name, broker_id, address, f"ha-{address}", None, acting, DataVersion(0, 0, 1), topics)
        )
    return state


def test_a_route_names_queues_and_all_addresses():
    state = world(("b", 0, "h:1"), ("b", 1, "h:2"), ("a", 0, "h:3"))
    state.apply(PutKeyValue("ORDER_TOPIC_CONFIG", "t", "a:8;b:8"))
    route = routes.topic_route(state.metadata, "t")
    assert [(queue.broker_name, queue.read_queue_nums, queue.perm) for queue in route.queue_datas] == [
        ("a", 8, 6),
        ("b", 8, 6),
    ]
    assert [broker.broker_addrs for broker in route.broker_datas] == [{0: "h:3"}, {0: "h:1", 1: "h:2"}]
    assert route.order_topic_conf == "a:8;b:8"
    assert routes.topic_route(state.metadata, "nope") is None


def test_without_a_master_nobody_writes():
    state = world(("b", 0, "h:1"), ("b", 1, "h:2"))
    state.apply(RemoveMember("C", "h:1", "dead"))
    route = routes.topic_route(state.metadata, "t")
    assert route.queue_datas[0].perm == 4
    assert route.broker_datas[0].broker_addrs == {1: "h:2"}
    assert route.broker_datas[0].master() is None


def test_the_lowest_id_acts_as_master_and_only_reads():
    state = world(("b", 0, "h:1"), ("b", 2, "h:3"), ("b", 1, "h:2"), acting=True)
    state.apply(RemoveMember("C", "h:1", "dead"))
    route = routes.topic_route(state.metadata, "t")
    assert route.broker_datas[0].broker_addrs == {0: "h:2", 2: "h:3"}
    assert route.queue_datas[0].perm == 4
    assert routes.cluster_info(state.metadata).broker_addr_table["b"].broker_addrs == {1: "h:2", 2: "h:3"}


def test_a_withdrawn_write_permission_shows():
    state = world(("b", 0, "h:1"))
    state.apply(SetWritable("b", writable=False))
    assert routes.topic_route(state.metadata, "t").queue_datas[0].perm == 4
    assert state.metadata.topics["t"]["b"].perm == 6


def test_the_template_is_made_where_no_broker_has_it():
    state = world(("b", 0, "h:1"))
    assert routes.topic_route(state.metadata, "TBW102") is None
    route = routes.topic_route(state.metadata, "TBW102", 4)
    assert (route.queue_datas[0].write_queue_nums, route.queue_datas[0].perm) == (4, 7)
    assert routes.topic_route(MetadataState().metadata, "TBW102", 4) is None


def test_lists():
    state = world(("b", 0, "h:1"))
    assert routes.topic_names(state.metadata) == ["rmq_sys_x", "t"]
    assert routes.topic_names(state.metadata, "C") == ["rmq_sys_x", "t"]
    assert routes.topic_names(state.metadata, "D") == []
    assert routes.system_topic_names(state.metadata) == (["C", "b", "rmq_sys_x"], "h:1")
    assert routes.system_topic_names(MetadataState().metadata) == ([], None)
    assert routes.cluster_info(state.metadata).cluster_addr_table == {"C": ["b"]}
    assert routes.member_group(state.metadata, "C", "b").broker_addrs == {0: "h:1"}
    assert routes.member_group(state.metadata, "D", "b").broker_addrs == {}
    assert routes.master_of(state.metadata.groups["b"]) == ("h:1", "ha-h:1")
    assert routes.master_of(None) == ("", "")
