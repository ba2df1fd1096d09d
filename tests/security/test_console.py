"""What must not be possible at the console: without a session, from another site, with too little right, too much.

Every request goes to a real installation with an access list. A row of the matrices is a way in that others had.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from yarl import URL

from console.api.table import OPERATIONS
from console.config import ConsoleConfig
from console.tokens import NAME, TokenFile
from console.viewers import ADMIN, MONITOR
from console.web.attempts import DELAY_MS
from tests.support.addresses import own_address
from tests.support.console_rig import ConsolePage, console_page

SECRETS = {"boss": "secret-of-boss", "watch": "secret-of-watch", "etl": "secret-of-etl"}
FILLED = {"id": "x", "topic": "plant%2F1", "handle": "eA", "group": "g", "name": "broker-a"}
"""Values of parameters in paths."""
ACTS = [one for one in OPERATIONS if one.acts]


def path_of(path: str) -> str:
    for name, value in FILLED.items():
        path = path.replace(f"{{{name}}}", value)
    return f"/api/v1{path}"


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[ConsolePage]:
    async with console_page(tmp_path, rules=True) as made:
        yield made


async def status_of(page: ConsolePage, method: str, path: str, **more: Any) -> tuple[int, str]:
    """Status and reason of an answer."""
    async with page.http.request(method, URL(path, encoded=True), **more) as answer:
        text = await answer.text()
        reason = json.loads(text).get("reason", "") if answer.content_type.endswith("json") and text else ""
        return answer.status, reason


async def signed_in(page: ConsolePage, user: str) -> None:
    await page.sign_in(user=user, secret=SECRETS[user])


async def test_nothing_is_shown_or_done_without_a_session(page: ConsolePage) -> None:
    """Every operation, the events, the socket; with a made-up cookie and a made-up key too."""
    made_up = [
        {}, {"cookies": {"lightmq_session": "guessed"}}, {"headers": {"Authorization": "Bearer guessed"}},
        {"headers": {"Authorization": "Basic " + base64.b64encode(b"boss:guessed").decode()}},
    ]  # fmt: skip
    for one in OPERATIONS:
        assert await status_of(page, one.method, path_of(one.path)) == (401, "unproven"), one.name
    for given in made_up:
        assert (await status_of(page, "GET", "/api/v1/overview", **given))[0] == 401
        assert (await status_of(page, "GET", "/api/v1/events", **given))[0] == 401
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "x" * 22 + "==",
    }
    assert (await status_of(page, "GET", "/api/v1/live", headers={**upgrade, "Origin": page.url}))[0] == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
    ],
)  # fmt: skip
async def test_requests_that_another_site_makes(page: ConsolePage, headers: dict[str, str]) -> None:
    """Whatever they carry: the cookie, the token against them, a remembered password."""
    await signed_in(page, "boss")
    headers = {**headers, "X-CSRF-Token": page.csrf}
    basic = "Basic " + base64.b64encode(b"boss:secret-of-boss").decode()
    for more in (headers, {**headers, "Authorization": basic}):
        body = {"topic": "plant/1", "payload": "x"}
        assert await status_of(page, "POST", "/api/v1/messages", json=body, headers=more) == (403, "cross_site")
        assert await status_of(page, "GET", "/api/v1/overview", headers=more) == (403, "cross_site")
        assert await status_of(page, "GET", "/api/v1/events", headers=more) == (403, "cross_site")
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await page.http.ws_connect("/api/v1/live", headers=more)
        assert caught.value.status == 403


async def test_a_socket_without_an_origin_or_a_session(page: ConsolePage) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await page.http.ws_connect("/api/v1/live", headers={"Origin": page.url})
    assert caught.value.status == 401
    await signed_in(page, "boss")
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await page.http.ws_connect("/api/v1/live")
    assert caught.value.status == 403


async def test_acts_need_the_token_of_the_session(page: ConsolePage) -> None:
    """That of another session is none."""
    await signed_in(page, "boss")
    other = page.csrf
    await signed_in(page, "boss")
    for given in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": "guessed"}, {"X-CSRF-Token": other}):
        for one in ACTS:
            assert await status_of(page, one.method, path_of(one.path), headers=given) == (403, "csrf"), one.name
        assert await status_of(page, "DELETE", "/api/v1/session", headers=given) == (403, "csrf")


async def test_a_monitor_looks_and_acts_on_nothing(page: ConsolePage, tmp_path: Path) -> None:
    """Neither with a key nor with the read-only token."""
    token = TokenFile(tmp_path / "data").renew(MONITOR)
    for shown in ({"user": "watch", "secret": SECRETS["watch"]}, {"token": token}):
        assert (await page.sign_in(**shown))["role"] == "monitor"
        for one in ACTS:
            given = {"X-CSRF-Token": page.csrf}
            assert await status_of(page, one.method, path_of(one.path), headers=given) == (403, "forbidden"), one.name
        for path in ("/overview", "/brokers", "/sessions", "/groups", "/queues", "/timers", "/refusals"):
            await page.ask(path)
        assert (await page.ask("/topics/plant%2F1", status=403))["reason"] == "forbidden"


async def test_other_keys_see_and_do_what_their_rules_allow(page: ConsolePage) -> None:
    await signed_in(page, "etl")
    await page.ask("/messages", "POST", json={"topic": "plant/1", "payload": "x"})
    assert len((await page.ask("/topics/plant%2F1"))["messages"]) == 1
    await page.ask("/messages", "POST", 403, json={"topic": "other/1", "payload": "x"})
    await page.ask("/topics/other%2F1", status=403)
    for path in ("/events", "/sessions", "/timers"):
        await page.ask(path, status=403)
    await page.ask("/sessions/x", "DELETE", 403)


async def test_an_administrator_reads_topics_by_its_own_rules(page: ConsolePage) -> None:
    """`role admin` is no right to messages; the token is the installation's own."""
    await signed_in(page, "boss")
    await page.ask("/sessions")
    await page.ask("/messages", "POST", 403, json={"topic": "plant/1", "payload": "x"})
    await page.sign_in()
    await page.ask("/messages", "POST", json={"topic": "plant/1", "payload": "x"})


async def test_a_sign_in_never_takes_over_a_given_session(page: ConsolePage) -> None:
    """Session fixation: the cookie that came with it is worth nothing afterwards."""
    await signed_in(page, "etl")
    (before,) = page.http.cookie_jar
    given = before.value
    await signed_in(page, "boss")
    (after,) = page.http.cookie_jar
    assert after.value != given
    page.http.cookie_jar.clear()
    assert (await status_of(page, "GET", "/api/v1/session", cookies={"lightmq_session": given}))[0] == 401


async def test_sessions_end_with_what_they_began_with(page: ConsolePage, tmp_path: Path) -> None:
    """A renewed token signs out who used the old one, streams included."""
    await page.sign_in()
    async with page.http.ws_connect("/api/v1/live", headers={"Origin": page.url}) as socket:
        await socket.send_json({"subscribe": "plant/#"})
        assert "subscribed" in await asyncio.wait_for(socket.receive_json(), 20)
        TokenFile(tmp_path / "data").renew(ADMIN)
        assert (await asyncio.wait_for(socket.receive_json(), 20))["problem"]["reason"] == "unproven"
    await page.ask("/overview", status=401)
    assert page.token not in (tmp_path / "data" / NAME).read_text()


async def test_guessing_keeps_nobody_out(tmp_path: Path) -> None:
    """In every form it is counted and answered with 429; what is right is let in from the same address."""
    async with console_page(tmp_path, rules=True, console=ConsoleConfig(sign_in_failures_max=3)) as page:
        for given in ({"token": "guessed"}, {"user": "boss", "secret": "guessed"}):
            assert (await status_of(page, "POST", "/api/v1/session", json=given))[0] == 401
        assert (await status_of(page, "GET", "/api/v1/overview", headers={"Authorization": "Bearer x"}))[0] == 401
        async with page.http.post("/api/v1/session", json={"token": page.token}) as answer:
            assert answer.status == 200
        async with page.http.post("/api/v1/session", json={"token": "guessed"}) as answer:
            assert (answer.status, int(answer.headers["Retry-After"]) > 0) == (429, True)
        right = {"Authorization": f"Bearer {page.token}"}
        assert (await status_of(page, "GET", "/api/v1/overview", headers=right))[0] == 200


async def test_one_who_guesses_is_slowed_and_others_of_the_address_are_not(tmp_path: Path) -> None:
    """Wrong answers take turns, the right ones do not wait for them; the log has one line for all of them."""
    config = ConsoleConfig(sign_in_failures_max=2, sign_in_window_ms=2_000)
    with structlog.testing.capture_logs() as said:
        async with console_page(tmp_path, console=config) as page:
            await guess_and_show(page)
            async with asyncio.timeout(30):
                while not any("more" in one for one in said):
                    await asyncio.sleep(0.05)
    failed = [one for one in said if one["event"] == "console_sign_in_failed"]
    assert [one.get("more") for one in failed] == [None, None, 5]


async def guess_and_show(page: ConsolePage) -> None:
    """Seven wrong tokens, the last five at a time, and the right one behind them."""

    async def shown(token: str) -> tuple[int, float]:
        began = time.monotonic()
        asked = status_of(page, "GET", "/api/v1/session", headers={"Authorization": f"Bearer {token}"})
        return (await asked)[0], time.monotonic() - began

    first = [(await shown("guessed"))[0] for _ in range(2)]
    guesses = [asyncio.ensure_future(shown("guessed")) for _ in range(5)]
    await asyncio.sleep(0)
    assert (await shown(page.token))[0] == 200
    assert not all(one.done() for one in guesses), "it did not wait behind them"
    found = sorted(await asyncio.gather(*guesses), key=lambda one: one[1])
    assert (first, {one[0] for one in found}) == ([401, 401], {429})
    assert found[-1][1] >= 4 * DELAY_MS / 1_000


async def test_a_trusted_proxy_names_who_guesses(tmp_path: Path) -> None:
    """The last address that is no trusted proxy's; what the client has put in front of it is not believed."""
    config = ConsoleConfig(sign_in_failures_max=1, trusted_proxies=("127.0.0.0/8", "10.9.0.0/16"))
    async with console_page(tmp_path, console=config) as page:

        async def guess(forwarded: str) -> int:
            headers = {"X-Forwarded-For": forwarded}
            return (await status_of(page, "POST", "/api/v1/session", json={"token": "guessed"}, headers=headers))[0]

        assert [await guess(f"192.0.2.{n}, 198.51.100.7, 10.9.0.1") for n in range(3)] == [401, 429, 429]
        assert await guess("198.51.100.8") == 401


async def test_without_a_trusted_proxy_the_header_is_not_read(tmp_path: Path) -> None:
    async with console_page(tmp_path, console=ConsoleConfig(sign_in_failures_max=1)) as page:
        found = []
        for n in range(2):
            headers = {"X-Forwarded-For": f"192.0.2.{n}"}
            asked = status_of(page, "POST", "/api/v1/session", json={"token": "guessed"}, headers=headers)
            found.append((await asked)[0])
        assert found == [401, 429]


async def test_a_body_that_is_announced_as_too_large_is_refused_at_once(page: ConsolePage) -> None:
    """Not a byte of it is waited for."""
    host, _, port = page.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /api/v1/session HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: 2000000000\r\n\r\nx".encode())
    assert b" 413 " in await asyncio.wait_for(reader.readline(), 20)
    writer.close()


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{" + b"x" * 5_000, "json", 413), (b"[" * 4_000, "json", 400),
        (b'{"token": "x", "role": "admin"}', "json", 400),
        (b'{"token": "x", "user": "y"}', "json", 400), (b"", "json", 400), (b'{"token": 1}', "json", 400),
        (b'{"token": "\xff"}', "json", 400), (b"token=x", "x-www-form-urlencoded", 415),
        (b'{"token": "x"}', "xml", 415),
    ],
)  # fmt: skip
async def test_bodies_before_the_sign_in(page: ConsolePage, body: bytes, kind: str, status: int) -> None:
    headers = {"Content-Type": f"application/{kind}"}
    assert (await status_of(page, "POST", "/api/v1/session", data=body, headers=headers))[0] == status


async def test_a_body_may_not_be_larger_than_its_operation_needs(page: ConsolePage) -> None:
    await page.sign_in()
    large = {"topic": "plant", "to": "x" * 70_000}
    await page.ask("/groups/g/reset", "POST", 413, json=large)
    too_large = {"topic": "plant/1", "payload": "x" * 5_000_000}
    await page.ask("/messages", "POST", 400, json=too_large)


async def test_a_page_that_points_its_name_here_reads_nothing(page: ConsolePage) -> None:
    """DNS rebinding: the browser sends the attacker's name as Host, and as Origin."""
    await page.sign_in()
    evil = {"Host": "evil.example", "Origin": "http://evil.example", "X-CSRF-Token": page.csrf}
    for path in ("/", "/console/", "/api/v1/overview", "/api/v1/openapi.json", "/api/v1/session"):
        assert (await status_of(page, "GET", path, headers=evil))[0] == 403, path
    assert (await status_of(page, "POST", "/api/v1/session", json={"token": page.token}, headers=evil))[0] == 403


@pytest.mark.parametrize(
    "name",
    [
        "..%2f..%2fapp.py", "%2e%2e/%2e%2e/app.py", "....//app.py", "/etc/passwd", "static%00", "app/../../app.py",
        "%5c..%5c",
    ],
)  # fmt: skip
async def test_only_files_of_the_page_are_served(page: ConsolePage, name: str) -> None:
    for prefix in ("/console/", "/console/static/"):
        assert (await status_of(page, "GET", prefix + name))[0] in (400, 404)


async def test_other_machines_get_it_with_tls_only(tmp_path: Path) -> None:
    """On the same port, supervisors get their pages."""
    address = own_address()
    if address is None:
        pytest.skip("this machine has no other address")
    for allowed in (False, True):
        folder = tmp_path / str(allowed)
        folder.mkdir()
        config = ConsoleConfig(allow_insecure=allowed)
        async with console_page(folder, rules=True, console=config, host="0.0.0.0") as page:
            url = page.url.replace("127.0.0.1", address)
            async with page.http.get(f"{url}/livez") as answer:
                assert answer.status == 200
            for path in ("/console/", "/api/v1/openapi.json"):
                async with page.http.get(url + path) as answer:
                    assert answer.status == (200 if allowed else 403)
            async with page.http.post(f"{url}/api/v1/session", json={"token": page.token}) as answer:
                assert answer.status == (200 if allowed else 403)


async def test_every_answer_has_the_security_headers(page: ConsolePage) -> None:
    for path in ("/", "/console/", "/api/v1/overview", "/api/v1/none", "/api/v1/openapi.json"):
        async with page.http.get(path, allow_redirects=False) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"], path
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Frame-Options"] == "DENY"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Server"] == "LightMQ"
            assert "Access-Control-Allow-Origin" not in answer.headers
