"""The console at a controller and at a broker of a cluster, asked over sockets with a key: `console.cluster`,
`console.audit`.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

from broker.config import BrokerConfig
from console.config import ConsoleConfig, ConsoleTlsConfig
from controller.config import ControllerConfig
from lightmq import certificates
from lightmq.cli.admin.inspect_server import audit
from lightmq.cli.connections import Security, ServerTarget
from lightmq.servers.parts import Part, bridge_part, broker_part, controller_part
from mqtt_bridge.config import BridgeConfig, ConnectionConfig, RuleConfig
from remoting.client.connection import signing_dial
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from runtime.clock import SystemClock
from tests.support.console_rig import ConsolePage

RULES = """\
user console
role admin
role proxy
user node
role broker broker-a
user boss
role admin
user etl
topic readwrite plant/#
"""
SECRETS = {name: f"secret-of-{name}" for name in ("console", "node", "boss", "etl")}


def key_file(folder: Path, name: str) -> Path:
    file = folder / name
    file.write_text(f"{name}:{SECRETS[name]}\n")
    file.chmod(0o600)
    return file


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[tuple[Part, Part]]:
    (tmp_path / "rules").write_text(RULES)
    console = ConsoleConfig(access_key_file=key_file(tmp_path, "console"))
    keys = tuple(f"{name}:{secret}" for name, secret in SECRETS.items())
    common = {"access_keys": keys, "access_list": tmp_path / "rules", "port": 0, "admin_port": 0}
    controller = controller_part(ControllerConfig(data_directory=tmp_path / "controller", **common), console)
    await controller.start()
    address = f"127.0.0.1:{controller.ports()['remoting']}"
    broker = broker_part(
        BrokerConfig(
            data_directory=tmp_path / "broker",
            controllers=(address,),
            access_key_file=key_file(tmp_path, "node"),
            **common,
        ),
        console,
    )
    await broker.start()
    try:
        yield controller, broker
    finally:
        await broker.stop()
        await controller.stop()


async def test_acts_at_brokers_and_controllers_are_one_list(
    parts: tuple[Part, Part], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the console page by page, and in the command line's."""
    ports = [part.ports()["remoting"] for part in parts]
    dial = signing_dial(key_file(tmp_path, "boss"), None)
    for number in range(3):
        for port, code, fields in (
            (ports[0], Code.PUT_KV_CONFIG, {"namespace": "n", "key": f"k{number}", "value": "v"}),
            (ports[1], Code.SESSION_END, {"client": f"c{number}"}),
        ):
            connection = await dial(f"127.0.0.1:{port}")
            await connection.request(Command(code, fields=fields), 5_000)
            await connection.close()
    wanted = [
        (server, target)
        for number in (2, 1, 0)
        for server, target in (("broker-a", f"client=c{number}"), ("controller n1", f"namespace=n key=k{number}"))
    ]
    for part in parts:
        url = f"http://127.0.0.1:{part.ports()['admin']}"
        async with aiohttp.ClientSession(url, cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
            page = ConsolePage(http, url, part.notes()["console_token"])
            await page.sign_in()
            for limit in (1, 4, 200):
                assert await all_acts(page, limit) == wanted
            await page.ask("/audit?cursor=nonsense", status=400)
    target = ServerTarget(server=f"127.0.0.1:{ports[0]}", security=Security(access_key_file=key_file(tmp_path, "boss")))
    await asyncio.to_thread(audit, json_output=True, target=target)
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [(row["server"], row["target"]) for row in printed if "act" in row] == wanted
    assert {(row["who"], row["role"]) for row in printed if "act" in row} == {("boss", "admin")}


async def test_the_record_names_who_has_signed_in_and_believes_only_consoles(
    parts: tuple[Part, Part], tmp_path: Path
) -> None:
    """A token's act has the token's name; a key that may not act for others is recorded by its own."""
    controller, broker = parts
    url = f"http://127.0.0.1:{controller.ports()['admin']}"
    async with aiohttp.ClientSession(url, cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        page = ConsolePage(http, url, controller.notes()["console_token"])
        await page.sign_in()
        await page.ask("/sessions/one", "DELETE", 404)
        await page.sign_in(user="boss", secret=SECRETS["boss"])
        await page.ask("/sessions/two", "DELETE", 404)
        connection = await signing_dial(key_file(tmp_path, "boss"), None)(f"127.0.0.1:{broker.ports()['remoting']}")
        fields = {"client": "three", "actor": "somebody else", "actorRole": "admin", "actorHost": "10.0.0.1"}
        await connection.request(Command(Code.SESSION_END, fields=fields), 5_000)
        await connection.close()
        acts = (await page.ask("/audit"))["items"]
    assert [(act["target"], act["who"], act["address"]) for act in acts] == [
        ("client=three", "boss", "127.0.0.1"),
        ("client=two", "boss", "127.0.0.1"),
        ("client=one", "administrator", "127.0.0.1"),
    ]


async def all_acts(page: ConsolePage, limit: int) -> list[tuple[str, str]]:
    """Server and target of every act, over as many pages as there are."""
    found, cursor = [], ""
    while True:
        shown = await page.ask(f"/audit?limit={limit}&cursor={cursor}")
        assert shown["missing"] == {}
        assert len(shown["items"]) <= limit
        found += [(act["server"], act["target"]) for act in shown["items"]]
        cursor = shown["next"]
        if not cursor:
            return found


async def test_controllers_and_brokers_serve_it(parts: tuple[Part, Part]) -> None:
    """What a key may do is decided by the broker under that key's name."""
    for part in parts:
        url = f"http://127.0.0.1:{part.ports()['admin']}"
        async with aiohttp.ClientSession(url, cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
            page = ConsolePage(http, url, part.notes()["console_token"])
            assert (await page.sign_in())["role"] == "admin"
            (shown,) = (await page.ask("/brokers"))["items"]
            assert (shown["name"], shown["state"]) == ("broker-a", "alone")
            assert (await page.ask("/overview"))["mode"] == "cluster"
            await page.ask("/messages", "POST", json={"topic": "plant/1", "payload": "x"})
            assert (await page.sign_in(user="etl", secret=SECRETS["etl"]))["role"] == "client"
            await page.ask("/messages", "POST", json={"topic": "plant/1", "payload": "y"})
            await page.ask("/messages", "POST", 403, json={"topic": "other/1", "payload": "y"})
            assert (await page.sign_in(user="boss", secret=SECRETS["boss"]))["role"] == "admin"
            assert (await page.ask("/queues?search=none"))["items"] == []
            await page.ask("/messages", "POST", 403, json={"topic": "plant/1", "payload": "z"})


async def test_without_a_key_there_is_no_console(tmp_path: Path) -> None:
    part = controller_part(ControllerConfig(data_directory=tmp_path, port=0, admin_port=0), ConsoleConfig())
    await part.start()
    try:
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{part.ports()['admin']}") as http,
            http.get("/console/") as answer,
        ):
            assert (answer.status, part.notes()) == (404, {})
    finally:
        await part.stop()


async def test_the_port_speaks_tls_where_there_is_no_console(tmp_path: Path) -> None:
    """The certificate is the port's, so a part without a console has it too; an unusable one ends the start."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    certificates.make(tmp_path / "tls", ["127.0.0.1"], days=1, now=now)
    certificate, key = tmp_path / "tls" / certificates.CERTIFICATE, tmp_path / "tls" / certificates.KEY
    console = ConsoleConfig(tls=ConsoleTlsConfig(certificate=certificate, key=key))
    trusted = ssl.create_default_context(cafile=tmp_path / "tls" / certificates.AUTHORITY)
    controller = controller_part(ControllerConfig(data_directory=tmp_path / "data", port=0, admin_port=0), console)
    await controller.start()
    peer = ConnectionConfig(name="there", host="127.0.0.1", port=1, rules=(RuleConfig(filter="#"),))
    bridge = bridge_part(BridgeConfig(name="here", admin_port=0, broker="127.0.0.1:1", connections=(peer,)), console)
    await bridge.start()
    try:
        async with aiohttp.ClientSession() as http:
            for part in (controller, bridge):
                place = f"127.0.0.1:{part.ports()['admin']}/livez"
                async with http.get(f"https://{place}", ssl=trusted) as answer:
                    assert answer.status == 200
                with pytest.raises(aiohttp.ClientError):
                    await http.get(f"http://{place}")
    finally:
        await bridge.stop()
        await controller.stop()
    wrong = ConsoleConfig(tls=ConsoleTlsConfig(certificate=key, key=key))
    with pytest.raises(LocalMisuse, match=r"console\.tls"):
        controller_part(ControllerConfig(data_directory=tmp_path / "data", port=0, admin_port=0), wrong)
