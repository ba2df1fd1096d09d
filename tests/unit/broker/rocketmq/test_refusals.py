"""Which clients asked for what is not offered: rows by client, their limit, and the list that shows them."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.rocketmq import refusals
from broker.rocketmq.refusals import ROWS_MAX, Refusals
from broker.router import handlers
from controller.api import handlers as controller_handlers
from remoting import inprocess
from remoting.protocol.errors import NotOffered, Refused
from remoting.protocol.frames.codes import NAMES, RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.router import Router, not_supported
from runtime.logs import get_logger
from runtime.metrics import Registry, UnsupportedRequests
from tests.unit.broker.groups.test_feature import beat
from tests.unit.controller.conftest import World


def peer(address: str, client_id: str = "") -> Any:
    return SimpleNamespace(address=address, attributes={"client id": client_id} if client_id else {})


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 3)), max_size=40))
def test_every_refusal_is_in_its_row_or_in_a_forgotten_one(asked: list[tuple[str, int]]) -> None:
    """Against a plain list of rows, the oldest refusal first."""
    table, limit = Refusals(Registry()), 5
    kept: list[tuple[str, int]] = []
    counts: Counter[tuple[str, int]] = Counter()
    forgotten, former = 0, refusals.ROWS_MAX
    refusals.ROWS_MAX = limit  # type: ignore[misc]
    try:
        for now_ms, (client, code) in enumerate(asked):
            table.note(peer("10.0.0.1:5", client), Command(code), NotOffered(13, f" {now_ms}"), now_ms)
            if (client, code) in kept:
                kept.remove((client, code))
            elif len(kept) == limit:
                del counts[kept.pop(0)]
                forgotten += 1
            kept.append((client, code))
            counts[client, code] += 1
    finally:
        refusals.ROWS_MAX = former  # type: ignore[misc]
    rows = table.shown()
    assert [(row["client"], row["code"]) for row in rows] == kept[::-1]
    assert {(row["client"], row["code"]): row["count"] for row in rows} == counts
    assert table.forgotten == forgotten
    assert all(row["remark"] == str(row["last_ms"]) for row in rows)


def test_a_client_without_a_heartbeat_is_its_host_and_long_texts_are_cut() -> None:
    table = Refusals(Registry())
    for port in range(ROWS_MAX + 1):
        table.note(peer(f"10.0.0.9:{port}"), Command(7, language="X" * 999), NotOffered(3, "r" * 999), port)
    (row,) = table.shown()
    assert (row["client"], row["count"], table.forgotten) == ("10.0.0.9", ROWS_MAX + 1, 0)
    assert len(row["language"]) == len(row["remark"]) == 255


async def test_the_list_has_connected_clients_and_what_was_refused_to_them(running) -> None:
    def note(client: Any, command: Command, refused: NotOffered) -> None:
        running.broker.refusals.note(client, command, refused, running.clock.now_ms())

    connection = inprocess.connect(Router(handlers(running.broker), not_offered=note))
    heartbeat = beat("c@1")
    heartbeat.language, heartbeat.version = "JAVA", 513
    await connection.request(heartbeat)
    fields = {"topic": "t", "producerGroup": "p", "queueId": "0", "sysFlag": "64"}
    for code, sent, answered in (
        (RequestCode.SEND_MESSAGE, fields, 13),
        (RequestCode.SEND_MESSAGE, fields, 13),
        (RequestCode.POP_ROLLBACK, {}, 3),
        (RequestCode.PULL_MESSAGE, {}, 29),  # a request that is wrong is not one for what is not offered
    ):
        assert (await connection.request(Command(code, fields=sent, language="JAVA", version=513))).code == answered
    found = json.loads((await connection.request(Command(RequestCode.CLIENT_LIST))).body)
    (client,) = found["clients"]
    assert (client["client"], client["language"], client["version"]) == ("c@1", "JAVA", 513)
    assert (client["producer_groups"], client["consumer_groups"], found["more"]) == (["p"], ["g"], 0)
    rollback, send = found["refused"]
    assert (rollback["client"], rollback["name"], rollback["answer"], rollback["count"]) == (
        "c@1",
        "POP_ROLLBACK",
        3,
        1,
    )
    assert (send["client"], send["code"], send["answer"], send["count"]) == ("c@1", 10, 13, 2)
    assert "wrapped for another broker" in send["remark"]


async def test_clients_of_the_grpc_proxy_are_named_one_by_one(running) -> None:
    """They share the proxy's connection."""
    connection = running.connect()
    for name in ("a", "b"):
        await connection.request(beat(name, grpcRelease="5.0.8" * 10))
    found = json.loads((await connection.request(Command(RequestCode.CLIENT_LIST))).body)
    assert [(one["client"], one["grpc"]) for one in found["clients"]] == [
        ("a", ("5.0.8" * 10)[:32]),
        ("b", ("5.0.8" * 10)[:32]),
    ]
    table = Refusals(Registry())
    command = Command(RequestCode.PULL_MESSAGE, fields={"onBehalfClient": "b"})
    table.note(peer("10.0.0.1:5", "a"), command, NotOffered(13, ""), 0)
    assert [row["client"] for row in table.shown()] == ["b"]


async def test_only_who_may_look_sees_the_list(running) -> None:
    running.judge_by(lambda _identity, action, _resource: action != "monitor")
    assert (await running.connect().request(Command(RequestCode.CLIENT_LIST))).code == 16
    assert issubclass(NotOffered, Refused)


ROCKETMQ_CODES = [code for code in NAMES if code < 9_000 or code >= 200_000]


async def test_each_code_of_rocketmq_without_a_handler_is_refused_by_name_and_counted(running) -> None:
    """Nothing hangs; the remark names the feature that is not offered, or the servers or clients that answer it."""
    counted = UnsupportedRequests(running.registry, running.clock, get_logger("test"))
    served = handlers(running.broker)
    connection = inprocess.connect(Router(served, not_offered=counted.record))
    missing = sorted(set(ROCKETMQ_CODES) - set(served))
    for code in missing:
        fields = {"topic": "t", "defaultTopic": "TBW102", "lo": "true", "force": "false"}
        answer = await asyncio.wait_for(connection.request(Command(code, fields=fields, body=b"{}")), 10)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, NAMES[code]
        named = "LightMQ does not offer .+|is a request to (controllers|clients|replicated brokers)"
        assert re.search(named, answer.remark), answer.remark
    page = running.registry.page()[1].decode()
    assert all(f'rocketmq_unsupported_requests_total{{code="{code}"}} 1.0' in page for code in missing)
    assert RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC in missing
    assert "LightMQ does not offer static topics and their logical queues" in not_supported(513)


async def test_what_is_said_of_a_code_is_true_of_each_server(running, tmp_path: Path) -> None:
    """What is not offered has a handler nowhere, and each other code one where its refusal elsewhere points to."""
    broker, world = set(handlers(running.broker)), World(tmp_path / "controller")
    controller = set(controller_handlers(world.name_server, world.plane))
    for code in ROCKETMQ_CODES:
        said = not_supported(code)
        if "does not offer requests relayed" in said:
            continue  # answered where both have the client
        if "does not offer" in said:
            assert code not in broker | controller, said
        elif "request to controllers" in said:
            assert code in controller, said
        elif "request to brokers" in said:
            assert code in broker, said
