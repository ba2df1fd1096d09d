"""The stack `ha` as processes: it elects masters, accepts messages, and continues without one of its brokers."""

from __future__ import annotations

import base64
import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest

from lightmq.certificates import AUTHORITY, CERTIFICATE, KEY, make
from runtime.clock import SystemClock
from tests.deploy.running import Moved, Running
from tests.deploy.stacks import COMPOSE, GIVEN, KEYS, containers
from tests.deploy.test_processes import PASSWORD, check_health, page, publish
from tests.processes.rig import ROOT, Server
from tests.support.ports import free_port

DEADLINE_S = 90.0
pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


class Stack:
    """All containers of the compose file."""

    def __init__(self, directory: Path) -> None:
        found = containers("ha.yaml")
        self.keys = {name: key_file(directory / f"key-{name}", line) for name, line in KEYS.items()}
        self.settings = found[0].stack
        secrets = {
            name: GIVEN[each["environment"]] for name, each in self.settings["secrets"].items() if "environment" in each
        }
        secrets["lightmq-users"] = users(directory / "users")
        self.authority, certificates = certificates_of(directory / "tls")
        secrets |= certificates
        moved = Moved(directory, secrets)
        listening = {}
        for each in found:
            if each.stage.name == "controller":
                name, remoting = f"{each.name}.controller:9876", free_port()
                moved.addresses[name] = f"127.0.0.1:{remoting}"
                moved.addresses[f"{name}@9877"] = f"127.0.0.1:{remoting}@{free_port()}"
                listening[each.name] = {"controller.port": remoting}
            elif each.stage.name == "broker":
                moved.addresses[each.environment["LIGHTMQ_BROKER__ADVERTISED_HOST"]] = "127.0.0.1"
        self.running = {each.name: Running(each, moved, listening.get(each.name)) for each in found}
        self.controllers = ",".join(moved.addresses[f"controller-{number}.controller:9876"] for number in range(3))

    def start(self) -> None:
        """All at once, as compose does: some wait for others."""
        with ThreadPoolExecutor(len(self.running)) as pool:
            list(pool.map(Running.start, self.running.values()))

    def cluster(self, *words: str) -> tuple[int, Any]:
        """`lightmq cluster … --json`: the exit status and the output."""
        return self.ask("cluster", *words, "--json")

    def ask(self, *words: str, key: str = "operators") -> tuple[int, Any]:
        """A command that connects to controllers and brokers with TLS and a key."""
        trusted = ["--tls", "--tls-ca", str(self.authority)]
        command = [
            *Server.python,
            *words,
            "--server",
            self.controllers,
            "--access-key-file",
            str(self.keys[key]),
            *trusted,
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()] or done.stderr

    def at(self, address: str) -> Running:
        """The broker that listens there."""
        port = int(address.rpartition(":")[2])
        return next(each for each in self.running.values() if each.ports.get("remoting") == port)

    def payloads(self, topic: str) -> list[str]:
        """The payloads of a topic, from its present master, once that has registered its route."""
        end = time.monotonic() + DEADLINE_S
        while True:
            status, rows = self.ask("tail", topic, "--offset", "0", "--json", key="applications")
            if status == 0:
                return [row["payload"] for row in rows]
            assert "knows no broker with a master" in rows, rows
            assert time.monotonic() < end, rows
            time.sleep(0.2)


def key_file(file: Path, line: str) -> Path:
    """A key file for commands."""
    file.write_text(line)
    file.chmod(0o600)
    return file


def certificates_of(folder: Path) -> tuple[Path, dict[str, str]]:
    """The files that `lightmq certs` makes for this machine: the authority, and the secrets of the containers."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    make(folder, ["127.0.0.1"], days=1, now=now)
    files = {"certificate": CERTIFICATE, "key": KEY, "ca": AUTHORITY}
    text = {name: (folder / file).read_text() for name, file in files.items()}
    return folder / AUTHORITY, {
        **{f"lightmq-tls-{name}": content for name, content in text.items()},
        **{f"lightmq-mqtt-{name}": text[name] for name in ("certificate", "key")},
    }


class Publisher:
    """A client of a proxy that publishes numbers and waits for each acknowledgement, across failovers."""

    def __init__(self, running: Running, authority: Path) -> None:
        self.acknowledged: list[str] = []
        self._changed = threading.Condition()
        self._settled: set[int] = set()
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "counter")
        self._client.tls_set(str(authority))
        self._client.username_pw_set("sensor", PASSWORD)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_publish = self._on_publish
        self._client.connect("127.0.0.1", running.ports["mqtt-tls"])
        self._client.loop_start()

    def _on_publish(self, _client: Any, _data: Any, mid: int, reason: Any, _properties: Any) -> None:
        assert not reason.is_failure
        with self._changed:
            self._settled.add(mid)
            self._changed.notify_all()

    def publish(self, count: int) -> None:
        """Publish this many more."""
        for _ in range(count):
            payload = str(len(self.acknowledged))
            mid = self._client.publish("plant/count", payload, 1).mid
            with self._changed:
                assert self._changed.wait_for(lambda mid=mid: mid in self._settled, DEADLINE_S), f"{payload} is lost"
            self.acknowledged.append(payload)

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def users(file: Path) -> str:
    """A password file with the user of the tests."""
    command = [*Server.python, "passwd", str(file), "sensor", "--stdin"]
    subprocess.run(command, input=PASSWORD, text=True, cwd=ROOT, check=True, capture_output=True)
    return file.read_text()


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A started stack that is ended after the test."""
    made = Stack(tmp_path)
    try:
        made.start()
        yield made
    finally:
        for each in made.running.values():
            each.kill_if_running()


def settled(stack: Stack) -> list[dict[str, Any]]:
    """The groups once every replica is in sync."""
    end = time.monotonic() + DEADLINE_S
    while True:
        status, told = stack.cluster("status")
        if status == 0 and [group["inSync"] for group in told[0]["groups"]] == [3]:
            groups: list[dict[str, Any]] = told[0]["groups"]
            return groups
        assert time.monotonic() < end, told
        time.sleep(0.5)


def until_master(stack: Stack, former: dict[str, Any]) -> dict[str, Any]:
    """The group once another broker is its master."""
    end = time.monotonic() + DEADLINE_S
    while True:
        _, told = stack.cluster("status")
        group = told[0]["groups"][0] if isinstance(told, list) else {}
        if group and group["state"] != "no master" and group["epoch"] > former["epoch"]:
            found: dict[str, Any] = group
            return found
        assert time.monotonic() < end, told
        time.sleep(0.2)


def test_the_stack_survives_the_loss_of_two_masters(stack: Stack) -> None:
    """Three brokers in sync; with one of them killed messages are taken, and what is acknowledged is on two disks.

    That it is there is shown by killing the next master too: the last broker has every acknowledged message. It shows
    them all once a second broker is back, the one that was killed first and lacks the newest.
    """
    (first,) = settled(stack)
    assert (first["group"], first["inSync"], first["warning"]) == ("broker-a", 3, None)
    assert first["promise"].startswith("acknowledged = on disk at 2 of 3 brokers")
    for each in stack.running.values():
        shown = [page(each, name, stack.authority) for name in ("/livez", "/startupz")]
        assert shown == [200, 200], each.container.name
        check_health(each)
    for name in ("proxy-0", "proxy-1"):
        publish(stack.running[name].ports["mqtt-tls"], stack.authority)
    (epochs, rows) = stack.cluster("epochs", "broker-a")
    assert epochs == 0
    assert {row["id"] for row in rows} == {1, 2, 3}
    publisher = Publisher(stack.running["proxy-0"], stack.authority)
    publisher.publish(20)
    master = stack.at(first["address"])
    assert "acknowledged = on disk at 2 brokers at least" in master.log.read_text()
    master.kill()
    publisher.publish(30)  # one of three is dead: writes continue
    publisher.close()
    second = until_master(stack, first)
    assert second["inSync"] == 2
    stack.at(second["address"]).kill()
    last = until_master(stack, second)
    end = time.monotonic() + DEADLINE_S
    assert last["address"] not in (first["address"], second["address"])
    assert set(stack.payloads("plant/count")) <= set(
        publisher.acknowledged
    )  # alone it confirms nothing, but still reads
    stack.at(first["address"]).start()
    while len(set(survived := stack.payloads("plant/count"))) < len(publisher.acknowledged):
        assert time.monotonic() < end, survived
        time.sleep(0.2)
    assert list(dict.fromkeys(survived)) == publisher.acknowledged  # QoS 1: perhaps repeated, never lost
    stack.at(second["address"]).start()
    assert settled(stack)[0]["epoch"] >= last["epoch"]
    publish(stack.running["proxy-1"].ports["mqtt-tls"], stack.authority)


def test_the_parts_refuse_connections_without_tls(stack: Stack) -> None:
    """Neither a controller nor a broker answers in the clear, nor a client that does not trust its authority."""
    (group,) = settled(stack)
    for address in (*stack.controllers.split(","), group["address"]):
        key = str(stack.keys["operators"])
        command = [*Server.python, "topics", "--server", address, "--access-key-file", key, "--timeout", "5"]
        for options in ([], ["--tls"]):
            done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 1, done.stdout
    replication = stack.at(group["address"]).ports["replication"]
    with socket.create_connection(("127.0.0.1", replication), 10) as plain:
        plain.sendall(b"\0" * 64)
        plain.settimeout(10)
        assert plain.recv(1024) == b""


def test_behind_tls_keys_are_still_required(stack: Stack) -> None:
    """The cluster works with its own keys; without one, or beyond its rights, a client is refused."""
    (group,) = settled(stack)
    publish(stack.running["proxy-0"].ports["mqtt-tls"], stack.authority)
    refused = "NO_PERMISSION"
    for key, words in (
        ("prometheus", ("topics", "create", "x", "--queues", "1")),
        ("broker-a", ("topics", "create", "x", "--queues", "1")),
        ("proxies", ("cluster", "elect", "broker-a")),
        ("applications", ("cluster", "elect", "broker-a")),
    ):  # fmt: skip
        status, told = stack.ask(*words, key=key)
        assert status != 0, (key, words, told)
        assert refused in str(told) or "may not" in str(told), (key, told)
    assert stack.ask("topics", "create", "plenty", "--queues", "2", "--json")[0] == 0
    prometheus, operators = KEYS["prometheus"], KEYS["operators"]
    for each in stack.running.values():
        shown = [page(each, name, stack.authority) for name in ("/livez", "/readyz")]
        assert shown == [200, 200], each.container.name
        shown = [
            page(each, name, stack.authority, line)
            for name in ("/metrics", "/status")
            for line in ("", prometheus, operators)
        ]
        assert shown == [401, 200, 200, 401, 403, 200], each.container.name
    master = stack.at(group["address"])
    assert "replica_came" in master.log.read_text()
    check_console(stack)


def check_console(stack: Stack) -> None:
    """It is at the controllers and there alone, by TLS; it knows an operator's key, and the groups of all brokers."""
    trusted = ssl.create_default_context(cafile=stack.authority)
    for name, each in stack.running.items():
        status = page(each, "/console/", stack.authority)
        assert status == (200 if name.startswith("controller") else 404), name
    asked = urllib.request.Request(
        f"https://127.0.0.1:{stack.running['controller-1'].ports['admin']}/api/v1/brokers",
        headers={"Authorization": "Basic " + base64.b64encode(KEYS["operators"].encode()).decode()},
    )
    with urllib.request.urlopen(asked, timeout=DEADLINE_S, context=trusted) as answer:
        shown = json.load(answer)["items"]
    assert {each["name"] for each in shown} == {"broker-a"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus (Debian: prometheus)")
def test_prometheus_sees_every_part_and_has_the_alerts(stack: Stack, tmp_path: Path) -> None:
    """Started with the shipped files, in which only paths and addresses are replaced."""
    settled(stack)
    folder = tmp_path / "prometheus"
    folder.mkdir()
    service = stack.settings["services"]["prometheus"]
    configs = {mount["target"]: stack.settings["configs"][mount["source"]]["file"] for mount in service["configs"]}
    text = (COMPOSE / configs["/etc/prometheus/prometheus.yml"]).read_text()
    for each in stack.running.values():
        (name,) = each.container.settings["networks"]["cluster"].get("aliases", [each.container.name])
        text, found = re.subn(rf'"{name}:\d+"', f'"127.0.0.1:{each.ports["admin"]}"', text)
        assert found == 1, name
    text = text.replace("/etc/prometheus/alerts.yml", str((COMPOSE / configs["/etc/prometheus/alerts.yml"]).resolve()))
    text = text.replace("/run/secrets/lightmq-tls-ca", str(stack.authority))
    text = text.replace("/run/secrets/lightmq-prometheus", str(stack.keys["prometheus"])).replace("15s", "1s")
    (folder / "prometheus.yml").write_text(text)
    port = free_port()
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (tmp_path / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
    try:
        end = time.monotonic() + DEADLINE_S
        while {one["health"] for one in told(port, "targets?state=active", "activeTargets")} != {"up"}:
            assert time.monotonic() < end, told(port, "targets", "activeTargets")
            time.sleep(0.5)
        assert len(told(port, "targets", "activeTargets")) == len(stack.running)
        assert {group["name"] for group in told(port, "rules", "groups")} >= {"lightmq-durability"}
        (value,) = told(port, "query?query=sum(rocketmq_controller_leading)", "result")
        assert value["value"][1] == "1"
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def told(port: int, path: str, field: str) -> list[dict[str, Any]]:
    """What Prometheus answers; nothing while it starts."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=DEADLINE_S) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"][field]
            return found
    except urllib.error.URLError:
        return []
