"""Bridges between a real Mosquitto and `lightmq up`, in both directions, with the recipes of the how-to.

Skipped, with a reason, where Mosquitto is neither installed nor can be fetched.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.rig import ROOT, Client, Server
from tests.support.mosquitto import Mosquitto, running

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

HOW_TO = (ROOT / "docs" / "howto" / "bridge.md").read_text()
BACK_S = 5.0
STATE = "$SYS/broker/connection/{}/state"
AWAY_S = 12.0
"""Long enough for the pauses between attempts to have grown to their limit."""


def recipe(language: str, number: int = 0) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```$", HOW_TO, re.MULTILINE | re.DOTALL)[number]


@pytest.fixture
def lightmq(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "here")
    server.start()
    yield server
    server.kill_if_running()


def bridge_lines(server: Server, *more: str) -> list[str]:
    """The how-to's `mosquitto.conf` for this server."""
    text = recipe("conf").replace("lightmq.example.org:1883", f"127.0.0.1:{server.port}")
    return [*text.splitlines(), "restart_timeout 1", *more]


def connected(mosquitto: Mosquitto, server: Server) -> str:
    """Wait until its bridge reports that it is connected; its client id."""
    watcher = Client(server, "watcher")
    watcher.subscribe(("$SYS/broker/connection/+/state", 1))
    try:
        watcher.until(lambda: b"1" in watcher.latest.values())
    except AssertionError as error:
        raise AssertionError(mosquitto.log.read_text()[-2_000:]) from error
    topic = next(topic for topic, state in watcher.latest.items() if state == b"1")
    watcher.close()
    return topic.split("/")[3]


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv50"])
def test_mosquitto_connects_with_the_recipe(tmp_path: Path, lightmq: Server, version: str) -> None:
    """Both directions and one topic in both, without a loop; retained messages stay retained; the state follows."""
    with running(tmp_path / "m", *bridge_lines(lightmq, f"bridge_protocol_version {version}")) as mosquitto:
        bridge_id = connected(mosquitto, lightmq)
        there, here = Client(mosquitto, "there"), Client(lightmq, "here")  # type: ignore[arg-type]  # has a port
        here.subscribe(("site/#", 1), ("shared/#", 1))
        there.subscribe(("commands/#", 1), ("shared/#", 1))
        there.publish("plant/1/temp", b"21")
        here.publish("commands/7/fan", b"on")
        here.until(lambda: here.latest.get("site/7/plant/1/temp") == b"21")
        there.until(lambda: there.latest.get("commands/fan") == b"on")
        there.publish("shared/a", b"from there", retain=True)
        here.publish("shared/b", b"from here", retain=True)
        here.until(lambda: {"shared/a", "shared/b"} <= here.latest.keys())
        there.until(lambda: {"shared/a", "shared/b"} <= there.latest.keys())
        # A looping message would arrive before these, which follow it on the same two connections.
        for number in range(3):
            there.publish(f"plant/{number}/end", b"x")
            here.publish(f"commands/7/{number}", b"x")
        here.until(lambda: "site/7/plant/2/end" in here.latest)
        there.until(lambda: "commands/2" in there.latest)
        for client in (here, there):
            shared = [message.topic for message in client.messages if message.topic.startswith("shared/")]
            assert sorted(shared) == ["shared/a", "shared/b"]
        assert_retained(lightmq, {"shared/a": b"from there", "shared/b": b"from here"})
        assert_retained(mosquitto, {"shared/a": b"from there", "shared/b": b"from here"})
        watcher = Client(lightmq, "later")
        watcher.subscribe((STATE.format(bridge_id), 1))
        watcher.until(lambda: watcher.latest.get(STATE.format(bridge_id)) == b"1")
        assert watcher.messages[0].retain
        mosquitto.kill()
        watcher.until(lambda: watcher.latest[STATE.format(bridge_id)] == b"0")
        for client in (watcher, there, here):
            client.close()


def assert_retained(server: Any, expected: dict[str, bytes]) -> None:
    client = Client(server, "asks")
    client.subscribe(("shared/#", 1))
    client.until(lambda: len(client.latest) == len(expected))
    assert client.latest == expected
    assert all(message.retain for message in client.messages)
    client.close()


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_our_bridge_connects_to_mosquitto_and_comes_back(tmp_path: Path, version: str) -> None:
    """With the how-to's file; Mosquitto is down until the pauses have grown, and is found again within seconds."""
    with running(tmp_path / "m", "persistence false") as mosquitto:
        text = recipe("toml").replace("mqtt.example.org", "127.0.0.1").replace("8883", str(mosquitto.port))
        text = re.sub(r"^(tls|username|password_file) = .*\n", "", text, flags=re.MULTILINE)
        file = tmp_path / "lightmq.toml"
        file.write_text(text.replace('name = "cloud"', f'name = "cloud"\nversion = "{version}"'))
        server = Server(tmp_path / "here", "--config", str(file))
        server.start()
        try:
            follow_both_ways(server, mosquitto, b"before")
            mosquitto.kill()
            away(AWAY_S, mosquitto.port)
            begun = time.monotonic()
            mosquitto.start()
            follow_both_ways(server, mosquitto, b"after")
            assert time.monotonic() - begun < BACK_S + 2  # the subscriptions and the messages take their time too
        finally:
            server.kill_if_running()


def away(seconds: float, port: int) -> None:
    """Let the port refuse connections for a while; there is no event to wait for."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
        time.sleep(min(left, 0.5))


def follow_both_ways(server: Server, mosquitto: Mosquitto, payload: bytes) -> None:
    """A message each way; the one to the server is repeated until the bridge has subscribed."""
    there, here = Client(mosquitto, "there"), Client(server, "here")  # type: ignore[arg-type]  # has a port
    there.subscribe(("site/#", 1))
    here.subscribe(("commands/#", 1))
    deadline = time.monotonic() + 30
    here.publish("plant/1/temp", payload)
    while here.latest.get("commands/fan") != payload:
        assert time.monotonic() < deadline, server.log.read_text()[-2_000:]
        there.publish("commands/7/fan", payload)
        time.sleep(0.1)
    there.until(lambda: there.latest.get("site/7/1/temp") == payload)
    there.close()
    here.close()
