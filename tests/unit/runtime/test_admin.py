from __future__ import annotations

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
        reasons=lambda: {"store": "", "proxy": "no broker"},
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
        server = AdminServer("127.0.0.1", taken.getsockname()[1], registry=Registry(), readiness=dict, status=dict)
        with pytest.raises(OSError):
            await server.start()
