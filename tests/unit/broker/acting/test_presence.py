"""Replicas of a group that elects its master are in its routes, also where none may stand in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.app import BrokerApp
from broker.config import BrokerConfig, ReplicationConfig
from broker.roles.member import is_present
from remoting.client.connection import dial
from remoting.protocol.bodies.controller_body import (
    WITH_REPLICAS_FIELD,
    ClusterInfo,
    TopicRoute,
    decode_body,
)
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.support.ports import free_port
from tests.unit.broker.roles.cluster import DEADLINE_S, STORE, Cluster, until

TOPIC = "plant"


class ElectingThree(Cluster):
    """Three members and a name server."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.ports = {number: free_port() for number in (1, 2, 3)}

    async def add(self, number: int, *, port: int = 0, **replication) -> BrokerApp:
        """A member; `port` is its own."""
        members = tuple(f"n{at}@127.0.0.1:{own}" for at, own in self.ports.items())
        config = BrokerConfig(
            data_directory=self.directory / f"broker-{number}", port=port or self.ports[number], vip_port=0,
            controllers=self.controllers, store=STORE,
            replication=ReplicationConfig(
                enabled=True, mode="dledger", members=members, port=0, heartbeat_interval_ms=50,
                heartbeat_timeout_ms=2_000, stream_heartbeat_ms=50, **replication,
            ),
        )  # fmt: skip
        app = self.brokers[number] = BrokerApp(config)
        await app.start()
        return app

    def address(self, number: int) -> str:
        """Where clients reach a member."""
        return f"127.0.0.1:{self.ports[number]}"

    async def asked(self, code: int, **fields: str) -> Command:
        """The name server's answer."""
        connection = await dial(self.controllers[0])
        try:
            return await connection.request(Command(code, fields=fields))
        finally:
            await connection.close()

    async def route_is(self, brokers: dict[int, str], perm: int) -> None:
        """Wait until clients see these brokers under these ids, with this permission."""
        found: list[object] = []

        async def seen() -> bool:
            answer = await self.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=TOPIC, acceptStandardJsonOnly="true")
            if answer.code != 0:
                return False
            route = decode_body(answer.body, TopicRoute)
            found[:] = [route.broker_datas[0].broker_addrs, route.queue_datas[0].perm]
            return found == [brokers, perm]

        try:
            async with asyncio.timeout(DEADLINE_S):
                while not await seen():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(found) from None


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[ElectingThree]:
    made = ElectingThree(tmp_path)
    try:
        await made.start_controller()
        for number in made.ports:
            await made.add(number)
        await until(made.master)
        await made.connect()
        await made.publish(b"1")
        yield made
    finally:
        await made.stop()


async def test_routes_name_the_replicas_beside_the_master(three: ElectingThree) -> None:
    """Also when it has changed, and without it, when nobody can be elected; the brokers of the cluster are masters."""
    master = three.master()
    first = next(number for number, app in three.brokers.items() if app is master)
    others = [number for number in three.ports if number != first]
    await three.route_is({0: three.address(first)} | {number: three.address(number) for number in others}, 6)
    for fields, count in (({}, 1), ({WITH_REPLICAS_FIELD: "true"}, 3)):
        info = decode_body((await three.asked(RequestCode.GET_BROKER_CLUSTER_INFO, **fields)).body, ClusterInfo)
        (data,) = info.broker_addr_table.values()
        assert (data.master(), len(data.broker_addrs)) == (three.address(first), count)

    await three.brokers.pop(first).stop()
    await until(three.master)
    second = next(number for number, app in three.brokers.items() if app is three.master())
    (last,) = (number for number in others if number != second)
    await three.route_is({0: three.address(second), last: three.address(last)}, 6)

    await three.brokers.pop(second).stop()
    left = three.brokers[last]._member
    await until(lambda: left.serving is None and left.gate.reads.acting.presence._stand_in.place is not None)
    await three.route_is({last: three.address(last)}, 4)
    await three.brokers.pop(last).stop()
    answer = await three.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=TOPIC, acceptStandardJsonOnly="true")
    assert decode_body(answer.body, TopicRoute).broker_datas == []


def test_who_is_present() -> None:
    """Who may stand in, and who serves readers where no controller knows it."""
    elects = {"enabled": True, "mode": "dledger"}
    assert [is_present(ReplicationConfig(**settings)) for settings in (
        {"enabled": True}, {"enabled": True, "acting_master": True},
        {"enabled": True, "acting_master": True, "learner": True},
        elects, elects | {"replica_reads": False}, elects | {"replica_reads": False, "acting_master": True},
    )] == [False, True, False, True, False, True]  # fmt: skip
