"""Every command on the metadata: what it changes, what it refuses, what always holds."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.name_server import state as routes
from controller.name_server.state import (
    Change,
    DeleteKeyValue,
    MemberLeft,
    Metadata,
    MetadataLimits,
    MetadataState,
    PutKeyValue,
    PutTopic,
    RegisterBroker,
    Registered,
    Rejected,
    RemoveGroup,
    RemoveMember,
    RemoveTopic,
    SetWritable,
    TopicsTouched,
)
from remoting.protocol.bodies.controller_body import DataVersion, QueueData, TopicConfig


def registration(name="b", broker_id=0, address="h:1", topics=("t",), counter=1, epoch=0, cluster="C", acting=False):
    table = {topic: TopicConfig(topic) for topic in topics}
    return RegisterBroker(
        cluster, name, broker_id, address, "", None, acting, DataVersion(epoch, 0, counter), table
    )  # fmt: skip


def names(events):
    return [type(event).__name__ for event in events]


def test_a_master_brings_its_topics():
    state = MetadataState()
    assert state.apply(registration(topics=("t", "u"))) == [Registered("C", "b", 0, "h:1", first=True)]
    assert sorted(state.metadata.topics) == ["t", "u"]
    assert state.revision == 1
    assert state.apply(registration(topics=("t", "u"))) == [Registered("C", "b", 0, "h:1", first=False)]
    assert state.revision == 1
    state.apply(registration(topics=("v",), counter=2))
    assert sorted(state.metadata.topics) == ["t", "u", "v"]


def test_a_replica_brings_none_unless_it_acts():
    state = MetadataState()
    state.apply(registration(broker_id=2, address="h:2"))
    assert state.metadata.topics == {}
    state.apply(registration(broker_id=1, address="h:3", acting=True))
    assert list(state.metadata.topics) == ["t"]


def test_a_group_whose_brokers_have_gone_stays_with_its_topics():
    """Until an operator removes it; its queues are in routes, its addresses are not."""
    state = MetadataState()
    state.apply(registration())
    state.apply(registration(broker_id=1, address="h:2"))
    state.apply(registration("c", 0, "h:3", topics=("t", "u")))
    assert state.apply(RemoveMember("C", "h:1", "dead")) == [MemberLeft("C", "b", 0, "h:1", "dead")]
    (refused,) = state.apply(RemoveGroup("b"))
    assert refused == Rejected("the broker group 'b' has brokers that run: h:2")
    state.apply(RemoveMember("C", "h:2", "dead"))
    assert state.apply(RemoveMember("C", "h:2", "dead")) == []
    route = routes.topic_route(state.metadata, "t")
    assert [(queues.broker_name, queues.perm) for queues in route.queue_datas] == [("b", 4), ("c", 6)]
    assert [data.broker_name for data in route.broker_datas] == ["c"]
    told = routes.topic_route(state.metadata, "t", as_configured=True)
    assert [queues.perm for queues in told.queue_datas] == [6, 6]
    assert routes.cluster_info(state.metadata).absent() == ["b"]
    assert names(state.apply(RemoveGroup("b"))) == []
    assert (state.metadata.groups.keys(), state.metadata.topics["t"].keys()) == ({"c"}, {"c"})
    assert names(state.apply(RemoveGroup("b"))) == []


def test_a_topic_of_groups_that_are_away_has_a_route_without_brokers():
    """A producer finds nobody to send to, instead of no topic, which it would make elsewhere."""
    state = world(("b", 0, "h:1"))
    state.apply(RemoveMember("C", "h:1", "it left in order"))
    state.apply(registration("c", 0, "h:3", topics=()))
    route = routes.topic_route(state.metadata, "t", 4)
    assert ([queues.broker_name for queues in route.queue_datas], route.broker_datas) == (["b"], [])
    template = routes.topic_route(state.metadata, "TBW102", 4)
    assert [queues.broker_name for queues in template.queue_datas] == ["c"]


def test_groups_that_the_controllers_agreed_on_are_away_until_they_register():
    state = world(("b", 0, "h:1"))
    info = routes.cluster_info(state.metadata, None, {"a": "D", "b": "C"})
    assert (info.absent(), info.topics_unknown) == (["a"], ["a"])
    assert info.cluster_addr_table == {"D": ["a"], "C": ["b"]}
    assert routes.cluster_info(state.metadata, lambda _name: {2: "h:2"}, {"a": "D"}).absent() == ["a"]


def test_a_new_address_replaces_the_old_but_an_older_epoch_does_not():
    state = MetadataState()
    state.apply(registration(epoch=3))
    events = state.apply(registration(address="h:9", epoch=4))
    assert names(events) == ["MemberLeft", "Registered"]
    before = state.revision
    (event,) = state.apply(registration(epoch=3))
    assert isinstance(event, Rejected)
    assert "h:9 of epoch 4" in event.remark
    assert state.revision == before


def test_one_address_is_one_member():
    state = MetadataState()
    state.apply(registration(broker_id=1))
    assert names(state.apply(registration(broker_id=0))) == ["MemberLeft", "Registered"]
    assert list(state.metadata.groups["b"].members) == [0]
    state.apply(registration("c"))
    assert {name: list(group.members) for name, group in state.metadata.groups.items()} == {"b": [], "c": [0]}
    assert state.member_of("C", "h:1") == ("c", 0)
    assert state.member_of("D", "h:1") is None


def test_a_name_belongs_to_one_cluster():
    state = MetadataState()
    state.apply(registration())
    (event,) = state.apply(registration(cluster="D", address="h:5"))
    assert isinstance(event, Rejected)
    assert "belongs to cluster 'C'" in event.remark


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        (MetadataLimits(brokers_max=1), registration("c", 0, "h:2")),
        (MetadataLimits(topics_max=1), registration("c", 0, "h:2", topics=("u",))),
        (MetadataLimits(topics_max=1), PutTopic("u", [QueueData("b", 1, 1, 6)])),
        (MetadataLimits(key_values_max=0), PutKeyValue("n", "k", "v")),
    ],
)
def test_limits_refuse_and_change_nothing(limits, refused):
    state = MetadataState(limits=limits)
    state.apply(registration())
    assert names(state.apply(refused)) == ["Rejected"]
    assert state.revision == 1
    assert names(state.apply(registration(counter=2))) == ["Registered"]


def test_a_group_that_is_away_keeps_a_place():
    state = MetadataState(limits=MetadataLimits(brokers_max=1))
    state.apply(registration())
    state.apply(RemoveMember("C", "h:1", "dead"))
    assert names(state.apply(registration("c", 0, "h:2"))) == ["Rejected"]
    assert names(state.apply(registration(address="h:3"))) == ["Registered"]


def test_topics_put_and_removed_by_cluster():
    state = MetadataState()
    state.apply(registration(topics=()))
    state.apply(registration("d", 0, "h:2", topics=(), cluster="D"))
    assert names(state.apply(PutTopic("t", [QueueData("x", 1, 1, 6)]))) == ["Rejected"]
    assert names(state.apply(PutTopic("t", []))) == ["Rejected"]
    state.apply(PutTopic("t", [QueueData("b", 1, 1, 6), QueueData("d", 2, 2, 6)]))
    assert state.apply(RemoveTopic("t", "D")) == [TopicsTouched(1)]
    assert list(state.metadata.topics["t"]) == ["b"]
    assert state.apply(RemoveTopic("t")) == [TopicsTouched(1)]
    assert state.apply(RemoveTopic("t")) == [TopicsTouched(0)]


def test_write_permission_is_the_groups_and_counted_in_topics():
    state = MetadataState()
    state.apply(registration(topics=("t", "u")))
    assert state.apply(SetWritable("b", writable=False)) == [TopicsTouched(2)]
    assert not state.metadata.groups["b"].writable
    state.apply(registration(topics=("t", "u"), counter=5))
    assert not state.metadata.groups["b"].writable
    assert state.apply(SetWritable("nobody", writable=True)) == [TopicsTouched(0)]


def test_key_values():
    state = MetadataState()
    state.apply(PutKeyValue("n", "k", "1"))
    state.apply(PutKeyValue("n", "k", "2"))
    assert state.metadata.key_values == {"n": {"k": "2"}}
    state.apply(DeleteKeyValue("n", "k"))
    assert state.metadata.key_values == {}
    revision = state.revision
    state.apply(DeleteKeyValue("n", "k"))
    assert state.revision == revision


CHANGES = st.one_of(
    st.builds(
        registration,
        st.sampled_from("bcd"),
        st.integers(0, 2),
        st.sampled_from(["h:1", "h:2", "h:3", "h:4"]),
        st.lists(st.sampled_from("tuv"), max_size=3),
        st.integers(0, 3),
        st.integers(0, 2),
        st.sampled_from("CD"),
        st.booleans(),
    ),
    st.builds(RemoveGroup, st.sampled_from("bcd")),
    st.builds(RemoveMember, st.sampled_from("CD"), st.sampled_from(["h:1", "h:2", "h:3", "h:4"]), st.just("x")),
    st.builds(RemoveTopic, st.sampled_from("tuv"), st.sampled_from([None, "C", "D"])),
    st.builds(
        PutTopic,
        st.sampled_from("tuv"),
        st.lists(st.builds(QueueData, st.sampled_from("bcd"), st.just(1), st.just(1), st.just(6)), max_size=2),
    ),
)


@given(st.lists(CHANGES, max_size=30))
def test_the_invariant_holds_and_the_same_commands_give_the_same_state(changes):
    state, twin = MetadataState(), MetadataState(Metadata())
    for change in changes:
        before = state.revision
        events = state.apply(change)
        assert events == twin.apply(change)
        if any(isinstance(event, Rejected) for event in events):
            assert state.revision == before
        groups, topics = state.metadata.groups, state.metadata.topics
        assert all(queues and queues.keys() <= groups.keys() for queues in topics.values())
        places = [(group.cluster, m.address) for group in groups.values() for m in group.members.values()]
        assert len(places) == len(set(places))
    assert state.metadata == twin.metadata


@pytest.mark.parametrize(
    "change",
    [
        RegisterBroker("C", "b", 0, "h:1", data_version=DataVersion(1, 2, 3), topics={"t": TopicConfig("t")}),
        RemoveMember("C", "h:1", "silent"),
        RemoveGroup("b"),
        SetWritable("b", writable=False),
        PutTopic("t", [QueueData("b", 1, 1, 6)]),
        RemoveTopic("t"),
        PutKeyValue("n", "k", "v"),
        DeleteKeyValue("n", "k"),
    ],
)
def test_round_trip(change):
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(change), type=Change) == change


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


def test_without_a_master_the_topic_is_read_only():
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
    joined = routes.topic_route(state.metadata, "t", replicas=lambda _group: {0: "h:1", 1: "h:2", 4: "h:4"})
    assert joined.broker_datas[0].broker_addrs == {0: "h:2", 2: "h:3", 4: "h:4"}, "who registered acts"
    assert routes.cluster_info(state.metadata).broker_addr_table["b"].broker_addrs == {1: "h:2", 2: "h:3"}


def test_replicas_that_register_no_topics_are_shown_beside_their_master():
    """Not one that has become the master and is still known by its id; a group without a master has none."""
    state = world(("b", 0, "h:1"))
    alive = {"b": {1: "h:1", 2: "h:2", 3: "h:3"}, "x": {1: "h:9"}}
    table = routes.cluster_info(state.metadata, lambda group: alive.get(group, {})).broker_addr_table
    assert {name: data.broker_addrs for name, data in table.items()} == {"b": {0: "h:1", 2: "h:2", 3: "h:3"}}
    assert routes.topic_route(state.metadata, "t").broker_datas[0].broker_addrs == {0: "h:1"}
    joined = routes.topic_route(state.metadata, "t", replicas=lambda group: alive.get(group, {}))
    assert joined.broker_datas[0].broker_addrs == {0: "h:1", 2: "h:2", 3: "h:3"}


def test_a_group_that_may_have_an_acting_master_keeps_its_topics():
    """For one of its brokers, which registers without topics when the last one has left."""
    state = world(("b", 0, "h:1"), acting=True)
    state.apply(RemoveMember("C", "h:1", "it left in order"))
    assert routes.topic_route(state.metadata, "t").broker_datas == []
    state.apply(RegisterBroker("C", "b", 2, "h:2", enable_acting_master=True))
    route = routes.topic_route(state.metadata, "t")
    assert (route.broker_datas[0].broker_addrs, route.queue_datas[0].perm) == ({0: "h:2"}, 4)


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


def test_a_cluster_and_a_group_have_a_topic_of_their_name():
    """RocketMQ's proxy looks up its brokers by them; for LightMQ's own readers a topic is one that a broker has."""
    state = world(("b", 0, "h:1"))
    other = {"TBW102": TopicConfig("TBW102", 8, 8, perm=7)}
    state.apply(RegisterBroker("C", "c", 0, "h:2", topics=other))
    state.apply(RegisterBroker("D", "d", 0, "h:3"))
    route = routes.topic_route(state.metadata, "C")
    assert {data.broker_name: data.broker_addrs for data in route.broker_datas} == {"b": {0: "h:1"}, "c": {0: "h:2"}}
    assert [(each.write_queue_nums, each.perm) for each in route.queue_datas] == [(1, 1), (1, 7)]
    assert [data.broker_addrs for data in routes.topic_route(state.metadata, "c").broker_datas] == [{0: "h:2"}]
    assert routes.topic_route(state.metadata, "c", as_configured=True) is None
    state.apply(RemoveMember("C", "h:2", "dead"))
    away = routes.topic_route(state.metadata, "c")
    assert ([each.perm for each in away.queue_datas], away.broker_datas) == ([5], [])
    state.apply(PutTopic("c", [QueueData("b", 4, 4, 6)]))
    assert [each.broker_name for each in routes.topic_route(state.metadata, "c").queue_datas] == ["b"]


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


def test_a_replica_that_only_reads_is_in_routes_and_no_broker_of_the_cluster():
    """But to who asks for replicas too; it keeps the topics when the master has gone, without the right to write."""
    state = MetadataState()
    state.apply(registration())
    state.apply(RegisterBroker("C", "b", 2, "h:2", reads_only=True, topics={"u": TopicConfig("u")}))
    route = routes.topic_route(state.metadata, "t")
    assert (route.broker_datas[0].broker_addrs, route.queue_datas[0].perm) == ({0: "h:1", 2: "h:2"}, 6)
    assert routes.topic_route(state.metadata, "u") is None
    assert routes.cluster_info(state.metadata).broker_addr_table["b"].broker_addrs == {0: "h:1"}
    both = routes.cluster_info(state.metadata, routes.no_replicas).broker_addr_table["b"]
    assert both.broker_addrs == {0: "h:1", 2: "h:2"}
    state.apply(RemoveMember("C", "h:1", "dead"))
    route = routes.topic_route(state.metadata, "t")
    assert (route.broker_datas[0].broker_addrs, route.queue_datas[0].perm) == ({2: "h:2"}, 4)
    state.apply(RemoveMember("C", "h:2", "dead"))
    assert routes.topic_route(state.metadata, "t").broker_datas == []
