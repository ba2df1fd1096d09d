"""The stacks as processes: what the compose files start runs, answers its probes and carries a message."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from queue import Queue
from threading import Event

import paho.mqtt.client as mqtt
import pytest

from tests.deploy.running import Moved, Running
from tests.deploy.stacks import containers
from tests.processes.rig import DEADLINE_S, ROOT

pytestmark = pytest.mark.processes
PASSWORD = "a-long-password"


def add_user(running: Running) -> None:
    """`docker compose run --rm lightmq passwd /data/users sensor`, as in the file."""
    words = running.arguments("lightmq", "passwd", "/data/users", "sensor", "--stdin")
    subprocess.run([*running.python, *words], input=PASSWORD, text=True, cwd=ROOT, check=True, capture_output=True)


def page(running: Running, name: str, authority: Path, line: str = "") -> int:
    """The status of a page of the administration port for a key, by TLS."""
    asked = urllib.request.Request(
        f"https://127.0.0.1:{running.ports['admin']}{name}", headers={"Authorization": f"Bearer {line}"} if line else {}
    )
    trusted = ssl.create_default_context(cafile=authority)
    try:
        with urllib.request.urlopen(asked, timeout=DEADLINE_S, context=trusted) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def check_health(running: Running) -> None:
    """Run the container's own health check."""
    check = [
        re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{running.ports['admin']}", word) for word in running.container.health
    ]
    subprocess.run([sys.executable, *check[1:]], check=True, timeout=DEADLINE_S)


def publish(port: int, authority: Path) -> None:
    """One QoS 1 message of the user, by TLS; returns when it is acknowledged."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "sensor-1")
    client.tls_set(str(authority))
    client.username_pw_set("sensor", PASSWORD)
    connected, acknowledged = Event(), Event()
    client.on_connect = lambda _client, _data, _flags, reason, _properties: reason.is_failure or connected.set()
    client.on_publish = lambda *_arguments: acknowledged.set()
    client.connect("127.0.0.1", port)
    client.loop_start()  # reconnects by itself when a proxy without a master refuses it
    assert connected.wait(DEADLINE_S)
    client.publish("plant/1/temp", b"21.5", 1)
    assert acknowledged.wait(DEADLINE_S)
    client.disconnect()
    client.loop_stop()


@pytest.mark.parametrize("name", ["one.yaml", "with-spark.yaml"])
def test_everything_in_one_container(tmp_path: Path, name: str) -> None:
    """The first container makes certificates, the user is created as in the file, the server starts, its health check
    passes, a message is accepted by TLS with the password and without it none."""
    found = {each.name: each for each in containers(name)}
    moved = Moved(tmp_path)
    makes = Running(found["certificates"], moved)
    subprocess.run([*makes.python, *makes.arguments()], cwd=ROOT, check=True, capture_output=True)
    authority = moved.data(found["certificates"]) / "tls" / "ca.crt"
    running = Running(found["lightmq"], moved)
    add_user(running)
    running.start()
    try:
        assert [page(running, name, authority) for name in ("/livez", "/startupz", "/readyz")] == [200, 200, 200]
        check_health(running)
        publish(running.ports["mqtt-tls"], authority)
        with pytest.raises(ConnectionRefusedError):
            refused(running.ports["mqtt-tls"], authority)
    finally:
        running.kill_if_running()


def refused(port: int, authority: Path) -> None:
    """Connect with a wrong password; ConnectionRefusedError says that the server refused it."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "stranger")
    client.tls_set(str(authority))
    client.username_pw_set("sensor", "a-wrong-password")
    answered: Queue[bool] = Queue()
    client.on_connect = lambda _client, _data, _flags, reason, _properties: answered.put(reason.is_failure)
    client.connect("127.0.0.1", port)
    client.loop_start()
    failed = answered.get(timeout=DEADLINE_S)
    client.loop_stop()
    if failed:
        raise ConnectionRefusedError
