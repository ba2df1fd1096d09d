"""One side's brokers, and what is wrong when there are none."""

from __future__ import annotations

from typing import Any

import pytest

from lightmq.migrate.cluster import Cluster
from remoting.client.admin import AsyncAdmin
from remoting.protocol.bodies.controller_body import BrokerData, ClusterInfo
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


async def test_a_group_without_a_master_is_not_left_out(clusters: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is planned without it; one that was connected before is waited for by its connection."""
    cluster = clusters[0]
    read = AsyncAdmin.cluster

    async def told(self: AsyncAdmin) -> ClusterInfo:
        info = await read(self)
        info.broker_addr_table[away] = BrokerData("c", away, {1: "h:1"})
        return info

    monkeypatch.setattr(AsyncAdmin, "cluster", told)
    away = "gone"
    with pytest.raises(LightMQError, match="no master of the broker groups gone is known"):
        await cluster.refresh()
    monkeypatch.undo()
    assert await cluster.refresh() == ["old"]
    away = "old"
    monkeypatch.setattr(AsyncAdmin, "cluster", told)
    assert await cluster.refresh() == ["old"]


async def test_without_a_name_server_it_fails_by_name(sides: Any) -> None:
    async def dial(address: str) -> Any:
        raise ConnectionLost(f"nothing at {address}")

    with pytest.raises(LightMQError, match="no name server of a:1, b:2 answers: nothing at b:2"):
        await Cluster("a:1; b:2", dial).refresh()
    with pytest.raises(LightMQError, match="none was named"):
        await Cluster(" ,", dial).refresh()
