"""Headers survive the trip through a command's fields, bodies the one through JSON; malformed ones are violations."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.bodies.controller_body import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    BrokerData,
    CleanBrokerData,
    ClusterInfo,
    ControllerMetadata,
    ElectMasterHeader,
    GroupState,
    Heartbeat,
    MasterHeader,
    NextBrokerId,
    PushedGroup,
    PushedRoutes,
    QueueData,
    RegisterBrokerBody,
    RegisterReplicaHeader,
    ReplicaState,
    RouteSubscription,
    SyncStateData,
    SyncStateSetBody,
    TopicRoute,
    decode_body,
    decode_names,
    encode_body,
    from_fields,
    to_fields,
)
from remoting.protocol.errors import RemoteViolation


def test_a_route_on_the_wire():
    route = TopicRoute(None, [QueueData("b", 4, 4, 6)], [BrokerData("C", "b", {0: "h:1", 1: "h:2"})])
    wire = json.loads(encode_body(route))
    assert wire["queueDatas"] == [
        {"brokerName": "b", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0}
    ]
    assert wire["brokerDatas"][0]["brokerAddrs"] == {"0": "h:1", "1": "h:2"}
    assert set(wire) == {
        "orderTopicConf",
        "queueDatas",
        "brokerDatas",
        "filterServerTable",
        "topicQueueMappingByBroker",
    }
    assert decode_body(encode_body(route), TopicRoute) == route


def test_numbers_as_text_and_unknown_members_are_taken():
    body = b'{"queueDatas":[{"brokerName":"b","readQueueNums":"8","writeQueueNums":8,"perm":6,"new":[1]}],"x":{}}'
    assert decode_body(body, TopicRoute).queue_datas[0].read_queue_nums == 8


def test_old_java_peers_write_numbers_as_keys_without_quotes():
    body = (
        b'{brokerAddrTable:{"b":{"cluster":"C","brokerName":"b","brokerAddrs":{0:"h:1",1:"h:2"}}},clusterAddrTable:{}}'
    )
    assert decode_body(body, ClusterInfo).broker_addr_table["b"].broker_addrs == {0: "h:1", 1: "h:2"}


@given(st.binary(max_size=60))
def test_whatever_is_malformed_is_a_violation(data):
    with contextlib.suppress(RemoteViolation):
        decode_body(data, ClusterInfo)


@pytest.mark.parametrize("kind", [TopicRoute, ClusterInfo, RegisterBrokerBody])
def test_the_violation_names_the_kind(kind):
    with pytest.raises(RemoteViolation, match=kind.__name__):
        decode_body(b"[1]", kind)


def test_who_takes_writes():
    assert BrokerData("C", "b", {0: "m", 1: "s"}).master() == "m"
    assert BrokerData("C", "b", {2: "x", 1: "s"}).master() is None
    assert BrokerData("C", "b", {2: "x", 1: "s"}, enable_acting_master=True).master() == "s"
    assert BrokerData("C", "b", {}).master() is None


HEADERS = [
    NextBrokerId("C", "b", 1),
    ApplyBrokerIdHeader("C", "b", 2, "h:1;abc"),
    RegisterReplicaHeader("C", "b", 1, "h:1", 5, "h:2", 3, 1_000, "boot", True, True),
    ElectMasterHeader("C", "b", 2, True, 7),
    AlterSyncStateSetHeader("b", 1, 3),
    MasterHeader(3, 4, 1, "h:1", "h:2"),
    MasterHeader(3, 4),
    MasterHeader(3, 4, 1, "h:1", "h:2", "b"),
    ControllerMetadata("g", "n1", "h:1", True, "n1-h:1;n2-h:2"),
    CleanBrokerData("b", "C", "1;2", True),
    Heartbeat("C", "b", "h:1", 1, 3, 100, 90, 2_000, 5),
    Heartbeat("C", "b", "h:1", 1, 3, 100, 90, 2_000, 5, True),
]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: type(header).__name__)
def test_headers_survive_the_wire(header):
    """What one side writes into fields, the other reads back."""
    fields = to_fields(header)
    assert all(isinstance(value, str) for value in fields.values())
    assert from_fields(fields, type(header)) == header


def test_names_and_texts_are_those_of_rocketmq():
    """Booleans are lower case, None is left out, and the two irregular names are kept."""
    assert to_fields(ElectMasterHeader("C", "b")) == {
        "clusterName": "C",
        "brokerName": "b",
        "brokerId": "-1",
        "designateElect": "false",
        "invokeTime": "0",
        "leaves": "false",
    }
    assert to_fields(MasterHeader(0)) == {"masterEpoch": "0", "syncStateSetEpoch": "0"}
    assert "heartbeatTimeoutMills" in to_fields(HEADERS[-1])
    assert to_fields(HEADERS[2])["haServerAddr"] == "h:2"


def test_a_broker_of_rocketmq_sends_less():
    """Fields beyond RocketMQ's have defaults, unknown ones are ignored, empty ones count as absent."""
    fields = {"clusterName": "C", "brokerName": "b", "brokerId": "1", "brokerAddress": "h:1", "more": "x", "bootId": ""}
    header = from_fields(fields, RegisterReplicaHeader)
    assert (header.boot_id, header.last_epoch, header.clean_shutdown) == ("", -1, False)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"clusterName": "C", "brokerName": "b"},
        {"clusterName": "C", "brokerName": "b", "appliedBrokerId": "0", "registerCheckCode": "c"},
        {"clusterName": "C", "brokerName": "b", "appliedBrokerId": "x", "registerCheckCode": "c"},
        {"clusterName": "C", "brokerName": "b", "appliedBrokerId": "9" * 40, "registerCheckCode": "c"},
    ],
)
def test_malformed_headers_are_violations(fields):
    """A field that is missing or out of range is named to the peer, never an exception of another kind."""
    with pytest.raises(RemoteViolation, match="ApplyBrokerIdHeader cannot be read"):
        from_fields(fields, ApplyBrokerIdHeader)


def test_bodies_are_those_of_rocketmq():
    """The members that RocketMQ's tools look for are there."""
    state = GroupState(1, "h:1", 3, 4, [ReplicaState("b", 1, "h:1", True)], [])
    table = json.loads(encode_body(SyncStateData({"b": state})))["replicasInfoTable"]["b"]
    assert table["masterBrokerId"] == 1
    assert table["inSyncReplicas"] == [{"brokerName": "b", "brokerId": 1, "brokerAddress": "h:1", "alive": True}]
    assert json.loads(encode_body(SyncStateSetBody([1, 2], 5))) == {"syncStateSet": [1, 2], "syncStateSetEpoch": 5}
    assert decode_body(b'{"syncStateSet":[2,1],"syncStateSetEpoch":5}', SyncStateSetBody).sync_state_set == [2, 1]


def test_pushed_routes_survive_the_wire():
    """Ids are keys of an object and come back as numbers."""
    routes = PushedRoutes({"b": PushedGroup("C", {0: "h:1", 2: "h:2"}, 3)})
    assert json.loads(encode_body(routes)) == {
        "groups": {"b": {"cluster": "C", "brokers": {"0": "h:1", "2": "h:2"}, "epoch": 3}}
    }
    assert decode_body(encode_body(routes), PushedRoutes) == routes
    assert decode_body(b"{}", RouteSubscription).topics == []


def test_names_of_groups():
    """The body of 1006 is a bare array of texts."""
    assert decode_names(b'["a","b"]') == ["a", "b"]
    for body in (b"", b"{}", b"[1]", b"\xff", b"[" * 100_000):
        with pytest.raises(RemoteViolation):
            decode_names(body)
