"""Bodies of routes: RocketMQ's names on the wire, leniency on the way in."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.bodies.route_body import (
    BrokerData,
    ClusterInfo,
    QueueData,
    RegisterBrokerBody,
    TopicRoute,
    decode_body,
    encode_body,
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
