"""What operators ask is asked with the right codes and answered as values."""

from __future__ import annotations

import pytest

from remoting import inprocess
from remoting.client.admin import Admin
from remoting.protocol.codes import RequestCode
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.route_body import BrokerData, ClusterInfo, TopicList, TopicRoute, encode_body


async def test_questions_and_answers():
    asked = []
    bodies = {
        RequestCode.GET_BROKER_CLUSTER_INFO: encode_body(ClusterInfo({"b": BrokerData("C", "b", {0: "h:1"})})),
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: encode_body(TopicList(["z", "a"])),
        RequestCode.GET_ROUTEINFO_BY_TOPIC: encode_body(TopicRoute()),
        RequestCode.TOPIC_LIST: b'{"topics":[]}',
        RequestCode.CLUSTER_STATUS: b'{"confirm":7}',
        RequestCode.UPDATE_AND_CREATE_TOPIC: b"",
    }

    def handler(peer, command):
        asked.append(command)
        return command.reply(body=bodies[command.code])

    admin = Admin(inprocess.connect(handler))
    assert (await admin.cluster()).broker_addr_table["b"].master() == "h:1"
    assert await admin.topic_names() == ["a", "z"]
    assert (await admin.route("t")).queue_datas == []
    assert await admin.topics() == {"topics": []}
    assert await admin.status() == {"confirm": 7}
    await admin.create_topic("t", 8)
    assert asked[-1].fields["readQueueNums"] == asked[-1].fields["writeQueueNums"] == "8"
    assert asked[-1].fields["perm"] == "6"


async def test_refusals_and_nonsense():
    def refuse(peer, command):
        raise Refused(16, "not you")

    with pytest.raises(Refused, match="not you"):
        await Admin(inprocess.connect(refuse)).topics()
    with pytest.raises(RemoteViolation):
        await Admin(inprocess.connect(lambda peer, command: command.reply(body=b"[]"))).topics()
