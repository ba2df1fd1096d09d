"""The stacks as processes: what the compose files start runs, answers its probes and carries a message."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path
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


def probe(running: Running, page: str) -> int:
    """The status of a page of the administration port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{running.ports['admin']}{page}", timeout=DEADLINE_S) as answer:
        status: int = answer.status
        return status


def publish(port: int) -> None:
    """One QoS 1 message of the user; returns when it is acknowledged."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "sensor-1")
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
    """The user is created as in the file, the server starts, its health check passes, a message is accepted."""
    container = next(each for each in containers(name) if each.name == "lightmq")
    running = Running(container, Moved(tmp_path))
    add_user(running)
    running.start()
    try:
        assert [probe(running, page) for page in ("/livez", "/startupz", "/readyz")] == [200, 200, 200]
        port, page = container.stage.health_url()
        check = container.stage.health_command()
        check[-1] = check[-1].replace(f":{port}{page}", f":{running.ports['admin']}{page}")
        subprocess.run([sys.executable, *check[1:]], check=True, timeout=DEADLINE_S)
        publish(running.ports["mqtt"])
    finally:
        running.kill_if_running()
