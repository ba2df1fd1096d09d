"""One side's brokers, and what is wrong when there are none."""

from __future__ import annotations

from typing import Any

import pytest

from lightmq.migrate.cluster import Cluster
from remoting.protocol.errors import LightMQError
from remoting.transport.failures import ConnectionLost


async def test_brokers_topics_groups_and_offsets_are_read(sides: Any, clusters: tuple[Cluster, Cluster]) -> None:
    old, _new = sides
    cluster = clusters[0]
    assert await cluster.refresh() == await cluster.refresh() == cluster.brokers == ["old"]
    assert cluster.clusters == ["c"]
    await old.topic("orders", 3)
    await old.group("billing")
    await old.commit("billing", "orders", 2, 0)
    assert (await cluster.topics("old"))["orders"].read_queue_nums == 3
    assert (await cluster.groups("old"))["billing"]["groupName"] == "billing"
    assert await cluster.offsets("billing", ["old"]) == {("orders", "old", 2): 0}
    assert await cluster.offsets("unknown", ["old"]) == {}


async def test_without_a_name_server_it_fails_by_name(sides: Any) -> None:
    async def dial(address: str) -> Any:
        raise ConnectionLost(f"nothing at {address}")

    with pytest.raises(LightMQError, match="no name server of a:1, b:2 answers: nothing at b:2"):
        await Cluster("a:1; b:2", dial).refresh()
    with pytest.raises(LightMQError, match="none was named"):
        await Cluster(" ,", dial).refresh()
