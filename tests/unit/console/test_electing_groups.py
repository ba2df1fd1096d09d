"""A group that elects its master itself, in the console at a name server: `console.roles`, `console.api.brokers`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from broker.config import BrokerConfig, ReplicationConfig
from console import roles
from console.cluster import BrokerGroupsView
from console.config import ConsoleConfig
from console.roles import broker_rows
from controller.config import ControllerConfig
from lightmq.servers.parts import Part, broker_part, controller_part
from remoting.client.connection import dial
from tests.support.console_rig import ConsolePage
from tests.support.ports import free_port


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[tuple[Part, list[Part]]]:
    """A name server with the console, and three brokers that elect their master."""
    key = tmp_path / "key"
    key.write_text("console:secret-of-console\n")
    key.chmod(0o600)
    console = ConsoleConfig(access_key_file=key)
    controller = controller_part(ControllerConfig(data_directory=tmp_path / "c", port=0, admin_port=0), console)
    await controller.start()
    address = f"127.0.0.1:{controller.ports()['remoting']}"
    ports = [free_port() for _ in range(3)]
    members = tuple(f"n{at}@127.0.0.1:{port}" for at, port in enumerate(ports, 1))
    replication = ReplicationConfig(enabled=True, mode="dledger", members=members, port=0, in_sync_min=1)
    brokers = [
        broker_part(
            BrokerConfig(
                data_directory=tmp_path / f"b{at}", port=port, admin_port=0, controllers=(address,),
                replication=replication,
            ),
            console,
        )
        for at, port in enumerate(ports, 1)
    ]  # fmt: skip
    try:
        await asyncio.gather(*(each.start() for each in brokers))
        yield controller, brokers
    finally:
        for part in (*brokers, controller):
            await part.stop()


async def row_when(page: ConsolePage, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The group, once it is as it should be."""
    async with asyncio.timeout(60):
        while True:
            found: dict[str, Any] | None = next(iter((await page.ask("/brokers"))["items"]), None)
            if found is not None and holds(found):
                return found
            await asyncio.sleep(0.02)


async def test_who_leads_whom_and_another_master(parts: tuple[Part, list[Part]]) -> None:
    """Members, term, who has everything, what a master needs; the role is handed over by the broker that has it."""
    controller, _brokers = parts
    url = f"http://127.0.0.1:{controller.ports()['admin']}"
    async with aiohttp.ClientSession(url, cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        page = ConsolePage(http, url, controller.notes()["console_token"])
        await page.sign_in()
        row = await row_when(page, lambda row: row["state"] == "ok" and len(row["replicas"]) == 3)
        assert (row["mode"], row["needed"], row["sync_state_set"]) == ("dledger", 2, [1, 2, 3])
        assert [each["role"] for each in row["replicas"]].count("master") == 1
        shown = await page.ask(f"/brokers/{row['name']}")
        assert all(each["log_end"] is not None and each["epochs"] for each in shown["replicas"])
        other = next(each["id"] for each in row["replicas"] if each["role"] == "replica")
        await page.ask(f"/brokers/{row['name']}/transfer", "POST", 409, json={"to": row["master"]})
        await page.ask(f"/brokers/{row['name']}/transfer", "POST", 400, json={"to": 9})
        moved = await page.ask(f"/brokers/{row['name']}/transfer", "POST", json={"to": other})
        assert (moved["master"], moved["epoch"] > row["epoch"]) == (other, True)
        after = await row_when(page, lambda row: row["master"] == other and row["state"] == "ok")
        assert after["epoch"] >= moved["epoch"]


async def test_a_member_that_does_not_answer_is_not_waited_for(
    parts: tuple[Part, list[Part]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is what the others say; where nobody answers in time, its master is shown as what is registered."""
    controller, _brokers = parts
    view = BrokerGroupsView(dial, lambda: (f"127.0.0.1:{controller.ports()['remoting']}",))
    try:
        async with asyncio.timeout(60):
            while not (rows := await broker_rows(view, None)) or rows[0]["state"] != "ok":
                await asyncio.sleep(0.02)
        monkeypatch.setattr(roles, "LOOK_S", 0.0)
        (row,) = await broker_rows(view, None)
        assert (row["state"], row["mode"], row["address"]) == ("alone", None, rows[0]["address"])
    finally:
        await view.close()
