"""Lite topics through a real port to a real broker: sends. They pass `grpc_proxy.sending` and `grpc_proxy.routes`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.config import LimitsConfig
from grpc_proxy.stubs import definition as d
from grpc_proxy.stubs import service as s
from remoting import inprocess
from tests.unit.broker.lite.client import PARENT, make_group, make_parent, pop, subscribe
from tests.unit.grpc_proxy.conftest import ENDPOINTS, ProxyBench, message

Code, Type = d.Code, d.MessageType
AGENTS = d.Resource(name=PARENT)


@pytest.fixture
async def lite(tmp_path: Path) -> AsyncIterator[ProxyBench]:
    """A proxy in front of a broker with the parent topic `agents`, of two lite topics at most."""
    bench = ProxyBench(tmp_path / "data", broker_options={"limits": LimitsConfig(lite_topics_max=2)})
    await bench.start()
    bench.remoting = inprocess.connect(bench.broker.router)
    assert (await make_parent(bench.remoting)).code == (await make_group(bench.remoting)).code == 0
    yield bench
    await bench.stop()


def lite_message(lite_topic: str, body: bytes = b"hello", **system: Any) -> Any:
    given = message(body, lite_topic=lite_topic, message_type=Type.LITE, **system)
    given.topic.CopyFrom(AGENTS)
    return given


async def test_a_message_for_a_lite_topic_is_given_to_its_subscribers(lite):
    found = await lite.call("QueryRoute", s.QueryRouteRequest(topic=AGENTS, endpoints=ENDPOINTS))
    assert {tuple(queue.accept_message_types) for queue in found.message_queues} == {(Type.LITE,)}
    assert await subscribe(lite.remoting, "s-1") == 0
    sent = await lite.send(lite_message("s-1", tag="t"), lite_message("s-2"), lite_message("s-1", b"again"))
    assert [entry.status.code for entry in sent.entries] == [Code.OK] * 3
    got = await pop(lite.remoting)
    assert [(one.body, one.lite_topic) for one in got] == [(b"hello", "s-1"), (b"again", "s-1")]
    assert (got[0].properties["TAGS"], got[0].properties["UNIQ_KEY"]) == ("t", "0102")


async def test_lite_topics_have_a_limit_and_parents_of_their_type(lite):
    assert (await lite.send(lite_message("s-1"), lite_message("s-2"))).status.code == Code.OK
    assert (await lite.send(lite_message("s-3"))).status.code == Code.LITE_TOPIC_QUOTA_EXCEEDED
    other = lite_message("s-1")
    other.topic.name = "orders"
    assert (await lite.send(other)).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    other.topic.name = "nothing"
    assert (await lite.send(other)).status.code == Code.TOPIC_NOT_FOUND
    assert (await lite.send(lite_message("s/+"))).status.code == Code.ILLEGAL_LITE_TOPIC
