"""An access list at the broker: each key reads and writes what its rules allow, by every kind of request."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection
from remoting.protocol.bodies.pull_body import QueueBoundsRequest, encode_bounds_request
from remoting.protocol.bodies.session_body import SessionOpen, encode
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from remoting.transport.signature import Signer
from tests.processes.rig import ROOT, Client, Server

RULES = """\
topic read public/#
user etl
topic read plant/#
topic write plant/cmd/#
user boss
role admin
user edge
role proxy
"""
KEYS = {"etl": "one", "boss": "two", "edge": "three"}
NO = ResponseCode.NO_PERMISSION


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "rules").write_text(RULES)
    keys = ",".join(f"{key}:{secret}" for key, secret in KEYS.items())
    settings = (f"broker.access_list={folder / 'rules'}", f"broker.access_keys={keys}")
    made = Server(folder / "data", *(word for setting in settings for word in ("--set", setting)))
    made.start()
    try:
        client = Client(made, "device")
        for topic in ("plant/1", "secret/1", "public/1"):
            client.client.publish(topic, b"x", qos=1).wait_for_publish(10)
        client.client.disconnect()
        yield made
    finally:
        made.kill_if_running()


def ask(server: Server, key: str | None, command: Command, secret: str | None = None) -> Command:
    signer = Signer(key, secret or KEYS[key]) if key is not None else None
    with BlockingConnection.dial(f"127.0.0.1:{server.ports['remoting']}", 10_000, signer=signer) as connection:
        return connection.request(command)


def bounds(topic_filter: str) -> Command:
    return Command(RequestCode.QUEUE_BOUNDS, body=encode_bounds_request(QueueBoundsRequest(filter=topic_filter)))


def publish(topic: bytes) -> Command:
    return Command(RequestCode.APPEND_MANY, body=b"".join([encode_mqtt_image(topic, b"x", 1, 0, b"etl")]))


def open_session() -> Command:
    return Command(RequestCode.SESSION_OPEN, body=encode(SessionOpen("victim", True, None, 0)))


@pytest.mark.parametrize(
    ("key", "command", "code"),
    [
        (None, bounds("public/1"), ResponseCode.SUCCESS),
        (None, bounds("plant/1"), NO),
        ("etl", bounds("plant/#"), ResponseCode.SUCCESS),
        ("etl", bounds("secret/1"), NO),
        ("etl", bounds("#"), ResponseCode.SUCCESS),  # wider than its rules: what it reads there is filtered
        ("etl", bounds("secret/#"), NO),
        ("etl", publish(b"plant/cmd/1"), ResponseCode.SUCCESS),
        ("etl", publish(b"plant/1"), NO),
        ("etl", open_session(), NO),
        ("etl", Command(RequestCode.CLUSTER_STATUS), NO),
        ("edge", publish(b"secret/1"), ResponseCode.SUCCESS),
        ("boss", Command(RequestCode.CLUSTER_STATUS), ResponseCode.SUCCESS),
        ("boss", bounds("plant/1"), NO),
    ],
)
def test_each_key_has_its_rules(server: Server, key: str | None, command: Command, code: int) -> None:
    command = Command(command.code, fields=dict(command.fields), body=command.body)
    reply = ask(server, key, command)
    assert reply.code == code, reply.remark


def test_a_claimed_key_is_proved_on_this_machine_too(server: Server) -> None:
    reply = ask(server, "boss", Command(RequestCode.CLUSTER_STATUS), secret="guessed")
    assert reply.code == NO
    assert "signature" in (reply.remark or "")


def test_the_command_line_shows_a_key(server: Server, tmp_path: Path) -> None:
    """Without a key the topics of `anonymous`; with one those of its rules."""
    key_file = tmp_path / "key"
    key_file.touch(mode=0o600)
    key_file.write_text(f"etl:{KEYS['etl']}\n")
    command = [sys.executable, "-m", "lightmq", "topics", "--server"]
    command += [f"127.0.0.1:{server.ports['remoting']}", "--json"]
    shown = {}
    for options in ((), ("--access-key-file", str(key_file))):
        finished = subprocess.run([*command, *options], capture_output=True, text=True, check=True, cwd=ROOT)
        shown[bool(options)] = {topic for topic in ("public", "plant", "secret") if f'"{topic}"' in finished.stdout}
        json.loads(finished.stdout.splitlines()[0])
    assert shown == {False: {"public"}, True: {"plant"}}
