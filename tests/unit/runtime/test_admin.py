from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest

from runtime.admin import AdminServer
from runtime.metrics import Registry


@pytest.fixture
async def parts() -> AsyncIterator[tuple[str, dict[str, bool]]]:
    readiness = {"store": True}
    registry = Registry()
    registry.counter("rocketmq_messages_in_total", "Messages in").value += 2
    server = AdminServer(
        "127.0.0.1", 0, registry=registry, readiness=lambda: readiness, status=lambda: {"epoch": 1},
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


async def test_a_taken_port_is_an_oserror() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = AdminServer("127.0.0.1", port, registry=Registry(), readiness=dict, status=dict)
        with pytest.raises(OSError):
            await server.start()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example:8080", 403), ("127.0.0.1.evil.example", 403), ("localhost:1", 200), ("10.0.0.9:8080", 200),
        ("[::1]:8080", 200), ("metrics.inside", 200),
    ],
)  # fmt: skip
async def test_a_page_that_borrowed_our_address_reads_nothing(host: str, status: int) -> None:
    """DNS rebinding: the browser sends the attacker's name."""
    registry = Registry()
    server = AdminServer(
        "127.0.0.1", 0, registry=registry, readiness=dict, status=lambda: {"secret": 1},
        hosts=("metrics.inside",),
    )  # fmt: skip
    port = await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            for page in ("/status", "/metrics"):
                async with http.get(page, headers={"Host": host}) as answer:
                    assert answer.status == status
                    assert ("secret" in await answer.text()) == (status == 200 and page == "/status")
        refused = 'rocketmq_admin_requests_refused_total{reason="host"} 2' in registry.page().decode()
        assert refused == (status == 403)
    finally:
        await server.stop()


async def spoken(port: int, request: bytes) -> bytes:
    """What one connection is told until it ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


@pytest.mark.parametrize("request_line", [b"GET /livez HTTP/1.1", b"GET /nothing HTTP/1.1", b"\x16\x03 nonsense"])
async def test_no_answer_names_versions(parts: tuple[str, dict[str, bool]], request_line: bytes) -> None:
    port = int(parts[0].rpartition(":")[2])
    answer = (await spoken(port, request_line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")).lower()
    assert answer.startswith(b"http/1")
    assert b"server: lightmq\r\n" in answer
    assert b"aiohttp" not in answer
    assert b"python" not in answer
