"""Users and rules by request in a cluster: three controllers, two brokers, a proxy; all with access lists."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest

from remoting.client.connection import signing_dial
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from tests.processes.broker_group import BrokerGroup, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
SECRETS = {name: f"secret-of-{name}" for name in ("node", "edge", "boss", "controllers")}
ROLES = (
    "user node\nrole broker broker-a\nuser edge\nrole proxy\nuser boss\nrole admin\nuser controllers\nrole controller\n"
)
ANN_SECRET = "a-secret-nobody-may-read"


def key_of(folder: Path, name: str, secret: str = "") -> Path:
    """A key file."""
    file = folder / f"key-{name}"
    file.write_text(f"{name}:{secret or SECRETS[name]}\n")
    file.chmod(0o600)
    return file


def settings(part: str, **values: object) -> list[str]:
    """Arguments that set keys of a part."""
    return [word for name, value in values.items() for word in ("--set", f"{part}.{name.replace('__', '.')}={value}")]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerGroup]:
    """Everything started."""
    keys = ",".join(f"{name}:{secret}" for name, secret in SECRETS.items())
    listed = tmp_path / "rules"
    listed.write_text(ROLES)
    of_clients = tmp_path / "mqtt-rules"
    of_clients.write_text("")
    shared = {"access_keys": keys, "access_list": listed}
    made = BrokerGroup(
        tmp_path,
        controllers=3,
        brokers=2,
        in_sync_min=1,
        arguments={
            "controller": settings("controller", **shared, access_key_file=key_of(tmp_path, "controllers")),
            "broker": settings("broker", **shared, access_key_file=key_of(tmp_path, "node")),
            "proxy": settings(
                "proxy", access_key_file=key_of(tmp_path, "edge"), acl_file=of_clients, access__broker_users="true"
            ),
        },
    )
    for each in made.brokers:
        each.admin_key = f"boss:{SECRETS['boss']}"
    try:
        made.start()
        yield made
    finally:
        made.end()


def ask(port: int, key_file: Path, code: int, body: Any = None, **fields: str) -> Command | str:
    """The answer to one signed request, or why there was none."""

    async def asked() -> Command:
        connection = await signing_dial(key_file)(f"127.0.0.1:{port}")
        try:
            data = b"" if body is None else json.dumps(body).encode()
            return await connection.request(Command(code, fields=fields, body=data), 10_000)
        finally:
            await connection.close()

    try:
        return asyncio.run(asked())
    except (LightMQError, OSError) as error:
        return str(error)


def code_of(answer: Command | str) -> int | str:
    """The response code of an answer."""
    return answer.code if isinstance(answer, Command) else answer


def connack(port: int, secret: str) -> int:
    """The reason code of a CONNECT as ann."""
    results: list[int] = []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="ann-1", protocol=mqtt.MQTTv5)
    client.username_pw_set("ann", secret)
    client.on_connect = lambda _client, _data, _flags, reason, _properties: results.append(reason.value)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        until(lambda: results, "no CONNACK")
    finally:
        client.loop_stop()
        client.disconnect()
    return results[0]


def test_users_of_one_request_are_known_to_every_part_also_after_failovers(
    cluster: BrokerGroup, tmp_path: Path
) -> None:
    """Created at the master; name servers, the proxy, a new master and a new leader know them, and their end."""
    boss, ann = key_of(tmp_path, "boss"), key_of(tmp_path, "ann", ANN_SECRET)
    master = cluster.settle()
    port = master.ports["remoting"]

    def routes() -> list[int | str]:
        return [
            code_of(ask(each.port, ann, Code.GET_ROUTEINFO_BY_TOPIC, topic="orders"))
            for each in cluster.controllers
            if each.process is not None and each.process.poll() is None
        ]

    denied = routes()
    assert set(denied) == {ResponseCode.NO_PERMISSION}, denied
    user = {"username": "ann", "password": ANN_SECRET, "userType": "Normal"}
    rules = {"policies": [{"entries": [{"resource": "Topic:orders", "actions": ["Pub", "Sub"], "decision": "Allow"}]}]}
    replica = next(each for each in cluster.brokers if each is not master).ports["remoting"]
    for place in (port, port, replica):  # mqadmin sends it to every broker
        until(
            lambda place=place: code_of(ask(place, boss, Code.AUTH_CREATE_USER, user, username="ann")) == 0, "no user"
        )
        assert code_of(ask(place, boss, Code.AUTH_CREATE_ACL, rules, subject="User:ann")) == 0
    other = {**user, "password": "another"}
    assert code_of(ask(port, boss, Code.AUTH_CREATE_USER, other, username="ann")) == ResponseCode.INVALID_PARAMETER
    until(lambda: set(routes()) == {ResponseCode.TOPIC_NOT_EXIST}, f"controllers do not know ann: {routes()}")
    until(lambda: connack(cluster.proxy.ports["mqtt"], ANN_SECRET) == 0, "the proxy does not know ann")
    assert connack(cluster.proxy.ports["mqtt"], "wrong") != 0

    master.kill()
    began = time.monotonic()
    until(lambda: (found := cluster.master()) is not None and found is not master, "no new master")
    new = cluster.master()
    assert new is not None
    send = {"topic": "orders", "producerGroup": "g", "queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0"}
    topic = {"topic": "orders", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    until(lambda: code_of(ask(new.ports["remoting"], boss, Code.UPDATE_AND_CREATE_TOPIC, **topic)) == 0, "no topic")
    assert code_of(ask(new.ports["remoting"], ann, Code.SEND_MESSAGE, **send)) == 0, time.monotonic() - began
    assert code_of(ask(new.ports["remoting"], ann, Code.SEND_MESSAGE, **{**send, "topic": "else"})) == 16

    leaders = [each for each in cluster.controllers if _leads(each.port, boss)]
    assert len(leaders) == 1
    leaders[0].kill()
    port = new.ports["remoting"]
    until(lambda: code_of(ask(port, boss, Code.AUTH_DELETE_USER, username="ann")) == 0, "no leader took the change")
    until(lambda: set(routes()) == {ResponseCode.NO_PERMISSION}, f"controllers still know ann: {routes()}")
    assert code_of(ask(port, ann, Code.SEND_MESSAGE, **send)) == ResponseCode.NO_PERMISSION
    leaders[0].start()
    until(lambda: len(routes()) == 3 and set(routes()) == {ResponseCode.NO_PERMISSION}, "it did not learn of the end")
    shown = [each.log.read_text() for each in cluster.all]
    assert not any(ANN_SECRET in text for text in shown)


def _leads(port: int, key: Path) -> bool:
    answer = ask(port, key, Code.CONTROLLER_GET_METADATA_INFO)
    return isinstance(answer, Command) and answer.fields.get("isLeader") == "true"
