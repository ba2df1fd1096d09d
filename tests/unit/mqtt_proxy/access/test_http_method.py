"""The HTTP hook: its requests, the meaning of its answers, and every failure on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web

from mqtt_proxy.access.auth import Waits
from mqtt_proxy.access.http_method import ANSWER_BYTES_MAX, HookError, HttpMethod
from mqtt_proxy.config import AccessConfig
from remoting.access.rules import Identity, Shown, Unproven
from tests.support.clock import ManualClock


class Hook:
    """A service that gives prepared answers."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.answer: object = {"result": "allow"}
        self.status = 200
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.under_way = self.most_under_way = 0
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        self.headers.append(request.headers)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await self.go_on.wait()
        self.under_way -= 1
        if self.status in (301, 302, 307):
            raise web.HTTPTemporaryRedirect(self.url)
        text = self.answer if isinstance(self.answer, str) else json.dumps(self.answer)
        return web.Response(text=text, status=self.status)


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    made = Hook()
    app = web.Application()
    app.router.add_post("/auth", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/auth"
    yield made
    made.go_on.set()
    await runner.cleanup()


def method_for(hook: Hook, **settings: object) -> tuple[HttpMethod, ManualClock]:
    clock = ManualClock()
    return HttpMethod(AccessConfig(http_url=hook.url, **settings), clock=clock), clock  # type: ignore[arg-type]


def shown(name: str = "ann", **more: object) -> Shown:
    return Shown(client_id="c", username=name, password=b"s3cret", address="10.0.0.9", **more)  # type: ignore[arg-type]


async def test_the_request_and_its_answer(hook: Hook, tmp_path: Path) -> None:
    """The request has everything a CONNECT shows; the answer has a name, groups and rules."""
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    method, _ = method_for(hook, http_secret_file=secret)
    assert await method.check(shown()) == Identity("ann", False, "c")
    told = {"client_id": "c", "username": "ann", "password": "s3cret", "address": "10.0.0.9", "certificate": None}
    assert hook.asked == [told]
    assert hook.headers[0]["Authorization"] == "Bearer hush"
    hook.answer = {"result": "allow", "user": "anna", "groups": ["g"], "acl": ["read a/%u"]}
    identity = await method.check(shown("a"))
    assert isinstance(identity, Identity)
    assert (identity.name, identity.groups, identity.rules[0].filter) == ("anna", ("g",), b"a/%u")
    await method.check(Shown(username="b", password=b"\xff"))
    assert hook.asked[-1]["password_base64"] == "/w=="
    hook.answer = {"result": "deny"}
    assert await method.check(shown("d")) is Unproven.DENIED
    hook.answer = {"result": "ignore"}
    assert await method.check(shown("e")) is None
    asked = len(hook.asked)
    assert await method.check(Shown()) is None
    assert len(hook.asked) == asked
    await method.close()


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (500, {"result": "allow"}),
        (204, ""),
        (401, {"result": "allow"}),
        (307, {"result": "allow"}),
        (200, "no json"),
        (200, "allow"),
        (200, []),
        (200, {}),
        (200, {"result": "ALLOW"}),
        (200, {"result": True}),
        (200, {"result": "allow", "user": ""}),
        (200, {"result": "allow", "user": 5}),
        (200, {"result": "allow", "groups": "all"}),
        (200, {"result": "allow", "acl": []}),
        (200, {"result": "allow", "acl": ["alow #"]}),
        (200, '{"result": "allow"}' + " " * ANSWER_BYTES_MAX),
    ],
)
async def test_invalid_answers_admit_nobody(hook: Hook, status: int, answer: object) -> None:
    """They are no verdict on the client: it may try again, and the hook is asked again. No secret is logged."""
    hook.status, hook.answer = status, answer
    method, _ = method_for(hook)
    with structlog.testing.capture_logs() as said:
        assert await method.check(shown()) is Unproven.UNAVAILABLE
        assert await method.check(shown()) is Unproven.UNAVAILABLE
    assert len(hook.asked) == 2
    assert [one["event"] for one in said] == ["mqtt_hook_failed"] * 2
    assert "s3cret" not in repr(said)
    await method.close()


async def test_late_and_unreachable_hooks(hook: Hook) -> None:
    """The wait is bounded; an unreachable hook is a failed one."""
    hook.go_on.clear()
    method, _ = method_for(hook, http_timeout_ms=50)
    assert await method.check(shown()) is Unproven.UNAVAILABLE
    await method.close()
    gone = HttpMethod(AccessConfig(http_url="http://127.0.0.1:1/auth"), clock=ManualClock())
    assert await gone.check(shown()) is Unproven.UNAVAILABLE
    await gone.close()


async def test_answers_are_cached(hook: Hook) -> None:
    """For the client they were given for and the configured time; a denial for a second."""
    method, clock = method_for(hook, http_cache_ms=5_000)
    assert method.at_hand(shown()) is Waits.LATER
    for _ in range(3):
        assert isinstance(await method.check(shown()), Identity)
    assert len(hook.asked) == 1
    assert isinstance(method.at_hand(shown()), Identity)
    hook.answer = {"result": "deny"}
    assert await method.check(Shown(client_id="c", username="ann", password=b"other")) is Unproven.DENIED
    assert await method.check(Shown(client_id="d", username="ann", password=b"s3cret")) is Unproven.DENIED
    assert await method.check(Shown(client_id="c", username="ann", password=b"other")) is Unproven.DENIED
    assert len(hook.asked) == 3
    clock.advance_ms(1_001)
    await method.check(Shown(client_id="c", username="ann", password=b"other"))
    assert len(hook.asked) == 4
    assert isinstance(await method.check(shown()), Identity)
    clock.advance_ms(5_000)
    assert await method.check(shown()) is Unproven.DENIED
    clock.advance_ms(1_001)
    hook.answer = {"result": "allow"}
    assert isinstance(await method.check(shown()), Identity)
    method.refresh()
    hook.answer = {"result": "deny"}
    assert await method.check(shown()) is Unproven.DENIED
    await method.close()


async def test_requests_are_bounded(hook: Hook) -> None:
    """Both those under way and those that wait; the next client may try again, and none is sent for a client that has
    left."""
    hook.go_on.clear()
    method, _ = method_for(hook, http_concurrent_max=2, http_waiting_max=2)
    checks = [asyncio.ensure_future(method.check(shown(f"u{number}"))) for number in range(3)]
    left = asyncio.ensure_future(method.check(shown("left", wanted=lambda: False)))
    while len(hook.asked) < 2:
        await asyncio.sleep(0)
    assert await method.check(shown("more")) is Unproven.BUSY
    hook.go_on.set()
    assert all(isinstance(one, Identity) for one in await asyncio.gather(*checks))
    assert await left is Unproven.LEFT
    assert hook.most_under_way == 2
    assert len(hook.asked) == 3
    await method.close()


async def test_large_connects_wait_within_a_bound_of_their_own(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqtt_proxy.access.credentials.LARGE_BYTES_MAX", 5_000)
    hook.go_on.clear()
    method, _ = method_for(hook, http_concurrent_max=1, http_waiting_max=9)
    large = asyncio.ensure_future(method.check(shown("large", size_bytes=3_000)))
    await asyncio.sleep(0)
    assert await method.check(shown("more", size_bytes=3_000)) is Unproven.BUSY
    small = asyncio.ensure_future(method.check(shown("small", size_bytes=900)))
    hook.go_on.set()
    assert all(isinstance(one, Identity) for one in await asyncio.gather(large, small))
    assert isinstance(await method.check(shown("more", size_bytes=3_000)), Identity)
    await method.close()


@pytest.mark.parametrize("content", [b"", b"  \n", b"two\nlines", b"\xff"])
def test_invalid_secrets(tmp_path: Path, content: bytes) -> None:
    """A missing file included."""
    path = tmp_path / "secret"
    config = AccessConfig(http_url="http://127.0.0.1/", http_secret_file=path)
    with pytest.raises(HookError):
        HttpMethod(config, clock=ManualClock())
    path.write_bytes(content)
    with pytest.raises(HookError):
        HttpMethod(config, clock=ManualClock())
