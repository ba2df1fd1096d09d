"""Two brokers in this process, each the only one of its cluster, and a migration from the first to the second."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lightmq.migrate.cluster import Cluster
from lightmq.migrate.migration import Migration, Options
from remoting import inprocess
from remoting.client.connection import Connection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import StoredMessage, iter_stored
from remoting.server.router import Router
from remoting.transport.failures import checked
from runtime.clock import SystemClock
from tests.support.clock import ManualClock
from tests.unit.broker.conftest import BrokerBench


class Side:
    """A cluster of one broker with a name server that knows it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.bench = BrokerBench(folder, ManualClock(), broker_name=name)
        self.name, self.address = name, f"{name}:1"

    async def dial(self, address: str) -> Connection:
        assert address == self.address
        return inprocess.connect(self._serve)

    def _serve(self, peer: Any, command: Command) -> Command | None:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            found = {self.name: {"cluster": "c", "brokerName": self.name, "brokerAddrs": {"0": self.address}}}
            body = json.dumps({"brokerAddrTable": found, "clusterAddrTable": {"c": [self.name]}}).encode()
            return command.reply(body=body)
        return self.router(peer, command)

    @property
    def router(self) -> Router:
        """The broker's present one."""
        return self.bench.router

    async def ask(self, code: int, body: bytes = b"", **fields: object) -> Command:
        named = {name: str(value) for name, value in fields.items()}
        return checked(await self.bench.connect().request(Command(code, fields=named, body=body)))

    async def topic(self, name: str, queues: int = 2, perm: int = 6) -> None:
        await self.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC, topic=name, readQueueNums=queues, writeQueueNums=queues, perm=perm
        )

    async def group(self, name: str) -> None:
        await self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps({"groupName": name}).encode())

    async def send(self, topic: str, queue: int, *bodies: bytes) -> None:
        for body in bodies:
            await self.ask(
                RequestCode.SEND_MESSAGE, body, topic=topic, producerGroup="p", queueId=queue, bornTimestamp=5, flag=3
            )

    async def commit(self, group: str, topic: str, queue: int, offset: int) -> None:
        await self.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=queue, commitOffset=offset
        )

    async def committed(self, group: str, topic: str, queue: int) -> int:
        answer = await self.ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=queue)
        return int(answer.fields["offset"])

    async def messages(self, topic: str, queue: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while True:
            fields = {"consumerGroup": "g", "topic": topic, "queueId": str(queue), "queueOffset": str(len(found)),
                      "sysFlag": "4", "maxMsgNums": "32", "subscription": "*"}  # fmt: skip
            answer = await self.bench.connect().request(Command(RequestCode.PULL_MESSAGE, fields=fields))
            if answer.code:
                return found
            found += iter_stored(answer.body)


@pytest.fixture
async def sides(tmp_path: Path) -> AsyncIterator[tuple[Side, Side]]:
    pair = Side(tmp_path / "old", "old"), Side(tmp_path / "new", "new")
    yield pair
    for side in pair:
        side.bench.store.close()


@pytest.fixture
async def clusters(sides: tuple[Side, Side]) -> AsyncIterator[tuple[Cluster, Cluster]]:
    pair = tuple(Cluster(side.address, side.dial) for side in sides)
    yield pair  # type: ignore[misc]
    for cluster in pair:
        await cluster.close()


@pytest.fixture
def migration(clusters: tuple[Cluster, Cluster]) -> Migration:
    return Migration(*clusters, Options(name="rmq", topic=lambda name: name != "unwanted", settle_s=0.1), SystemClock())
