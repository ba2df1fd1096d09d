"""Connections to controllers: the leader is found and followed, requests to all reach all, pushes arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from remoting import inprocess
from remoting.client.controllers import Controllers, LeaderSearch
from remoting.protocol.bodies.controller_body import ControllerMetadata, to_fields
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.transport.failures import ConnectionLost, RequestTimeout, Unreachable


async def until(condition: Callable[[], object]) -> None:
    """Wait for an effect of other tasks of this loop."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


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


def connected(fakes: Fakes, *names: str, timeout_ms: int = 500) -> Controllers:
    return Controllers(names, fakes.connect, timeout_ms=timeout_ms, pause_first_ms=1, pause_ms_max=10)


async def test_the_leader_is_found_and_found_again(tmp_path) -> None:
    """By asking any, also one that is not configured; an answer NOT_LEADER starts a new search."""
    fakes = Fakes("c3")
    controllers = connected(fakes, "c1", "c2")
    assert not await controllers.find_leader()
    with pytest.raises(ConnectionLost, match="no leading controller"):
        await controllers.ask(Command(RequestCode.CONTROLLER_GET_REPLICA_INFO))
    controllers.start()
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


async def test_a_request_to_all_reaches_those_that_are_connected() -> None:
    """Each gets a command of its own; nothing is sent without a connection."""
    fakes = Fakes("c1")
    fakes.away.add("c3")
    answers: dict[str, bytes] = {}
    controllers = connected(fakes, "c1", "c2", "c3")
    controllers.start()
    await until(lambda: controllers.reachable == 2)
    controllers.call_all(lambda: None, lambda _address, _answer: pytest.fail("nothing was sent"))
    controllers.call_all(
        lambda: Command(RequestCode.BROKER_HEARTBEAT), lambda address, answer: answers.update({address: answer.body})
    )
    await until(lambda: len(answers) == 2)
    assert answers == {"c1": b"c1", "c2": b"c2"}
    await controllers.stop()


async def test_connections_and_failures_are_reported_by_address() -> None:
    """Each attempt that fails, each connection that is made, each that is lost."""
    fakes = Fakes("c1")
    fakes.away.add("c1")
    seen: list[str] = []
    controllers = connected(fakes, "c1")
    controllers.on_up(lambda address, connection: seen.append(f"{address} up {connection.closed}"))
    controllers.on_down(lambda address, reason: seen.append(f"{address} down: {reason}"))
    controllers.start()
    await until(lambda: len(seen) > 1)
    assert all("refused" in each for each in seen)
    fakes.away.clear()
    await until(lambda: controllers.reachable == 1)
    assert seen[-1] == "c1 up False"
    count = len(seen)
    fakes.peers["c1"].close("restart")
    await until(lambda: len(seen) > count)
    assert seen[count].startswith("c1 down: ")
    await controllers.stop()


async def test_pushes_of_controllers_are_received() -> None:
    """Over any connection, also after it was made again."""
    fakes = Fakes("c1")
    heard: asyncio.Queue[Command] = asyncio.Queue()
    controllers = connected(fakes, "c1")
    controllers.on_push(heard.put_nowait)
    downs: list[str] = []
    controllers.on_down(lambda _address, reason: downs.append(reason))
    controllers.start()
    for count in (1, 2):
        await until(lambda: controllers.reachable == 1)
        fakes.peers["c1"].send(Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, flag=FLAG_ONEWAY))
        assert (await heard.get()).code == RequestCode.NOTIFY_BROKER_ROLE_CHANGED
        fakes.peers["c1"].close("restart")
        await until(lambda count=count: len(downs) == count)
    await controllers.stop()


async def test_the_connection_to_a_silent_leader_is_closed() -> None:
    """Its next request goes over a new one, or to the leader that has taken over."""
    fakes = Fakes("c1")
    controllers = connected(fakes, "c1", "c2", timeout_ms=20)
    downs: list[tuple[str, str]] = []
    controllers.on_down(lambda address, reason: downs.append((address, reason)))
    controllers.start()
    await until(lambda: controllers.reachable == 2)
    assert await controllers.find_leader()
    answer, first = fakes.answer, fakes.peers["c1"]
    fakes.answer = lambda name, peer, command: None if name == "c1" else answer(name, peer, command)  # type: ignore[method-assign,assignment]
    with pytest.raises(RequestTimeout):
        await controllers.ask(Command(RequestCode.CONTROLLER_GET_REPLICA_INFO))
    await until(lambda: fakes.peers["c1"] is not first)
    assert [address for address, _ in downs] == ["c1"]
    fakes.leader = "c2"
    assert await controllers.find_leader()
    assert controllers.leader == "c2"
    await controllers.stop()


async def test_an_unreachable_leader_counts_as_none() -> None:
    """Others name it, but it cannot be reached in time."""
    fakes = Fakes("c9")
    fakes.away.add("c9")
    controllers = connected(fakes, "c1", timeout_ms=50)
    controllers.start()
    await until(lambda: controllers.reachable == 1)
    assert not await controllers.find_leader()
    await controllers.stop()


def searched(search: LeaderSearch, leads: str, names: dict[str, str]) -> list[str]:
    """The addresses asked in one search; `names` has whom the others name, all else fails."""
    asked = []
    search.begin()
    while (address := search.next()) is not None:
        asked.append(address)
        if address == leads or address in names:
            named = names.get(address) or None
            search.answered(address, ControllerMetadata("g", named, named, address == leads))
        else:
            search.failed(address, ConnectionLost(f"{address} is down"))
    return asked


def test_a_search_asks_the_named_leader_next_and_each_address_once() -> None:
    """A named leader must confirm that it leads; one that does not is not asked again."""
    search = LeaderSearch(["a", "b", "c"])
    assert searched(search, "c", {"a": "c"}) == ["a", "c"]
    assert search.leader == "c"
    assert searched(search, "", {"a": "b", "b": "a", "c": ""}) == ["a", "b", "c"]
    assert search.leader == ""
    assert search.failures["a"] == "it names b as the leader"
    assert "more than half" in search.failures["c"]


def test_an_address_that_failed_is_asked_last_in_the_next_search() -> None:
    """A controller that is away costs a time limit: the others come first."""
    search = LeaderSearch(["a", "b"])
    assert searched(search, "b", {}) == ["a", "b"]
    assert search.failures == {"a": "a is down"}
    assert searched(search, "b", {}) == ["b"]


def test_a_search_begins_with_the_leader_that_a_refusal_named() -> None:
    """Also one that is not configured."""
    search = LeaderSearch(["a", "b"])
    search.named = "x"
    assert searched(search, "x", {}) == ["x"]
    assert searched(search, "", {"a": "", "b": ""}) == ["a", "b"]
