"""Where topics are: the first name server that knows counts, and none is waited for longer than it may take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.acting.routes import NameServerRoutes
from remoting.protocol.bodies.controller_body import QueueData, TopicRoute, encode_body
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost
from runtime.logs import get_logger

UNKNOWN = Command(ResponseCode.TOPIC_NOT_EXIST)
MALFORMED = Command(ResponseCode.SUCCESS, body=b"[")


class NameServers:
    """Name servers that answer in this order, but for the last `late` ones."""

    def __init__(self, *answers: Command | None, late: int = 0) -> None:
        self.answers, self.late = answers, late
        self.topics: list[str] = []

    def call_all(self, make: Callable[[], Command], answered: Callable[[str, Command | None], None]) -> None:
        commands = [make() for _answer in self.answers]
        assert {command.code for command in commands} <= {RequestCode.GET_ROUTEINFO_BY_TOPIC}
        self.topics += [command.fields["topic"] for command in commands]
        for at, answer in enumerate(self.answers[: len(self.answers) - self.late]):
            answered(f"n{at}", answer)


def route(*brokers: str) -> Command:
    return Command(
        ResponseCode.SUCCESS, body=encode_body(TopicRoute(queue_datas=[QueueData(name, 1, 1, 6) for name in brokers]))
    )


def routes(servers: NameServers) -> NameServerRoutes:
    return NameServerRoutes(servers, 20, get_logger("test"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "servers",
    [
        NameServers(None, UNKNOWN, MALFORMED, route(), route("a"), route("b")),
        NameServers(route("a"), route("b"), late=1),
    ],
)
async def test_the_first_that_knows_the_topic_counts(servers: NameServers) -> None:
    found = await routes(servers).find_route("t")
    assert [each.broker_name for each in found.queue_datas] == ["a"]
    assert servers.topics == ["t"] * len(servers.answers)


@pytest.mark.parametrize(
    "servers", [NameServers(), NameServers(UNKNOWN, None, route()), NameServers(UNKNOWN, route("a"), late=1)]
)
async def test_that_nobody_knows_it_in_time_is_an_error(servers: NameServers) -> None:
    with pytest.raises(ConnectionLost, match="no name server"):
        await routes(servers).find_route("t")


async def test_a_route_that_is_not_looked_for_is_passed_over() -> None:
    found = await routes(NameServers(route("a"), route("b"))).first(
        "t", lambda one: one.queue_datas[0].broker_name > "a"
    )
    assert found is not None
    assert found.queue_datas[0].broker_name == "b"
