"""Every page of every deployable, with every kind of key and with none, on loopback and at another address.

With an access list the answer is the same on both; pages without a key say nothing but yes or no.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from broker.config import BrokerConfig
from controller.config import ControllerConfig
from lightmq.configuration import Configuration, LogsConfig, UpConfig
from lightmq.servers.all_in_one import AllInOne
from lightmq.servers.parts import bridge_part, broker_part, controller_part, proxies_part, proxy_part
from mqtt_bridge.config import BridgeConfig, ConnectionConfig, RuleConfig
from mqtt_proxy.config import ListenConfig, ProxyConfig
from remoting.access.rights import PAGES
from tests.support.addresses import own_address

RULES = """\
user node
role broker broker-a
user edge
role proxy
user prometheus
role monitor
user boss
role admin
user etl
topic readwrite #
"""
SECRETS = {name: f"secret-of-{name}" for name in ("node", "edge", "prometheus", "boss", "etl")}
KEYS = tuple(f"{name}:{secret}" for name, secret in SECRETS.items())
OPEN = {page for page, right in PAGES.items() if right is None}
SHOWN = [page for page in PAGES if " " not in page]
EVERYWHERE = "0.0.0.0"
ASKERS = {
    "nobody": {}, "wrong": {"boss": "guessed"},
    **{name: {name: SECRETS[name]} for name in ("prometheus", "boss", "etl", "edge")},
}  # fmt: skip


def expected(asker: str, page: str) -> int:
    """The status that the list demands."""
    if page in OPEN or asker == "boss" or (asker, page) == ("prometheus", "/metrics"):
        return 200
    return 401 if asker in ("nobody", "wrong") else 403


def basic(key: str, secret: str) -> dict[str, str]:
    """The header of basic authentication."""
    return {"Authorization": "Basic " + base64.b64encode(f"{key}:{secret}".encode()).decode()}


async def judged(port: int, address: str) -> None:
    """Every page with every key. A part that is not ready answers 503."""
    async with aiohttp.ClientSession(f"http://{address}:{port}") as http:
        for asker, shown in ASKERS.items():
            (key, secret) = next(iter(shown.items()), ("", ""))
            headers = basic(key, secret) if key else {}
            for page in SHOWN:
                async with http.get(page, headers=headers) as answer:
                    content = await answer.text()
                status = 200 if page == "/readyz" and answer.status == 503 else answer.status
                assert status == expected(asker, page), (asker, page)
                if status != 200 or page in OPEN:
                    assert "rocketmq_" not in content, (asker, page)
                if page == "/readyz":
                    knows = asker in ("boss", "prometheus")
                    assert ("parts" in json.loads(content)) is knows, asker
        async with http.get(
            "/metrics", headers={"Authorization": f"Bearer prometheus:{SECRETS['prometheus']}"}
        ) as answer:
            assert answer.status == 200
            assert "rocketmq_admin_requests_refused_total" in await answer.text()


async def judge(port: int) -> None:
    """On loopback, and at another address of this machine where it has one."""
    await judged(port, "127.0.0.1")
    address = own_address()
    if address is not None:
        await judged(port, address)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules"
    path.write_text(RULES)
    for name in ("node", "edge"):
        file = tmp_path / name
        file.write_text(f"{name}:{SECRETS[name]}\n")
        file.chmod(0o600)
    return path


@pytest.fixture
async def cluster(rules: Path, tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """A controller and a broker; their pages are checked, then other parts may connect to them."""
    common: dict[str, Any] = {
        "access_keys": KEYS,
        "access_list": rules,
        "admin_host": EVERYWHERE,
        "admin_port": 0,
        "port": 0,
    }
    controller = controller_part(ControllerConfig(data_directory=tmp_path / "controller", **common))
    await controller.start()
    address = f"127.0.0.1:{controller.ports()['remoting']}"
    broker = broker_part(
        BrokerConfig(
            data_directory=tmp_path / "broker", controllers=(address,), access_key_file=tmp_path / "node", **common
        )
    )
    await broker.start()
    try:
        for part in (controller, broker):
            await judge(part.ports()["admin"])
        yield address, f"127.0.0.1:{broker.ports()['remoting']}"
    finally:
        await broker.stop()
        await controller.stop()


async def test_controllers_brokers_and_proxies(cluster: tuple[str, str], rules: Path, tmp_path: Path) -> None:
    """A proxy's users are no administrators: it has keys for its pages."""
    config = ProxyConfig(
        host="127.0.0.1", port=0, admin_host=EVERYWHERE, admin_port=0, controllers=cluster[:1],
        access_key_file=tmp_path / "edge", admin_access_keys=KEYS, admin_access_list=rules,
    )  # fmt: skip
    proxy = proxy_part(config)
    await proxy.start()
    try:
        await judge(proxy.ports()["admin"])
    finally:
        await proxy.stop()


async def test_several_proxies_and_their_supervisor(cluster: tuple[str, str], rules: Path, tmp_path: Path) -> None:
    """The process that starts them has pages, and so has each of them."""
    config = ProxyConfig(
        host="127.0.0.1", port=0, admin_host=EVERYWHERE, admin_port=0, broker=cluster[1],
        access_key_file=tmp_path / "edge", admin_access_keys=KEYS, admin_access_list=rules,
        listen=ListenConfig(processes=1),
    )  # fmt: skip
    pool = proxies_part(config, LogsConfig())
    await pool.start()
    try:
        port = pool.ports()["admin"]
        await judge(port)
        shown = basic("boss", SECRETS["boss"])
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"http://127.0.0.1:{port}/status", headers=shown) as answer,
        ):
            (one,) = (await answer.json())["proxies"]
        await judge(one["admin"])
    finally:
        await pool.stop()


async def test_bridges(rules: Path) -> None:
    peer = ConnectionConfig(name="cloud", host="127.0.0.1", port=1, rules=(RuleConfig(filter="#"),))
    bridge = bridge_part(
        BridgeConfig(
            name="here", admin_host=EVERYWHERE, admin_port=0, broker="127.0.0.1:1", connections=(peer,),
            admin_access_keys=KEYS, admin_access_list=rules,
        )
    )  # fmt: skip
    await bridge.start()
    try:
        await judge(bridge.ports()["admin"])
    finally:
        await bridge.stop()


@pytest.mark.parametrize("part", ["broker", "controller"])
async def test_everything_in_one_process(rules: Path, tmp_path: Path, part: str) -> None:
    """Whichever part names the list; the keys are the broker's."""
    parts = {"broker": BrokerConfig(access_keys=KEYS), "controller": ControllerConfig()}
    named = {**parts, part: type(parts[part])(**{**vars(parts[part]), "access_list": rules})}
    everything = AllInOne(
        Configuration(
            up=UpConfig(data_directory=tmp_path / "data", host=EVERYWHERE, remoting_port=0, admin_port=0),
            proxy=ProxyConfig(host="127.0.0.1", port=0), broker=named["broker"], controller=named["controller"],  # type: ignore[arg-type]
        )
    )  # fmt: skip
    await everything.start()
    try:
        await judge(everything.ports()["admin"])
    finally:
        await everything.stop()
