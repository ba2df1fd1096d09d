"""Who may only look sees in every view what an administrator sees, by token and by key: `console.cluster`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from console.api.table import OPERATIONS
from console.tokens import MONITOR, TokenFile
from remoting.client.connection import connect
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.support.console_rig import ConsolePage, console_page

CONNECT = bytes.fromhex("101300044d5154540402003c00077072657373 2d37".replace(" ", ""))
"""MQTT 3.1.1, client id `press-7`, clean session."""
PLACES = {
    "/clients/{id}": "/clients/press-7",
    "/topics/{topic}": "/topics/plant%2F7",
    "/groups/{group}": "/groups/billing",
    "/brokers/{name}": "/brokers/broker-a",
    "/trace": "/trace?topic=plant%2F7&offset=0",
}
"""Paths that need to be told what to show."""
VARYING = frozenset({
    "time_ms", "uptime_s", "lag_s", "updated_ms", "since_ms", "committed_ms", "keep_alive_s", "used", "rate", "total",
    "log_end", "messages_in_rate", "messages_out_rate", "bytes_in_rate", "disk", "log", "free", "confirm_lag_bytes",
    "flush_behind_bytes", "refusals_rate", "searched_until", "lag_max", "lag_max_s", "groups", "alarms", "value",
})  # fmt: skip
"""Members that change by themselves from one look to the next."""
VIEWS = [PLACES.get(one.path, one.path) for one in OPERATIONS if one.method == "GET"]


@asynccontextmanager
async def furnished(page: ConsolePage) -> AsyncIterator[None]:
    """Something in every list, and a device that is connected."""
    for number in range(2):
        body = {"topic": "plant/7", "payload": str(number), "retain": True}
        await page.ask("/messages", "POST", json=body)
    await page.ask("/messages", "POST", json={"topic": "plant/7", "payload": "later", "delay_ms": 3_600_000})
    async with page.http.get("/status") as answer:
        ports = (await answer.json())["ports"]
    connection = await connect("127.0.0.1", int(ports["remoting"]))
    fields = {"consumerGroup": "billing", "topic": "plant", "queueId": "0", "commitOffset": "0"}
    assert (await connection.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields))).code == 0
    await connection.close()
    await page.ask("/retained/plant%2F7", "DELETE")
    await page.ask("/messages", "POST", json={"topic": "plant/8", "payload": "kept", "retain": True})
    reader, writer = await asyncio.open_connection("127.0.0.1", int(ports["mqtt"]))
    writer.write(CONNECT)
    assert (await reader.readexactly(4))[3] == 0
    try:
        yield
    finally:
        writer.close()
        await writer.wait_closed()


def steady(shown: Any) -> Any:
    """What is shown, without what changes by itself."""
    if isinstance(shown, dict):
        return {name: steady(value) for name, value in shown.items() if name not in VARYING}
    return [steady(one) for one in shown] if isinstance(shown, list) else shown


async def test_a_read_only_token_sees_every_view(tmp_path: Path) -> None:
    async with console_page(tmp_path) as page:
        await page.sign_in()
        async with furnished(page):
            wanted = {view: await page.ask(view) for view in VIEWS}
            for view in ("/clients", "/topics", "/retained", "/timers", "/groups", "/audit", "/quotas", "/brokers"):
                assert wanted[view]["items"], view
            told = await page.sign_in(token=TokenFile(tmp_path / "data").renew(MONITOR))
            assert told["role"] == "monitor"
            for view in VIEWS:
                assert steady(await page.ask(view)) == steady(wanted[view]), view
            refused = await page.ask("/messages", "POST", 403, json={"topic": "plant/7", "payload": "x"})
            assert refused["reason"]


@pytest.mark.parametrize("shown", ["token", "key"])
async def test_with_an_access_list_it_sees_all_but_messages(tmp_path: Path, shown: str) -> None:
    """Messages are for those whose rules allow their topics."""
    async with console_page(tmp_path, rules=True) as page:
        await page.sign_in()
        if shown == "token":
            await page.sign_in(token=TokenFile(tmp_path / "data").renew(MONITOR))
        else:
            await page.sign_in(user="watch", secret="secret-of-watch")
        for view in VIEWS:
            if "{" in view or view.startswith(("/clients/", "/topics/", "/groups/", "/trace")):
                continue  # there is nothing yet that could be shown
            await page.ask(view)
        await page.ask("/groups/none", status=404)
        await page.ask("/clients/none", status=404)
        await page.ask("/topics/plant%2F7", status=403)
