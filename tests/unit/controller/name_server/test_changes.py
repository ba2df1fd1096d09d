"""Commands are plain values that survive a journey as bytes."""

from __future__ import annotations

import msgspec
import pytest

from controller.name_server.changes import (
    Change,
    DeleteKeyValue,
    PutKeyValue,
    PutTopic,
    RegisterBroker,
    RemoveMember,
    RemoveTopic,
    SetWritable,
)
from remoting.protocol.bodies.route_body import DataVersion, QueueData, TopicConfig


@pytest.mark.parametrize(
    "change",
    [
        RegisterBroker("C", "b", 0, "h:1", data_version=DataVersion(1, 2, 3), topics={"t": TopicConfig("t")}),
        RemoveMember("C", "h:1", "silent"),
        SetWritable("b", writable=False),
        PutTopic("t", [QueueData("b", 1, 1, 6)]),
        RemoveTopic("t"),
        PutKeyValue("n", "k", "v"),
        DeleteKeyValue("n", "k"),
    ],
)
def test_round_trip(change):
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(change), type=Change) == change
