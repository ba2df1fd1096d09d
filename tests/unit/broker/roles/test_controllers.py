"""Lines to controllers: the leader is found and followed, heartbeats go to all, pushes are heard."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from broker.roles.controllers import Controllers
from remoting import inprocess
from remoting.protocol.bodies.controller_body import (
    ControllerMetadata,
    GroupState,
    ReplicaState,
    SyncStateData,
    to_fields,
)
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.transport.failures import ConnectionLost, Unreachable
from runtime.logs import get_logger
from tests.unit.broker.roles.cluster import until


class Fakes:
    """Controllers by name, of which one leads."""

    def __init__(self, leader: str) -> None:
        self.leader = leader
        self.away: set[str] = set()
        self.asked: list[tuple[str, int]] = []
        self.peers: dict[str, object] = {}
        self.hints = True

    async def connect(self, name: str) -> inprocess.InProcessConnection:
        if name in self.away:
            raise Unreachable(name, 1, ConnectionRefusedError(111, "refused"))
        connection = inprocess.connect(lambda peer, command: self.answer(name, peer, command))
        self.peers[name] = connection.peer
        return connection

    def answer(self, name: str, _peer: object, command: Command) -> Command:
        self.asked.append((name, command.code))
        if command.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
            known = self.leader or None
            header = ControllerMetadata("g", known, known, self.leader == name)
            return command.reply(fields=to_fields(header))
        if command.code != RequestCode.BROKER_HEARTBEAT and name != self.leader:
            fields = {"leaderAddress": self.leader} if self.hints else {}
            return command.reply(ResponseCode.CONTROLLER_NOT_LEADER, "not me", fields)
        return command.reply(body=name.encode())


def lines(fakes: Fakes, *names: str, pushed=lambda _command: None) -> Controllers:
    return Controllers(names, fakes.connect, pushed, timeout_ms=500, log=get_logger("test"))


async def test_the_leader_is_found_and_found_again(tmp_path) -> None:
    """By asking any, also one that nobody configured; an answer NOT_LEADER sends us to look again."""
    fakes = Fakes("c3")
    controllers = lines(fakes, "c1", "c2")
    assert not await controllers.find_leader()
    with pytest.raises(ConnectionLost, match="no leading controller"):
        await controllers.ask(Command(RequestCode.CONTROLLER_GET_REPLICA_INFO))
    controllers.start(10_000, lambda: None, lambda _address, _answer: None)
    await until(lambda: controllers.reachable == 2)
    assert await controllers.find_leader()
    assert controllers.leader == "c3"
    assert (await controllers.ask(Command(RequestCode.CONTROLLER_GET_REPLICA_INFO))).body == b"c3"
    fakes.leader = "c2"
    with pytest.raises(ConnectionLost, match="not me"):
        await controllers.ask(Command(RequestCode.CONTROLLER_GET_REPLICA_INFO))
    assert controllers.leader == ""
    assert await controllers.find_leader()
    assert (await controllers.ask(Command(RequestCode.CONTROLLER_GET_REPLICA_INFO))).body == b"c2"
    fakes.leader, fakes.hints = "", False
    with pytest.raises(ConnectionLost):
        await controllers.ask(Command(RequestCode.CONTROLLER_GET_REPLICA_INFO))
    assert not await controllers.find_leader()
    await controllers.stop()


async def test_heartbeats_go_to_all_that_can_be_reached() -> None:
    """At their interval, out of turn when wanted, none while there is nothing to say."""
    fakes = Fakes("c1")
    fakes.away.add("c3")
    said: list[Command] = []
    answers: list[str] = []

    def beats() -> Command | None:
        return Command(RequestCode.BROKER_HEARTBEAT) if said else None

    controllers = lines(fakes, "c1", "c2", "c3")
    controllers.start(5, beats, lambda address, _answer: answers.append(address))
    await until(lambda: controllers.reachable == 2)
    assert answers == []
    said.append(Command(RequestCode.BROKER_HEARTBEAT))
    await until(lambda: len(answers) > 6)
    assert set(answers) == {"c1", "c2"}
    await controllers.stop()


async def test_what_controllers_push_is_heard() -> None:
    """Over any line, also after it was made again."""
    fakes = Fakes("c1")
    heard: asyncio.Queue[Command] = asyncio.Queue()
    controllers = lines(fakes, "c1", pushed=heard.put_nowait)
    controllers.start(10_000, lambda: None, lambda _address, _answer: None)
    for _ in range(2):
        await until(lambda: controllers.reachable == 1)
        fakes.peers["c1"].send(Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, flag=FLAG_ONEWAY))
        assert (await heard.get()).code == RequestCode.NOTIFY_BROKER_ROLE_CHANGED
        fakes.peers["c1"].close("restart")
        await until(lambda: controllers.reachable == 0)
    await controllers.stop()


async def test_a_leader_that_cannot_be_reached_is_none() -> None:
    """Others name it, but there is no way there in time."""
    fakes = Fakes("c9")
    fakes.away.add("c9")
    controllers = Controllers(["c1"], fakes.connect, lambda _command: None, timeout_ms=50, log=get_logger("test"))
    controllers.start(10_000, lambda: None, lambda _address, _answer: None)
    await until(lambda: controllers.reachable == 1)
    assert not await controllers.find_leader()
    await controllers.stop()


async def test_the_leader_tells_how_many_brokers_the_group_has() -> None:
    """In sync or not; none for a group it does not know, and an error when nobody leads."""
    fakes = Fakes("c1")
    state = GroupState(1, "h:1", 7, 9, [ReplicaState("g", 1, "h:1", True)], [ReplicaState("g", 2, "h:2", False)])
    usual = fakes.answer

    def answer(name: str, peer: object, command: Command) -> Command:
        if command.code != RequestCode.CONTROLLER_GET_SYNC_STATE_DATA:
            return usual(name, peer, command)
        assert command.body == b'["g"]'
        return command.reply(body=msgspec.json.encode(SyncStateData(table)))

    fakes.answer = answer  # type: ignore[method-assign]
    table = {"g": state}
    controllers = Controllers(
        ["c1"], fakes.connect, lambda _command: None, timeout_ms=500, log=get_logger("test"), group="g"
    )
    with pytest.raises(ConnectionLost):
        await controllers.group_size()
    controllers.start(10_000, lambda: None, lambda _address, _answer: None)
    await until(lambda: controllers.reachable == 1)
    assert await controllers.find_leader()
    assert await controllers.group_size() == 2
    table = {}
    assert await controllers.group_size() == 0
    await controllers.stop()
