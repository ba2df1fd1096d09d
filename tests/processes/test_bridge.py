"""Bridges between real processes: amqtt and other installations as peers, killed and started again under load.

The accounting: every message acknowledged to a publisher is at the other side, in order of its first arrival; repeats
are allowed (at least once), losses are not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.rig import (
    DEADLINE_S,
    ROOT,
    Client,
    Installation,
    Process,
    Server,
    Stream,
    expect_all,
    no_traceback,
)  # fmt: skip
from tests.support.certificates import HAVE_OPENSSL, Authority
from tests.support.ports import free_port

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


class Amqtt(Server):
    """amqtt's broker on the same port at every start."""

    python = (sys.executable, str(Path(__file__).with_name("amqtt_broker.py")))

    def start(self) -> None:
        """Start and wait until it accepts clients."""
        self.port = self.port or free_port()
        with self.log.open("ab") as stream:
            command = [*self.python, str(self.port)]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), self.log.read_text()[-2_000:]


def bridge_file(folder: Path, name: str, peer: Server, rules: str, **settings: Any) -> Path:
    """A configuration whose bridge connects to the peer."""
    quick = {"reconnect_delay_ms_min": 50, "reconnect_delay_ms_max": 500, "commit_interval_ms": 50, "version": "3.1.1"}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**quick, **settings}.items()]
    head = [f'bridge.name = "{name}"', "[[bridge.connections]]", 'name = "peer"', 'host = "127.0.0.1"']
    file = folder / f"{name}.toml"
    file.write_text("\n".join([*head, f"port = {peer.port}", *lines, rules]))
    return file


def rule(direction: str, text: str, **more: Any) -> str:
    """One rule in TOML."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    return "\n".join(["[[bridge.connections.rules]]", f'direction = "{direction}"', f'filter = "{text}"', *lines, ""])


def page(server: Server, name: str) -> Any:
    """A page of the administration port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.ports['admin']}/{name}") as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        return error.read()


def metric(server: Server, name: str) -> float:
    """The sum of a metric over its labels."""
    lines = page(server, "metrics").decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + "{", name + " ")))


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for an effect of another process."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def bridge_is_up(server: Server, ways: int) -> Callable[[], bool]:
    return lambda: metric(server, "rocketmq_bridge_connected") == ways


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Servers in this list are killed at the end."""
    made: list[Server] = []
    yield made
    for server in made:
        server.kill_if_running()


def test_amqtt_as_a_peer_in_both_directions_and_over_its_outage(tmp_path: Path, servers: list[Server]) -> None:
    """What was published while it was down is there when it is back, and its own messages arrive."""
    peer = Amqtt(tmp_path / "amqtt")
    servers.append(peer)
    peer.start()
    rules = rule("out", "plant/#", remote_prefix="site/7/") + rule("in", "cmd/#", local_prefix="cloud/")
    here = Server(tmp_path / "here", "--config", str(bridge_file(tmp_path, "here", peer, rules)))
    servers.append(here)
    here.start()
    eventually(bridge_is_up(here, 2))
    there, local = Client(peer, "there"), Client(here, "local")
    there.subscribe(("site/#", 1))
    local.subscribe(("cloud/#", 1))
    local.publish("plant/1/temp", b"21")
    there.publish("cmd/fan", b"on")
    there.until(lambda: there.latest.get("site/7/plant/1/temp") == b"21")
    local.until(lambda: local.latest.get("cloud/cmd/fan") == b"on")
    there.client.loop_stop()
    peer.kill()
    for number in range(200):
        local.publish(f"plant/{number}/state", b"%d" % number, retain=True)
    eventually(lambda: metric(here, "rocketmq_bridge_lag_messages") >= 200)
    assert json.loads(page(here, "readyz"))["ready"]
    assert "peer (out)" in json.loads(page(here, "readyz"))["reasons"]["bridge"]
    peer.start()
    eventually(lambda: metric(here, "rocketmq_bridge_lag_messages") == 0)
    eventually(bridge_is_up(here, 2))
    late = Client(peer, "late")
    late.subscribe(("site/#", 1))
    late.until(lambda: len(late.latest) == 200)
    assert late.latest["site/7/plant/17/state"] == b"17"
    late.publish("cmd/fan", b"off")
    local.until(lambda: local.latest.get("cloud/cmd/fan") == b"off")
    late.close()
    local.close()
    no_traceback(here)


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_nothing_acknowledged_is_lost_by_any_kill(tmp_path: Path, servers: list[Server], version: str) -> None:
    """Streams in both directions; peer, bridge, broker and several of them at once are killed in between."""
    peer = Server(tmp_path / "peer")
    servers.append(peer)
    peer.start()
    here = Installation(tmp_path / "here")
    servers.append(here)
    here.start()
    rules = rule("out", "out/#", remote_prefix="from/", qos=2) + rule("in", "in/#", local_prefix="to/")
    file = bridge_file(tmp_path, "here", peer, rules, version=version)
    controller = ("--controllers", f"127.0.0.1:{here.ports['remoting']}")
    bridge = Process(tmp_path / "bridge", ["bridge", "--config", str(file), *controller], "admin")
    bridge.start = lambda: bridge.__dict__.update(ports=bridge.launch(*bridge.arguments, "--admin-port", "0"))  # type: ignore[method-assign]
    servers.append(bridge)
    bridge.start()
    eventually(bridge_is_up(bridge, 2))
    assert json.loads(page(bridge, "readyz"))["ready"]
    there, local = Client(peer, "there", clean=False), Client(here, "local", clean=False)
    there.subscribe(("from/#", 1))
    local.subscribe(("to/#", 1))
    outward, inward = Stream(here, "out/s"), Stream(peer, "in/s")
    outward.flowing()
    inward.flowing()
    for victims in ([peer], [bridge], [here], [peer, bridge], [bridge, here], [here, peer]):
        for victim in victims:
            victim.kill()
        if here not in victims:
            outward.flowing()
        for victim in victims:
            victim.start()
        outward.flowing()
        inward.flowing()
    sent = {"from/out/s": outward.end()}
    received = {"to/in/s": inward.end()}
    expect_all(there, sent)
    expect_all(local, received)
    there.close()
    local.close()
    no_traceback(peer, here, bridge)


@pytest.mark.parametrize("version", ["3.1.1", "5"])
@pytest.mark.parametrize("named", [True, False])
def test_two_bridges_that_face_each_other_form_no_loop(
    tmp_path: Path, servers: list[Server], version: str, named: bool
) -> None:
    """Both send everything to the other: each message is once at each side (MQTT 5 without names: at most one echo)."""
    ours, theirs = Server(tmp_path / "ours"), Server(tmp_path / "theirs")
    for server in (ours, theirs):
        servers.append(server)
        server.start()
    bridges = []
    for name, here, peer, peer_name in (("ours", ours, theirs, "theirs"), ("theirs", theirs, ours, "ours")):
        settings = {"peer_name": peer_name} if named else {}
        file = bridge_file(tmp_path, name, peer, rule("out", "shared/#"), version=version, **settings)
        controller = ("--controllers", f"127.0.0.1:{here.ports['remoting']}")
        bridge = Process(tmp_path / f"bridge-{name}", ["bridge", "--config", str(file), *controller], "admin")
        servers.append(bridge)
        bridge.ports = bridge.launch(*bridge.arguments, "--admin-port", "0")
        bridges.append(bridge)
        eventually(bridge_is_up(bridge, 1))
    clients = [Client(server, "watcher") for server in (ours, theirs)]
    for client in clients:
        client.subscribe(("shared/#", 1))
    for index, client in enumerate(clients):
        for number in range(20):
            client.publish(f"shared/{index}", b"%d" % number)
    for client in clients:
        client.until(lambda client=client: all(len(set(client.numbers(f"shared/{n}"))) == 20 for n in (0, 1)))
    eventually(lambda: all(metric(bridge, "rocketmq_bridge_lag_messages") == 0 for bridge in bridges))
    eventually(lambda: all(metric(bridge, "rocketmq_bridge_kept_back_total") >= 20 for bridge in bridges))
    echoes = 0 if named or version == "3.1.1" else 20
    for index, client in enumerate(clients):
        assert len(client.numbers(f"shared/{index}")) <= 20 + echoes
        assert sorted(client.numbers(f"shared/{1 - index}")) == list(range(20))
        client.close()
    for bridge in bridges:
        assert 20 <= metric(bridge, "rocketmq_bridge_messages_total") <= 20 + echoes


@pytest.mark.skipif(not HAVE_OPENSSL, reason="openssl makes the certificates")
@pytest.mark.parametrize("transport", ["tls", "websockets", "websockets over tls"])
def test_properties_are_forwarded_over_tls_and_websockets_with_a_password(
    tmp_path: Path, servers: list[Server], transport: str
) -> None:
    """A peer that requires a password, and everything a message of MQTT 5 carries."""
    authority = Authority(tmp_path / "ca")
    identity = authority.issue()
    users, password = tmp_path / "users", tmp_path / "password"
    environment = {"PATH": "/usr/bin:/bin", "LIGHTMQ_PASSWORD": "sésame", "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-m", "lightmq", "passwd", str(users), "bridge"], env=environment, check=True, cwd=ROOT
    )
    password.write_text("sésame\n")
    listen = {
        "tls_certificate": identity.certificate,
        "tls_key": identity.key,
        "tls_port": 0,
        "ws_port": 0,
        "wss_port": 0,
    }
    sets = [text for key, value in listen.items() for text in ("--set", f"proxy.listen.{key}={value}")]
    peer = Server(tmp_path / "peer", "--password-file", str(users), *sets)
    servers.append(peer)
    peer.start()
    name = {"tls": "mqtt-tls", "websockets": "mqtt-ws", "websockets over tls": "mqtt-wss"}[transport]
    settings: dict[str, Any] = {"version": "5", "username": "bridge", "password_file": str(password)}
    if "tls" in transport:
        settings |= {"tls": True, "ca_file": str(authority.certificate)}
    if "websockets" in transport:
        settings |= {"transport": "websockets"}
    peer.port = peer.ports[name]
    rules = rule("out", "a/#", remote_prefix="x/") + rule("in", "b/#")
    here = Server(tmp_path / "here", "--config", str(bridge_file(tmp_path, "here", peer, rules, **settings)))
    servers.append(here)
    here.start()
    eventually(bridge_is_up(here, 2))
    peer.port = peer.ports["mqtt"]
    to_peer = ["-u", "bridge"]
    _one_message((here, []), (peer, to_peer), "a/1", "x/a/1", environment, [["lightmq-bridge", "here"]])
    _one_message((peer, to_peer), (here, []), "b/1", "b/1", environment, [])
    no_traceback(here, peer)


def _one_message(
    sender: tuple[Server, list[str]], receiver: tuple[Server, list[str]], topic: str, arrives: str,
    environment: dict[str, str], added: list[list[str]],
) -> None:  # fmt: skip
    """Publish with every property a message can have, and compare what arrives at the other side."""
    command = [sys.executable, "-m", "lightmq"]
    (source, source_options), (target, target_options) = sender, receiver
    listening = subprocess.Popen(
        [*command, "sub", "-p", str(target.port), "-t", arrives, "-n", "1", "--json", "-V", "5", *target_options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=ROOT, text=True,
    )  # fmt: skip
    assert listening.stderr is not None
    assert "subscribed" in listening.stderr.readline()
    said = ["-V", "5", "-P", "unit=celsius", "-P", "unit=kelvin", "--content-type", "text/plain", "--correlation", "7"]
    publish = ["pub", "-p", str(source.port), "-t", topic, "-m", "hot", *said, *source_options]
    subprocess.run([*command, *publish], env=environment, cwd=ROOT, check=True)
    message = json.loads(listening.communicate(timeout=DEADLINE_S)[0])
    assert (message["content_type"], message["correlation"]) == ("text/plain", "7")
    assert message["user_properties"] == [["unit", "celsius"], ["unit", "kelvin"], *added]
