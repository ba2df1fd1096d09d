"""Who is asked for the steps of a history: replicas in turn, the master for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from mqtt_proxy import history_steps
from mqtt_proxy.history_steps import GroupReplicas, StepsAtMaster, StepsAtReplicas, distance
from mqtt_proxy.link import Link, LinkDownError
from remoting.client.connection import dial
from remoting.client.uplink import Uplink
from remoting.protocol.bodies.controller_body import WITH_REPLICAS_FIELD, BrokerData, ClusterInfo, encode_body
from remoting.protocol.bodies.pull_body import FROM_REPLICA_FIELD
from remoting.protocol.bodies.session_body import HistoryRequest, decode
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.server import RemotingServer

GROUP = "broker-a"


class Broker:
    """Answers HISTORY with its name, or with a code; notes what it was asked."""

    def __init__(self, name: bytes) -> None:
        self.name, self.code, self.mute = name, 0, False
        self.asked: list[int] = []
        self.server = RemotingServer(self.handle)
        self.address = ""

    def handle(self, _peer: object, command: Command) -> Command | None:
        assert command.code == RequestCode.HISTORY
        assert (FROM_REPLICA_FIELD in command.fields) == (self.name != b"master")
        self.asked.append(decode(HistoryRequest, command.body).position)
        return None if self.mute else command.reply(self.code, body=self.name)


class World:
    """A master, two replicas, and a controller that lists them."""

    def __init__(self) -> None:
        self.master, self.one, self.two = (Broker(name) for name in (b"master", b"one", b"two"))
        self.listed: dict[int, str] = {}
        self.questions = 0
        self.controller = RemotingServer(self.handle)
        self.controllers: list[str] = []

    @property
    def brokers(self) -> tuple[Broker, Broker, Broker]:
        return self.master, self.one, self.two

    def handle(self, _peer: object, command: Command) -> Command:
        assert command.fields[WITH_REPLICAS_FIELD] == "true"
        self.questions += 1
        return command.reply(body=encode_body(ClusterInfo({GROUP: BrokerData("C", GROUP, self.listed)}, {})))


@asynccontextmanager
async def world(*, by_distance: bool = False) -> AsyncIterator[tuple[World, StepsAtReplicas]]:
    made = World()
    for number, broker in enumerate(made.brokers):
        made.listed[number] = broker.address = f"127.0.0.1:{await broker.server.start('127.0.0.1', 0)}"
    made.controllers = ["127.0.0.1:1", f"127.0.0.1:{await made.controller.start('127.0.0.1', 0)}"]
    link = Link(Uplink(lambda: dial(made.master.address)))
    await link.start()
    await link.wait_up()
    steps = StepsAtReplicas(link, GroupReplicas(made.controllers, dial, lambda: GROUP, by_distance=by_distance))
    try:
        yield made, steps
    finally:
        await steps.close()
        await link.stop()
        for server in (made.controller, *(broker.server for broker in made.brokers)):
            await server.stop()


async def read(
    steps: StepsAtReplicas | StepsAtMaster, position: int, *, queue: int = 0, last: int = 0, from_ms: int = 0
) -> bytes:
    return await steps.step(HistoryRequest(queue, "a/+", position, from_ms, last))


async def test_a_replica_is_asked_for_messages_and_the_master_where_they_begin() -> None:
    """Each filter has a replica of its own; what one does not know, the next may."""
    async with world() as (made, steps):
        assert steps.up
        assert [await read(steps, 0, queue=queue) for queue in (0, 1, 2)] == [b"one", b"two", b"one"]
        assert [await read(steps, 0, last=3), await read(steps, 0, from_ms=5)] == [b"master", b"master"]
        assert await read(steps, 7, from_ms=5) == b"one"
        made.one.code = ResponseCode.SERVICE_NOT_AVAILABLE
        assert await read(steps, 8) == b"two"
        made.two.code = ResponseCode.SERVICE_NOT_AVAILABLE
        assert await read(steps, 9) == b"master"
        assert (made.one.asked[-2:], made.two.asked[-2:]) == ([8, 9], [8, 9])
        made.one.code = made.two.code = 0
        assert await read(steps, 10) == b"one"
        assert made.questions == 1


async def test_one_that_refuses_or_is_silent_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a while; the step goes to the next one at once."""
    monkeypatch.setattr(history_steps, "ASK_TIMEOUT_MS", 100)
    async with world() as (made, steps):
        made.one.code = ResponseCode.NOT_MASTER
        assert [await read(steps, at) for at in (1, 2)] == [b"two", b"two"]
        assert made.one.asked == [1]
        made.two.mute = True
        assert [await read(steps, at) for at in (3, 4)] == [b"master", b"master"]
        assert (made.two.asked, made.master.asked) == ([1, 2, 3], [3, 4])
        monkeypatch.setattr(history_steps, "ASIDE_S", 0.0)
        made.one.code, made.two.mute = 0, False
        steps._aside.clear()
        assert await read(steps, 5) == b"one"


async def test_replicas_go_on_without_the_master() -> None:
    """Where they know nothing more, the step fails, as it does without a connection."""
    async with world() as (made, steps):
        assert await read(steps, 0) == b"one"
        await made.master.server.stop()
        await until(lambda: not steps._master.up)
        assert steps.up
        assert await read(steps, 1) == b"one"
        made.one.code = made.two.code = ResponseCode.SERVICE_NOT_AVAILABLE
        with pytest.raises(LinkDownError):
            await read(steps, 2)
        with pytest.raises(LinkDownError):
            await read(steps, 0, last=1)
        with pytest.raises(LinkDownError):
            steps._master.step(HistoryRequest(0, "a/+"))


async def test_the_list_is_asked_for_again_and_replicas_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is asked for, the former one serves; one that has left it is not asked any more."""
    async with world() as (made, steps):
        del made.listed[2]
        assert [await read(steps, 0, queue=queue) for queue in (0, 1)] == [b"one", b"one"]
        monkeypatch.setattr(history_steps, "FRESH_S", 0.0)
        left = steps._replicas.lines[made.one.address]
        made.listed = {0: made.master.address, 2: made.two.address}
        await read(steps, 1)
        await until(lambda: list(steps._replicas.lines) == [made.two.address])
        assert await read(steps, 2) == b"two"
        await until(lambda: left.closed)
        made.listed = {}
        await made.controller.stop()
        questions = made.questions
        await read(steps, 3)
        await until(lambda: steps._replicas._asking is None)
        assert (await read(steps, 4), made.questions) == (b"two", questions)


async def test_only_replicas_nearer_than_the_master_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest first, for all filters; on one machine none is nearer."""
    async with world(by_distance=True) as (_made, steps):
        assert await read(steps, 0) == b"master"
    async with world(by_distance=True) as (made, steps):
        away = {made.master.address: 0.5, made.one.address: 0.2, made.two.address: 0.1}

        async def measured(address: str) -> float:
            return away[address]

        monkeypatch.setattr(history_steps, "distance", measured)
        assert [await read(steps, 0, queue=queue) for queue in (0, 1)] == [b"two", b"two"]
        made.two.code = ResponseCode.SERVICE_NOT_AVAILABLE
        assert await read(steps, 1) == b"one"


async def test_distances() -> None:
    """This machine, nobody, nonsense."""
    async with world() as (made, _steps):
        assert await distance(made.one.address) == 0.0
    assert await distance("127.0.0.1:1") == float("inf")
    assert await distance("nonsense") == float("inf")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)
