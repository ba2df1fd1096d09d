"""A group that elects its master: the replica that is left stands in, and hands over what it took."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from broker.acting.journal import FILE_NAME
from broker.acting.kinds import OFFSETS
from broker.acting.presence import lease_ms
from broker.acting.replica import ActingReplica
from broker.acting.view import ActingVerdict
from broker.app import BrokerApp
from broker.config import BrokerConfig, ReplicationConfig
from broker.groups.request_modes import POP, RequestMode
from controller.name_server.state import RemoveTopic
from remoting.client.connection import dial
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost, RequestTimeout, not_master
from tests.support.ports import free_port
from tests.unit.broker.roles.cluster import DEADLINE_S, STORE, Cluster, until

Answer = TypeVar("Answer")
QUEUE = {"consumerGroup": "g", "topic": "t", "queueId": "0"}


class ElectingPair(Cluster):
    """Two members and a name server: one alone cannot elect itself."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.ports = {number: free_port() for number in (1, 2)}

    async def add(self, number: int, *, port: int = 0, **replication) -> BrokerApp:
        """A member; `port` is its own."""
        members = tuple(f"n{at}@127.0.0.1:{own}" for at, own in self.ports.items())
        config = BrokerConfig(
            data_directory=self.directory / f"broker-{number}", port=port or self.ports[number], vip_port=0,
            controllers=self.controllers, store=STORE,
            replication=ReplicationConfig(
                enabled=True, mode="dledger", members=members, port=0, acting_master=True, heartbeat_interval_ms=50,
                heartbeat_timeout_ms=4_000, stream_heartbeat_ms=50, **replication,
            ),
        )  # fmt: skip
        app = self.brokers[number] = BrokerApp(config)
        await app.start()
        return app


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[ElectingPair]:
    made = ElectingPair(tmp_path)
    try:
        await made.start_controller()
        for number in made.ports:
            await made.add(number)
        await until(made.master)
        yield made
    finally:
        await made.stop()


def acting(app: BrokerApp) -> ActingReplica:
    found = app._member._reads.acting
    assert found is not None
    return found


async def ask(app: BrokerApp, code: int, *, body: bytes = b"", **fields: str) -> Command:
    connection = await dial(f"127.0.0.1:{app.port}")
    try:
        return await connection.request(Command(code, fields=QUEUE | fields, body=body), 5_000)
    finally:
        await connection.close()


async def at_master(pair: ElectingPair, call: Callable[[BrokerApp], Awaitable[Answer]]) -> Answer:
    """What a call of the master returns; it begins again where the master changes under it, as on a slow machine."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            await until(pair.master)
            master = pair.master()
            try:
                if master is not None:
                    return await call(master)
            except (ConnectionLost, RequestTimeout):
                await asyncio.sleep(0.01)


async def served(app: BrokerApp, code: int, *, body: bytes = b"", **fields: str) -> Command:
    """The answer, once it stands in: it may have ceased for a moment when this process stood still."""
    async with asyncio.timeout(DEADLINE_S):
        while (answer := await ask(app, code, body=body, **fields)).code == ResponseCode.SERVICE_NOT_AVAILABLE:
            await asyncio.sleep(0.01)
    return answer


async def assignments(app: BrokerApp) -> list[tuple[str, str, int]]:
    """Mode, broker and queue of each that the client `c` reads, once it stands in."""
    body = b'{"topic":"t","consumerGroup":"poppers","clientId":"c","messageModel":"CLUSTERING"}'
    answer = await served(app, RequestCode.QUERY_ASSIGNMENT, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found = json.loads(answer.body)["messageQueueAssignments"]
    return [(each["mode"], each["messageQueue"]["brokerName"], each["messageQueue"]["queueId"]) for each in found]


async def left_alone(pair: ElectingPair) -> tuple[int, BrokerApp]:
    """Stop the master; the number of what is left, which stands in when this returns."""
    master = pair.master()
    assert master is not None
    number, left = next(each for each in pair.brokers.items() if each[1] is not master)
    await until(lambda: acting(left).presence.verdict is ActingVerdict.MASTER_HEARD)
    assert acting(left).find(Command(RequestCode.UPDATE_CONSUMER_OFFSET)) is None
    await master.stop()
    await until(acting(left).presence.acts)
    return number, left


async def prepare(pair: ElectingPair) -> None:
    """A topic, and an offset of 3 that both brokers have."""
    await pair.connect()
    assert await pair.publish(b"one") == 0
    master = pair.master()
    assert master is not None
    master.broker.topics.table.ensure("t", 1)
    assert (await ask(master, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset="3")).code == 0
    master.broker.groups.groups.modes.put("poppers", "t", RequestMode(POP))
    end = master._member.store.end_position
    await until(lambda: all(app._member.log_state().confirm >= end for app in pair.brokers.values()))


async def test_what_is_committed_meanwhile_survives_the_masters_return(pair: ElectingPair) -> None:
    await prepare(pair)
    number, left = await left_alone(pair)
    for code in (RequestCode.SEND_MESSAGE, RequestCode.SET_MESSAGE_REQUEST_MODE):
        assert (await ask(left, code)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    await until(acting(left).presence.acts)
    refused = not_master(await ask(left, RequestCode.SEND_MESSAGE))
    assert refused is not None
    assert refused.is_acting
    assert (await served(left, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset="7")).code == 0
    assert (await served(left, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset="5")).code == 0
    assert (await served(left, RequestCode.QUERY_CONSUMER_OFFSET)).fields["offset"] == "7"
    await left.stop()
    left = await pair.add(number)
    await until(acting(left).presence.acts)
    assert (await served(left, RequestCode.QUERY_CONSUMER_OFFSET)).fields["offset"] == "7", "as before the restart"

    await pair.add(3 - number)
    await until(pair.master)
    await until(lambda: not (pair.directory / f"broker-{number}" / FILE_NAME).exists())
    master = pair.master()
    assert master is not None
    assert (await ask(master, RequestCode.QUERY_CONSUMER_OFFSET)).fields["offset"] == "7"
    assert not acting(left).presence.acts()


async def test_the_clients_of_the_one_that_stands_in_are_the_members_of_groups(pair: ElectingPair) -> None:
    """They take it for the master: they rebalance by its list, and their pulls bring offsets."""
    await prepare(pair)
    number, left = await left_alone(pair)
    connection = await dial(f"127.0.0.1:{left.port}")
    body = b'{"clientID":"c","producerDataSet":[],"consumerDataSet":[{"groupName":"g"},{"groupName":"poppers"}]}'
    assert (await connection.request(Command(RequestCode.HEART_BEAT, body=body))).code == 0
    listed = await served(left, RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
    assert listed.body == b'{"consumerIdList":["c"]}'
    assert await assignments(left) == [("POP", "broker-a", -1)]
    await until(lambda: acting(left).keep(("g", "t", 0), 9))
    await until(lambda: acting(left).journal.of(OFFSETS) == {("g", "t", 0): (9,)})
    await pair.add(3 - number)
    await until(pair.master)
    assert not acting(left).keep(("g", "t", 0), 10)
    await connection.close()


async def test_bad_commits_are_refused(pair: ElectingPair) -> None:
    _number, left = await left_alone(pair)
    refused = await served(left, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset="-1")
    assert (refused.code, "negative" in (refused.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
    assert (await served(left, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset="x")).code != 0
    assert not len(acting(left).journal)


async def test_the_route_shows_the_one_that_stands_in(pair: ElectingPair) -> None:
    await prepare(pair)
    assert pair.controller is not None
    name_server = pair.controller.name_server
    await until(lambda: name_server.topic_route("t"))
    _number, left = await left_alone(pair)
    route = name_server.topic_route("t")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: f"127.0.0.1:{left.port}"}
    assert [queues.perm for queues in route.queue_datas] == [4]


async def test_a_name_server_that_forgot_the_topics_learns_them_again(pair: ElectingPair) -> None:
    """Or one that is new; a master is not there to name them."""
    await prepare(pair)
    assert pair.controller is not None
    name_server = pair.controller.name_server
    await until(lambda: name_server.topic_route("t"))
    name_server.apply(RemoveTopic("t"))
    await left_alone(pair)
    await until(lambda: name_server.topic_route("t"))
    route = name_server.topic_route("t")
    assert route is not None
    assert [(queues.read_queue_nums, queues.perm) for queues in route.queue_datas] == [(1, 4)]


def test_a_list_never_counts_longer_than_a_broker_is_listed() -> None:
    quick = BrokerConfig(replication=ReplicationConfig(heartbeat_timeout_ms=700))
    assert lease_ms(quick) == 700
    assert lease_ms(BrokerConfig()) == 2_000
