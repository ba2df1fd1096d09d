"""Which broker groups a proxy serves (`grpc_proxy.brokers`), and where requests go when one cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from grpc_proxy.brokers import BrokerGroups
from grpc_proxy.config import GrpcConfig
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.mapping.statuses import CallRejected, Code
from remoting import inprocess
from remoting.protocol.bodies.controller_body import PushedGroup, PushedRoutes, encode_body
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.transport.contracts import Connection
from remoting.transport.failures import ConnectionLost, Unreachable

CALLER = GrpcCaller("client-1", "127.0.0.1")
CODE = RequestCode.HEART_BEAT


class Cluster:
    """A controller `c:1`, and for each group a broker that keeps which requests it got."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.dead: set[str] = set()
        self.refusing: set[str] = set()
        self.acting: set[str] = set()
        self.got: dict[str, int] = dict.fromkeys(names, 0)
        self.subscribers: list[Any] = []
        self.connections: dict[str, Connection] = {}

    async def dial(self, address: str) -> Connection:
        name = address.partition(":")[0]
        if name in self.dead:
            raise Unreachable(name, 1, ConnectionRefusedError(111, "refused"))
        connection = inprocess.connect(lambda peer, command: self._answer(name, peer, command))
        connection.address = address
        self.connections[name] = connection
        return connection

    def kill(self, name: str) -> None:
        self.dead.add(name)
        self.connections[name].abort("killed")

    def add(self, name: str) -> None:
        """A new group, which the controller pushes."""
        self.names.append(name)
        self.got[name] = 0
        for peer in self.subscribers:
            peer.send(Command(RequestCode.ROUTES_CHANGED, flag=FLAG_ONEWAY, body=encode_body(self._routes())))

    def _routes(self) -> PushedRoutes:
        return PushedRoutes({name: PushedGroup("C", {0: f"{name}:1"}, 1) for name in self.names})

    def _answer(self, name: str, peer: Any, command: Command) -> Command:
        if name == "c":
            assert command.code == RequestCode.SUBSCRIBE_ROUTES
            self.subscribers.append(peer)
            return command.reply(body=encode_body(self._routes()))
        self.got[name] += 1
        if name in self.acting and command.code == RequestCode.SEND_MESSAGE_V2:
            return command.reply(14, "not the master", {"masterEpoch": "1", "actingMaster": "true"})
        if name in self.acting and command.code == RequestCode.POP_MESSAGE:
            return command.reply(14, "nothing in order")
        if name in self.refusing:
            return command.reply(ResponseCode.NO_PERMISSION, "no")
        return command.reply()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("b", "a")


@pytest.fixture
async def brokers(cluster: Cluster) -> AsyncIterator[BrokerGroups]:
    config = GrpcConfig(controllers=("c:1",), request_timeout_ms=300, reconnect_delay_ms_max=20)
    made = BrokerGroups(config, cluster.dial)
    await made.start()
    yield made
    await made.stop()


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # an effect of other tasks
            await asyncio.sleep(0.01)


async def test_every_group_is_served_by_name_and_a_new_one_when_it_is_pushed(cluster, brokers):
    assert [link.name for link in brokers.links] == ["a", "b"]
    assert (brokers.up, len(brokers), brokers.named("")) == (2, 2, None)
    cluster.add("aa")
    await until(lambda: brokers.up == 3)
    assert [link.name for link in brokers.links] == ["a", "aa", "b"]
    with pytest.raises(CallRejected) as caught:
        brokers.require("z", Code.INVALID_RECEIPT_HANDLE, "the receipt handle")
    assert caught.value.code == Code.INVALID_RECEIPT_HANDLE


async def test_one_group_can_be_chosen_by_its_name(cluster):
    config = GrpcConfig(controllers=("c:1",), broker_name="b")
    brokers = BrokerGroups(config, cluster.dial)
    await brokers.start()
    assert ([link.name for link in brokers.links], brokers.named("")) == (["b"], brokers.links[0])
    await brokers.stop()


async def test_what_any_group_can_do_is_done_by_one_that_can_be_reached(cluster, brokers):
    cluster.kill("a")
    await until(lambda: brokers.up == 1)
    assert (await brokers.request(CALLER, CODE, {})).code == 0
    assert cluster.got == {"a": 0, "b": 1}
    cluster.kill("b")
    await until(lambda: brokers.up == 0)
    with pytest.raises(ConnectionLost):
        await brokers.request(CALLER, CODE, {})
    cluster.dead.clear()
    await until(lambda: brokers.up == 2)


async def test_what_all_groups_do_needs_one_or_those_that_are_named(cluster, brokers):
    await brokers.everywhere(CALLER, CODE, {})
    assert cluster.got == {"a": 1, "b": 1}
    cluster.kill("a")
    await until(lambda: brokers.up == 1)
    await brokers.everywhere(CALLER, CODE, {})
    assert cluster.got == {"a": 1, "b": 2}
    with pytest.raises(ConnectionLost, match="'a' cannot be reached"):
        await brokers.everywhere(CALLER, CODE, {}, needed={"a"})
    cluster.refusing.add("b")
    with pytest.raises(Refused):
        await brokers.everywhere(CALLER, CODE, {})


async def test_a_replica_that_stands_in_stays_connected(brokers: BrokerGroups, cluster: Cluster) -> None:
    """What it refuses counts as lost, and no message is sent to it for a while; the rest it answers."""
    link = brokers.named("a")
    assert link is not None
    assert link.takes_messages
    cluster.acting.add("a")
    connection = cluster.connections["a"]
    for code in (RequestCode.POP_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        with pytest.raises(ConnectionLost):
            await link.request(CALLER, code, {})
    assert (await link.request(CALLER, CODE, {})).code == ResponseCode.SUCCESS
    assert cluster.connections["a"] is connection
    assert link.preferred
    assert not link.takes_messages
    assert brokers.named("b").takes_messages  # type: ignore[union-attr]
