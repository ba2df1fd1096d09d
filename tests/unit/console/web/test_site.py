"""The whole site on a real installation: `console.web.gate`, `console.web.serving`, `console.web.sign_in`,
`console.web.events`, `console.web.live`, `console.web.looks`, `console.web.static_files`, `console.web.site`.

What must not be possible is in tests/security/test_console.py.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from console.config import ConsoleConfig, ConsoleTlsConfig
from console.web import static_files
from tests.support.console_rig import ConsolePage, console_page


async def events(page: ConsolePage, wanted: set[str]) -> dict[str, Any]:
    """The first event of each name."""
    found: dict[str, Any] = {}
    async with asyncio.timeout(30), page.http.get("/api/v1/events") as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        name = ""
        while not wanted <= found.keys():
            line = (await answer.content.readline()).decode().rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                found.setdefault(name, json.loads(line[6:]))
    return found


async def next_message(socket: aiohttp.ClientWebSocketResponse) -> Any:
    return await asyncio.wait_for(socket.receive_json(), 20)


async def test_signing_in_and_out(tmp_path: Path) -> None:
    async with console_page(tmp_path) as page:
        assert (await page.ask("/session", status=401))["reason"] == "unproven"
        told = await page.sign_in()
        assert (told["user"], told["role"]) == ("administrator", "admin")
        assert (await page.ask("/session"))["csrf"] == told["csrf"]
        (cookie,) = page.http.cookie_jar
        assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
        await page.ask("/session", "DELETE", 204)
        await page.ask("/overview", status=401)


async def test_the_token_is_made_once(tmp_path: Path) -> None:
    async with console_page(tmp_path) as page:
        first = page.token
        assert first
    async with console_page(tmp_path) as page:
        assert page.token == ""
        await page.sign_in(token=first)


async def test_events_show_what_changes(tmp_path: Path) -> None:
    """Figures every second, roles and alarms when they change."""
    async with console_page(tmp_path) as page:
        await page.sign_in()
        found = await events(page, {"history", "overview", "alarms", "roles"})
    assert found["overview"]["mode"] == "all in one process"
    assert found["overview"]["disk"]["total"] > found["overview"]["disk"]["free"] > 0
    assert {each["id"] for each in found["alarms"]["items"]} <= {"disk_low:broker-a"}  # as this machine's disk is
    assert found["roles"]["items"][0]["name"] == "broker-a"


async def test_live_messages_of_a_filter(tmp_path: Path) -> None:
    """Those from before, then those that come; another filter takes the place of the first."""
    async with console_page(tmp_path) as page:
        await page.sign_in()
        for number in range(3):
            await page.ask("/messages", "POST", json={"topic": f"plant/{number}", "payload": f"before {number}"})
        async with page.http.ws_connect("/api/v1/live", headers={"Origin": page.url}) as socket:
            await socket.send_json({"subscribe": "plant/+", "history": 2})
            assert await next_message(socket) == {"subscribed": "plant/+"}
            shown = [(await next_message(socket))["message"]["payload"] for _ in range(2)]
            assert shown == ["before 1", "before 2"]
            published = await page.ask(
                "/messages", "POST", json={"topic": "plant/7", "payload_base64": "/w==", "qos": 2}
            )
            message = (await next_message(socket))["message"]
            assert (message["topic"], message["payload"], message["encoding"], message["qos"]) == (
                "plant/7",
                "/w==",
                "base64",
                2,
            )
            assert message["message_id"] == published["message_id"]
            await socket.send_json({"subscribe": "plant/0", "history": 10})
            assert [next(iter(await next_message(socket))) for _ in range(2)] == ["subscribed", "message"]
            for wrong in ("{", '{"subscribe": "a/#/b"}', '{"subscribe": "a", "history": -1}', '{"x": 1}'):
                await socket.send_str(wrong)
                assert (await next_message(socket))["problem"]["reason"] == "bad_command"


async def test_a_live_tail_that_is_too_slow_is_told_what_it_missed(tmp_path: Path) -> None:
    async with console_page(tmp_path, console=ConsoleConfig(live_messages_max=5)) as page:
        await page.sign_in()
        async with page.http.ws_connect("/api/v1/live", headers={"Origin": page.url}) as socket:
            await socket.send_json({"subscribe": "plant/#"})
            assert "subscribed" in await next_message(socket)
            publish = [page.ask("/messages", "POST", json={"topic": "plant/7", "payload": "x"}) for _ in range(60)]
            await asyncio.gather(*publish)
            seen = dropped = 0
            while seen + dropped < 60:
                told = await next_message(socket)
                seen, dropped = seen + ("message" in told), dropped + told.get("dropped", 0)
            assert dropped > 0


async def test_streams_are_limited_in_number(tmp_path: Path) -> None:
    async with console_page(tmp_path, console=ConsoleConfig(viewers_max=1)) as page:
        await page.sign_in()
        async with page.http.get("/api/v1/events") as answer:
            assert answer.status == 200
            assert (await page.ask("/events", status=503))["reason"] == "too_many"


async def test_the_page_is_served_with_its_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "static"
    folder.mkdir()
    (folder / "index.html").write_text("<!doctype html>")
    (folder / "app.js").write_text("let x;" * 1_000)
    (folder / "secret.key").write_text("x")
    monkeypatch.setattr(static_files, "FOLDER", folder)
    async with console_page(tmp_path) as page:
        async with page.http.get("/", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (302, "/console/")
        async with page.http.get("/console/") as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
            assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
            tag = answer.headers["ETag"]
        async with page.http.get("/console/", headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304
        async with page.http.get("/console/static/app.js") as answer:
            assert (answer.status, answer.headers["Content-Encoding"]) == (200, "gzip")
            assert await answer.text() == "let x;" * 1_000
        (folder / "app.js").write_text("let y;")
        async with page.http.get("/console/static/app.js") as answer:
            assert await answer.text() == "let y;"
        for name in ("none.js", "secret.key", "../app.js", "%2e%2e/app.js", "..%2fapp.js", ""):
            async with page.http.get(URL(f"/console/static/{name}", encoded=True)) as answer:
                assert answer.status == 404, name
        async with page.http.get("/metrics") as answer:
            assert answer.status == 200


async def test_unknown_paths_and_methods(tmp_path: Path) -> None:
    async with console_page(tmp_path) as page:
        await page.sign_in()
        assert (await page.ask("/nothing", status=404))["reason"] == "not_found"
        async with page.http.put("/api/v1/clients/a/disconnect") as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "POST")
        assert (await page.ask("/overview?x=1", status=400))["detail"].startswith("there is no parameter 'x'")
        assert (await page.ask("/groups?limit=1&limit=2", status=400))["detail"] == "the parameter limit is repeated"
        assert (await page.ask("/groups?limit=0", status=400))["detail"] == "limit is from 1 to 200"
        await page.ask("/messages", "POST", 415, data=b"x")
        await page.ask("/messages", "POST", 400, json={"topic": "a", "nonsense": 1})
        await page.ask("/live", status=403)


async def test_a_certificate_makes_it_https(tmp_path: Path) -> None:
    from tests.support.certificates import HAVE_OPENSSL, Authority

    if not HAVE_OPENSSL:
        pytest.skip("openssl is not installed")
    issued = Authority(tmp_path).issue("server", "IP:127.0.0.1")
    config = ConsoleConfig(tls=ConsoleTlsConfig(certificate=issued.certificate, key=issued.key))
    async with console_page(tmp_path, console=config) as page:
        url = page.url.replace("http:", "https:")
        async with page.http.post(f"{url}/api/v1/session", json={"token": page.token}, ssl=False) as answer:
            assert answer.status == 200
            assert "; Secure" in answer.headers["Set-Cookie"]
        async with page.http.get(f"{url}/livez", ssl=False) as answer:
            assert answer.status == 200
