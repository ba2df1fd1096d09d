"""The form of the API: `console.api.operations`, `console.api.pages`, `console.api.problems`, `console.api.openapi`,
`console.api.table`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from console.api import openapi, table
from console.api.operations import FLAG, INTEGER, ApiCall, Parameter
from console.api.pages import decode_cursor, encode_cursor, page_over
from console.api.problems import ApiProblem, problem_of
from console.cluster import BrokerGroupsView
from console.viewers import ADMIN, Viewer
from remoting.protocol.bodies.controller_body import BrokerData, ClusterInfo, encode_body
from remoting.protocol.errors import LocalMisuse, NotOffered, Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost, RequestTimeout

VIEWER = Viewer("boss", ADMIN, "127.0.0.1")


class TwoBrokers:
    """Answers as a name server that knows two groups, each with a list of five."""

    def __init__(self, dead: str = "") -> None:
        self.dead = dead

    async def dial(self, address: str) -> Any:
        if address == self.dead:
            raise ConnectionLost(f"{address} is away")
        return _Line(address)


class _Line:
    closed = False

    def __init__(self, address: str) -> None:
        self.address = address

    async def request(self, command: Command, _timeout_ms: int = 0) -> Command:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            data = {name: BrokerData("c", name, {0: f"{name}:1"}) for name in ("a", "b")}
            return command.reply(body=encode_body(ClusterInfo(data)))
        first = int(command.fields.get("after", "0"))
        found = [
            {"id": f"{self.address}/{number}"} for number in range(first, min(5, first + int(command.fields["limit"])))
        ]
        more = str(first + len(found)) if first + len(found) < 5 else ""
        return command.reply(body=json.dumps({"rows": found, "next": more, "total": 5}).encode())


async def walk(brokers: TwoBrokers, limit: int) -> tuple[list[str], list[dict[str, Any]]]:
    cluster = BrokerGroupsView(brokers.dial, lambda: ("names:1",))
    names, pages, cursor = [], [], ""
    while True:
        call = ApiCall(VIEWER, cluster, None, {"limit": limit, "cursor": cursor})  # type: ignore[arg-type]
        page = await page_over(call, 1, "rows", {})
        names += [item["id"] for item in page["items"]]
        pages.append(page)
        cursor = page["next"]
        if not cursor:
            return names, pages


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 7, 10, 50])
async def test_pages_go_through_all_brokers_once(limit: int) -> None:
    names, pages = await walk(TwoBrokers(), limit)
    assert names == [f"{broker}:1/{number}" for broker in "ab" for number in range(5)]
    assert all(len(page["items"]) <= limit for page in pages)
    if limit == 50:
        assert pages[0]["total"] == 10


async def test_a_broker_that_is_away_is_named_and_passed_over() -> None:
    names, pages = await walk(TwoBrokers(dead="a:1"), 3)
    assert names == [f"b:1/{number}" for number in range(5)]
    assert pages[0]["missing"] == {"a": "a:1 is away"}


@pytest.mark.parametrize("cursor", ["?", "eA", "bnVsbA", "WzFd", "\x00", "W10"])
def test_cursors_that_were_made_up(cursor: str) -> None:
    with pytest.raises(ApiProblem):
        decode_cursor(cursor)
    assert decode_cursor(encode_cursor("a/b", "x\x00y")) == ("a/b", "x\x00y")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Refused(ResponseCode.NO_PERMISSION, "no"), 403), (Refused(ResponseCode.QUERY_NOT_FOUND, "no"), 404),
        (Refused(ResponseCode.INVALID_PARAMETER, "no"), 400), (Refused(1, "no"), 409), (NotOffered(3, "no"), 501),
        (ConnectionLost("away"), 503), (RequestTimeout(1, "a:1", 5), 504), (RemoteViolation("odd"), 502),
        (LocalMisuse("odd"), 400),
    ],
)  # fmt: skip
def test_errors_of_brokers_are_told_as_problems(error: Any, status: int) -> None:
    problem = problem_of(error)
    told = json.loads(problem.body())
    assert (problem.status, told["status"]) == (status, status)
    assert told.keys() == {"type", "title", "status", "detail", "reason"}


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        (Parameter("n", "", INTEGER, minimum=1, maximum=5), text) for text in ("0", "6", "x", "1.5", "", "٣", "9" * 40)
    ] + [
        (Parameter("t", "", characters_max=3), text) for text in ("four", "a\x00", "\ud800")
    ] + [(Parameter("c", "", choices=("a", "b")), "c"), (Parameter("f", "", FLAG), "maybe")],
)  # fmt: skip
def test_values_that_do_not_fit(parameter: Parameter, text: str) -> None:
    with pytest.raises(ApiProblem) as caught:
        parameter.parse(text)
    assert caught.value.status == 400


def test_the_description_is_the_table() -> None:
    described = json.loads(openapi.document(table.OPERATIONS))
    shown = {(path, method) for path, methods in described["paths"].items() for method in methods}
    assert shown == {(one.path, one.method.lower()) for one in table.OPERATIONS}
    names = [one.name for one in table.OPERATIONS]
    assert len(set(names)) == len(names)
    for one in table.OPERATIONS:
        assert set(one.path.split("/")) >= {f"{{{each.name}}}" for each in one.in_path}
        assert one.acts is (one.method != "GET" and not one.reads)
        assert one.call.__doc__
