from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from remoting import background
from remoting.access.rights import page_actions
from remoting.protocol.errors import LightMQError
from remoting.server.authorizer import Authorizer
from remoting.server.router import Access
from remoting.server.server import PageAccess
from runtime.admin import READY_PARTS, AdminServer, Request
from runtime.metrics import Registry

HERE, ELSEWHERE = "127.0.0.1:1", "10.1.2.3:4"


def guard(**settings: Any) -> PageAccess:
    return PageAccess(Access(**settings), Authorizer(), page_actions())


@pytest.fixture
async def parts() -> AsyncIterator[tuple[str, dict[str, bool]]]:
    readiness = {"store": True}
    registry = Registry()
    registry.counter("rocketmq_messages_in_total", "Messages in").value += 2
    server = AdminServer(
        "127.0.0.1", 0, registry=registry, guard=guard(), readiness=lambda: readiness, status=lambda: {"epoch": 1},
        reasons=lambda: {"store": "", "proxy": "no broker"}, degraded=lambda: {"store": "damage", "proxy": ""},
    )  # fmt: skip
    port = await server.start()
    yield f"http://127.0.0.1:{port}", readiness
    await server.stop()
    await server.stop()


async def test_the_pages(parts: tuple[str, dict[str, bool]]) -> None:
    url, readiness = parts
    async with aiohttp.ClientSession(url) as http:
        async with http.get("/metrics") as answer:
            assert "rocketmq_messages_in_total 2.0" in await answer.text()
        for page in ("/livez", "/startupz"):
            async with http.get(page) as answer:
                assert answer.status == 200
        async with http.get("/readyz") as answer:
            told = {"ready": True, "parts": {"store": True}, "reasons": {"proxy": "no broker"}}
            told["degraded"] = {"store": "damage"}
            assert (answer.status, await answer.json()) == (200, told)
        readiness["proxy"] = False
        async with http.get("/readyz") as answer:
            assert answer.status == 503
            assert (await answer.json())["reasons"] == {"proxy": "no broker"}
        async with http.get("/status") as answer:
            assert await answer.json() == {"epoch": 1}


async def test_a_dead_background_task_makes_the_process_unready(parts: tuple[str, dict[str, bool]]) -> None:
    """With the sentence that says what no longer happens; the parts may all be well."""

    async def follow() -> None:
        raise ValueError("no address")

    await asyncio.wait([background.task(follow(), "follows the routes")])
    async with aiohttp.ClientSession(parts[0]) as http, http.get("/readyz") as answer:
        assert answer.status == 503
        told = await answer.json()
    assert told["parts"] == {"store": True, "background": False}
    assert told["reasons"]["background"] == "no longer follows the routes: ValueError('no address')"


async def test_a_taken_port_is_an_oserror() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = AdminServer("127.0.0.1", port, registry=Registry(), guard=guard(), readiness=dict, status=dict)
        with pytest.raises(OSError):
            await server.start()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example:8080", 403), ("127.0.0.1.evil.example", 403), ("localhost:1", 200), ("10.0.0.9:8080", 200),
        ("[::1]:8080", 200), ("metrics.inside", 200),
    ],
)  # fmt: skip
async def test_a_page_that_points_its_name_here_reads_nothing(host: str, status: int) -> None:
    """DNS rebinding: the browser sends the attacker's name."""
    registry = Registry()
    server = AdminServer(
        "127.0.0.1", 0, registry=registry, guard=guard(), readiness=dict, status=lambda: {"secret": 1},
        hosts=("metrics.inside",),
    )  # fmt: skip
    port = await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            for page in ("/status", "/metrics"):
                async with http.get(page, headers={"Host": host}) as answer:
                    assert answer.status == status
                    assert ("secret" in await answer.text()) == (status == 200 and page == "/status")
        refused = 'rocketmq_admin_requests_refused_total{reason="host"} 2' in registry.page()[1].decode()
        assert refused == (status == 403)
    finally:
        await server.stop()


async def spoken(port: int, request: bytes) -> bytes:
    """The whole output of one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"nonsense\r\nHost: a", 400), (b"GET /livez HTTP/2.0\r\nHost: a", 400), (b"GET /livez HTTP/1.1", 400),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: b", 400), (b"GET /livez HTTP/1.1\r\nHost : a", 400),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\n folded", 400),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\x00b", 400),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0, 5", 400),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5", 400),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked", 400),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic a\r\nAuthorization: Basic b", 400),
        (b"GET http://evil.example/livez HTTP/1.1\r\nHost: localhost", 403),
        (b"GET http://localhost/livez HTTP/1.1\r\nHost: evil.example", 200),
        (b"GET /livez HTTP/1.0", 200), (b"GET /livez?x HTTP/1.1\r\nHost: localhost", 200),
        (b"DELETE /livez HTTP/1.1\r\nHost: localhost", 405), (b"GET /../livez HTTP/1.1\r\nHost: localhost", 404),
    ],
)  # fmt: skip
async def test_ambiguous_heads_are_refused(parts: tuple[str, dict[str, bool]], head: bytes, status: int) -> None:
    """Of an absolute target the host counts, not that of the header; no byte of a body is taken for a request."""
    answer = await spoken(int(parts[0].rpartition(":")[2]), head + b"\r\nConnection: close\r\n\r\n")
    assert int(answer.split(b" ", 2)[1]) == status, answer
    assert answer.count(b"HTTP/") == 1


@pytest.mark.parametrize("request_line", [b"GET /livez HTTP/1.1", b"GET /nothing HTTP/1.1", b"\x16\x03 nonsense"])
async def test_no_answer_names_versions(parts: tuple[str, dict[str, bool]], request_line: bytes) -> None:
    port = int(parts[0].rpartition(":")[2])
    answer = (await spoken(port, request_line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")).lower()
    assert answer.startswith(b"http/1")
    assert b"server: lightmq\r\n" in answer
    assert b"aiohttp" not in answer
    assert b"python" not in answer


def asked(path: str, authorization: str = "", host: str = "localhost") -> Request:
    return Request("GET", path, host, authorization)


def server_with(keys: dict[str, str], readiness: bool = True) -> AdminServer:
    return AdminServer(
        "127.0.0.1", 0, registry=Registry(), guard=guard(keys=keys), readiness=lambda: {"store": readiness},
        status=lambda: {"epoch": 1}, reasons=lambda: {"store": "the disk is full"},
    )  # fmt: skip


@pytest.mark.parametrize("page", ["/metrics", "/status"])
async def test_other_machines_need_a_key(page: str) -> None:
    server = server_with({"prometheus": "s3cret"})
    assert server.answer(asked(page), HERE).status == 200
    for authorization in ("", "Bearer prometheus:wrong", "Bearer nobody:s3cret", "Negotiate x"):
        refused = server.answer(asked(page, authorization), ELSEWHERE)
        assert refused.status == 401
        assert refused.headers["WWW-Authenticate"].startswith("Basic ")
        assert b"epoch" not in refused.body
    assert server.answer(asked(page, "Bearer prometheus:s3cret"), ELSEWHERE).status == 200


async def test_a_proved_key_may_use_any_host_name() -> None:
    """Prometheus reaches its targets by names; a claimed key allows nothing, on this machine neither."""
    server = server_with({"prometheus": "s3cret"})
    for address in (HERE, ELSEWHERE):
        for authorization, status in (("Bearer prometheus:s3cret", 200), ("Bearer prometheus:no", 403), ("", 403)):
            request = asked("/metrics", authorization, host="broker-a-0.broker-a:8081")
            assert server.answer(request, address).status == status


@pytest.mark.parametrize("ready", [True, False])
async def test_probes_of_other_machines_learn_yes_or_no(ready: bool) -> None:
    """Without a key, and nothing else."""
    server = server_with({}, ready)
    assert [server.answer(asked(page), ELSEWHERE).status for page in ("/livez", "/startupz")] == [200, 200]
    answer = server.answer(asked("/readyz"), ELSEWHERE)
    assert (answer.status, json.loads(answer.body)) == (200 if ready else 503, {"ready": ready})
    assert json.loads(server.answer(asked("/readyz"), HERE).body)["reasons"] == {"store": "the disk is full"}


async def test_refusals_are_counted_by_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """And logged, once a minute for each reason."""
    server = server_with({"a": "b"})
    for _ in range(3):
        assert server.answer(asked("/status"), ELSEWHERE).status == 401
        assert server.answer(asked("/readyz"), ELSEWHERE).status == 200
        assert server.answer(asked("/none"), ELSEWHERE).status == 404
        assert server.answer(asked("/status", host="evil.example"), HERE).status == 403
    page = server.answer(asked("/metrics"), HERE).body.decode()
    assert 'rocketmq_admin_requests_refused_total{reason="unproven"} 3.0' in page
    assert 'rocketmq_admin_requests_refused_total{reason="host"} 3.0' in page
    assert 'rocketmq_admin_requests_refused_total{reason="forbidden"} 0.0' in page


def test_a_page_without_a_decision() -> None:
    """The server is not even created; and the table has no row for pages that do not exist."""
    known = page_actions()
    server = server_with({})
    assert server.pages == frozenset(known)
    for page in ("/status", READY_PARTS):
        lacking = PageAccess(Access(), Authorizer(), {name: right for name, right in known.items() if name != page})
        with pytest.raises(LightMQError, match=f"no right is declared for {page}"):
            AdminServer("127.0.0.1", 0, registry=Registry(), guard=lacking, readiness=dict, status=dict)
