"""A whole installation in this process with its console, and somebody who has signed in."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from broker.config import BrokerConfig
from console.config import ConsoleConfig
from lightmq.configuration import Configuration, UpConfig
from lightmq.servers.all_in_one import AllInOne
from mqtt_proxy.config import ProxyConfig

RULES = """\
user boss
role admin
user watch
role monitor
user etl
topic readwrite plant/#
"""
KEYS = ("boss:secret-of-boss", "watch:secret-of-watch", "etl:secret-of-etl")


class ConsolePage:
    """Somebody's browser: cookies, the token against cross-site requests, and the page's own origin."""

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str) -> None:
        self.http = http
        self.url = url
        self.token = token
        self.csrf = ""

    async def sign_in(self, **shown: str) -> dict[str, Any]:
        """Sign in with what is shown, else with the token of the first start."""
        async with self.http.post("/api/v1/session", json=shown or {"token": self.token}) as answer:
            assert answer.status == 200, await answer.text()
            told: dict[str, Any] = await answer.json()
        self.csrf = told["csrf"]
        return told

    async def ask(self, path: str, method: str = "GET", status: int = 200, **more: Any) -> Any:
        """The JSON of an answer with this status."""
        headers = {"X-CSRF-Token": self.csrf, **more.pop("headers", {})}
        async with self.http.request(method, f"/api/v1{path}", headers=headers, **more) as answer:
            text = await answer.text()
            assert answer.status == status, (path, answer.status, text)
            return await answer.json(content_type=None) if text else None


@asynccontextmanager
async def console_page(folder: Path, *, rules: bool = False, console: ConsoleConfig | None = None,
                       host: str = "127.0.0.1") -> AsyncIterator[ConsolePage]:  # fmt: skip
    """Start everything; nobody is signed in yet. `rules`: with an access list and the keys above."""
    broker = BrokerConfig()
    if rules:
        (folder / "rules").write_text(RULES)
        broker = dataclasses.replace(broker, access_keys=KEYS, access_list=folder / "rules")
    everything = AllInOne(
        Configuration(
            up=UpConfig(data_directory=folder / "data", host=host, remoting_port=0, admin_port=0),
            proxy=ProxyConfig(host="127.0.0.1", port=0), broker=broker, console=console or ConsoleConfig(),
        )
    )  # fmt: skip
    await everything.start()
    try:
        url = f"http://127.0.0.1:{everything.ports()['admin']}"
        token = everything.notes().get("console_token", "")
        async with aiohttp.ClientSession(url, cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
            yield ConsolePage(http, url, token)
    finally:
        await everything.stop()
