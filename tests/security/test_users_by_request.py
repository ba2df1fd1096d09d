"""Users created by requests at the broker, over sockets: by MQTT they may do at once what their rules allow."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from broker.config import BrokerConfig
from lightmq.configuration import Configuration, UpConfig
from lightmq.servers.all_in_one import AllInOne
from mqtt_proxy.config import AccessConfig, ProxyConfig
from remoting.client.connection import dial
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.signature import Signer
from tests.security.raw_client import RawClient

SECRET = b"ann-secret"
DEADLINE_S = 20


def installation(folder: Path) -> AllInOne:
    """One whose operator is the key `ops`, and whose users are the broker's."""
    (folder / "rules").write_text("user ops\nrole admin\n")
    (folder / "acl").write_text("user ann\ntopic deny plant/secret\n")
    proxy = ProxyConfig(
        host="127.0.0.1", port=0, acl_file=folder / "acl", access=AccessConfig(broker_users=True)
    )  # fmt: skip
    broker = BrokerConfig(access_list=folder / "rules", access_keys=("ops:the-secret",))
    up = UpConfig(data_directory=folder / "data", remoting_port=0, admin_port=0)
    return AllInOne(Configuration(up=up, proxy=proxy, broker=broker))


async def test_a_user_of_the_broker_logs_in_by_mqtt_with_its_rules(tmp_path: Path) -> None:
    running = installation(tmp_path)
    await running.start()
    ports = running.ports()
    connection = await dial(f"127.0.0.1:{ports['remoting']}")

    async def ask(code: int, body: object, key: str = "ops", secret: str = "the-secret", **fields: str) -> int:
        command = Command(code, fields=fields, body=json.dumps(body).encode())
        Signer(key, secret).sign(command)
        return (await connection.request(command)).code

    async def granted(topic_filter: str) -> bool:
        """Whether a new connection of the user gets the subscription; False while it is refused."""
        client = await RawClient.connect(ports["mqtt"], "c", "ann", SECRET)
        try:
            return client.connack.code == 0 and await client.subscribe(topic_filter) < 0x80
        finally:
            await client.close()

    async def until(topic_filter: str, *, allowed: bool) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await granted(topic_filter) is not allowed:  # the proxy polls every second
                await asyncio.sleep(0.05)

    try:
        assert not await granted("plant/1"), "no such user yet"
        assert await ask(Code.AUTH_CREATE_USER, {"password": SECRET.decode()}, username="ann") == ResponseCode.SUCCESS
        entry = {"resource": "Topic:plant", "actions": ["Pub", "Sub"], "decision": "Allow"}
        rules = {"policies": [{"entries": [entry]}]}
        assert await ask(Code.AUTH_CREATE_ACL, rules, subject="User:ann") == ResponseCode.SUCCESS
        await until("plant/1", allowed=True)
        assert not await granted("plant/secret"), "a deny of the proxy's list applies as well"
        assert not await granted("other/1")
        fields = {"a": "p", "b": "other", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
        refused = await ask(Code.SEND_MESSAGE_V2, "x", "ann", SECRET.decode(), **fields)
        assert refused == ResponseCode.NO_PERMISSION
        sent = await ask(Code.SEND_MESSAGE_V2, "x", "ann", SECRET.decode(), **(fields | {"b": "plant"}))
        assert sent == ResponseCode.SUCCESS
        assert await ask(Code.AUTH_UPDATE_USER, {"userStatus": "disable"}, username="ann") == ResponseCode.SUCCESS
        assert await ask(Code.SEND_MESSAGE_V2, "x", "ann", SECRET.decode(), **fields) == ResponseCode.NO_PERMISSION
        assert not await granted("plant/1"), "the broker checks the password of each CONNECT"
    finally:
        await connection.close()
        await running.stop()
