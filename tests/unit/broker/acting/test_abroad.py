"""The way to other groups: their masters alone, the next one where one refuses, one connection each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.acting.abroad import ESCAPED_FROM, OtherGroups
from remoting.client.connection import Connection
from remoting.protocol.bodies.controller_body import BrokerData, QueueData, TopicRoute, encode_body
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.rocketmq_form import NO_HOST
from remoting.protocol.records.stored_message import StoredMessage, iter_stored
from remoting.transport.failures import ConnectionLost
from runtime.logs import get_logger
from tests.unit.broker.pop.client import popping, pull

MESSAGE = StoredMessage(b"orders", b"x", 0, 7, 40, 5, 6, NO_HOST, NO_HOST, reconsume_times=2)


class NameServers:
    """What name servers answer about the route of any topic."""

    def __init__(self, *brokers: tuple[str, dict[int, str], int]) -> None:
        """`brokers`: names, addresses by id, permissions."""
        self.asked = 0
        self.answers = [
            Command(
                ResponseCode.SUCCESS,
                body=encode_body(
                    TopicRoute(
                        queue_datas=[QueueData(name, 1, 1, permission) for name, _addresses, permission in brokers],
                        broker_datas=[BrokerData("c", name, addresses) for name, addresses, _permission in brokers],
                    )
                ),
            )
        ]

    def call_all(self, make: Callable[[], Command], answered: Callable[[str, Command | None], None]) -> None:
        self.asked += 1
        for answer in self.answers:
            make()
            answered("n", answer)


class Lines:
    """Connections to addresses; only those of `running` answer."""

    def __init__(self, running) -> None:
        self.running, self.dialled, self.opened = running, list[str](), list[Connection]()

    async def dial(self, address: str) -> Connection:
        self.dialled.append(address)
        await asyncio.sleep(0)
        if address == "gone":
            raise ConnectionLost("gone")
        self.opened.append(self.running.connect())
        return self.opened[-1]


def groups(lines: Lines, servers: NameServers) -> OtherGroups:
    config = replace(lines.running.config, broker_name="own")
    return OtherGroups(config, servers, lines.dial, get_logger("test"))  # type: ignore[arg-type]


async def found(running, topic: str = "orders") -> list[StoredMessage]:
    reply = await pull(running.connect(), topic, consumerGroup="reader")
    return list(iter_stored(reply.body)) if reply.code == ResponseCode.SUCCESS else []


async def test_only_masters_of_other_groups_are_asked(running) -> None:
    lines = Lines(running)
    servers = NameServers(
        ("own", {0: "own"}, 6), ("readable", {0: "r"}, 4), ("slaves", {1: "s"}, 6), ("b", {0: "b"}, 6)
    )
    others = groups(lines, servers)
    assert await others.send(MESSAGE, [(b"own", b"value"), (ESCAPED_FROM, b"older")], 40)
    assert lines.dialled == ["b"]
    (message,) = await found(running)
    assert (message.body, message.born_ms, message.reconsume_times) == (b"x", 5, 2)
    assert dict(message.properties).items() >= {b"own": b"value", ESCAPED_FROM: b"own/40"}.items()


async def test_the_next_one_takes_what_one_does_not(running) -> None:
    lines = Lines(running)
    others = groups(lines, NameServers(("a", {0: "gone"}, 6), ("b", {0: "b"}, 6)))
    assert all(await asyncio.gather(*(others.send(MESSAGE, [], position) for position in range(4))))
    assert (lines.dialled.count("b"), len(await found(running))) == (1, 4)
    assert "gone" in others.said
    assert await others.send(MESSAGE, [], 0, to="%RETRY%g+orders", more={"l": "5"})
    assert len(await found(running, "%RETRY%g+orders")) == 1


@pytest.mark.parametrize(
    ("topic", "said"), [("SCHEDULE_TOPIC_XXXX", "forbidden"), ("orders", "no other group takes messages")]
)
async def test_what_nobody_takes_is_not_sent(running, topic: str, said: str) -> None:
    lines = Lines(running)
    servers = NameServers(("b", {0: "b"}, 6))
    if topic == "orders":
        servers.answers = [Command(ResponseCode.SUCCESS, body=b"{"), Command(ResponseCode.TOPIC_NOT_EXIST)]
    others = groups(lines, servers)
    assert not await others.send(MESSAGE, [], 0, to=topic)
    assert said in others.said
    for connection in lines.opened:
        await connection.request(popping(), 1_000)  # a refusal ends no connection
    assert len(lines.opened) == (topic != "orders")


async def test_what_was_opened_is_closed(running) -> None:
    lines, servers = Lines(running), NameServers(("b", {0: "b"}, 6))
    others = groups(lines, servers)
    assert await others.send(MESSAGE, [], 0)
    assert await others.send(MESSAGE, [], 1)
    assert (servers.asked, len(lines.opened)) == (1, 1)
    await others.hang_up()
    with pytest.raises(ConnectionLost):
        await lines.opened[0].request(Command(0), 1_000)
    assert await others.send(MESSAGE, [], 2)
    assert (servers.asked, len(lines.opened)) == (2, 2)


async def test_without_name_servers_nothing_is_sent(running) -> None:
    servers = NameServers()
    servers.answers = []
    others = groups(Lines(running), servers)
    assert not await others.send(MESSAGE, [], 0)


async def test_an_answer_that_is_late_is_not_waited_for(running) -> None:
    servers = NameServers()
    servers.call_all = lambda make, _answered: make() and None  # type: ignore[method-assign]
    others, before = groups(Lines(running), servers), asyncio.all_tasks()
    sending = asyncio.ensure_future(others.send(MESSAGE, [], 0))
    await asyncio.sleep(0)
    sending.cancel()
    await others.hang_up()
    await asyncio.gather(sending, return_exceptions=True)
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
