"""A device's readings are acknowledged, and it obeys each command exactly once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.publish
import pytest

from lightmq.demo.accounting import stored_counts
from lightmq.demo.feed import Device
from lightmq.demo.stack import Ports
from runtime.clock import SystemClock
from tests.processes.rig import Server

pytestmark = pytest.mark.processes


def test_readings_and_commands(ports: Ports) -> None:
    """Two readings and a command; the command is answered by a reading of its own; the counts are those of the log."""
    clock = SystemClock()
    device = Device("device-test", clock)
    device.measure_from_ms = 0
    device.connect("127.0.0.1", ports.mqtt)
    before, _ = stored_counts(ports.nameserver, "device-test")
    device.publish("heat", 21.5, 1)
    device.publish("heat", 21.6, 2)
    arrived = threading.Event()
    original = device.publish

    def noticing(sensor: str, value: float, time_ms: int, **more: str) -> None:
        original(sensor, value, time_ms, **more)
        arrived.set()

    device.publish = noticing  # type: ignore[method-assign]
    command = {"id": "cmd-1", "sensor": "heat", "sent_ms": clock.now_ms(), "time_ms": 1, "value": 1.0}
    topic = "machines/device-test/commands"
    paho.mqtt.publish.single(topic, json.dumps(command), qos=1, hostname="127.0.0.1", port=ports.mqtt)
    assert arrived.wait(10)
    assert device.wait_acknowledged(10)
    device.close()
    assert (device.sent, device.acknowledged, device.commands) == (3, 3, {"cmd-1": 1})
    assert len(device.round_trips_ms) == 1
    after, commands = stored_counts(ports.nameserver, "device-test")
    assert (after - before, commands) == (4, 1)


def test_a_missing_server_is_reported_at_once() -> None:
    """A port without a listener is an error, not a wait."""
    with pytest.raises(OSError, match="refused"):
        Device("nobody", SystemClock()).connect("127.0.0.1", 1)


ACCESS = """topic write machines/+/heat
topic read machines/listener/commands
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose access list allows one sensor and one device's commands, and that reports missing subscribers."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "acl").write_text(ACCESS)
    options = ("--acl-file", str(folder / "acl"), "--set", "proxy.report_no_subscribers=true")
    server = Server(folder / "data", *options)
    server.start()
    yield server
    server.kill_if_running()


def test_refused_readings_are_not_acknowledged(guarded: Server) -> None:
    """The published count is the accepted count, subscribers or not; the reason is available as text."""
    device = Device("listener", SystemClock())
    device.connect("127.0.0.1", guarded.port)
    for sensor in ("heat", "cold", "heat", "cold", "heat"):
        device.publish(sensor, 1.0, 1)
    assert device.wait_acknowledged(10)
    device.close()
    assert (device.sent, device.acknowledged, device.refused.total(), device.unanswered) == (5, 3, 2, 0)
    (sentence,) = device.problems()
    assert sentence.startswith("2 readings were refused: not authorized (0x87)")


def test_a_refused_subscription_ends_connect(guarded: Server) -> None:
    """A device that would never receive a command reports it instead of waiting."""
    with pytest.raises(ConnectionError, match=r"refused the subscription to machines/deaf/commands: .*0x80"):
        Device("deaf", SystemClock()).connect("127.0.0.1", guarded.port)


def test_unanswered_readings_are_reported_with_the_end_of_the_connection(tmp_path: Path) -> None:
    """The server is down: what it did not acknowledge is counted, with the reason of the end."""
    server = Server(tmp_path / "data")
    server.start()
    try:
        device = Device("orphan", SystemClock())
        device.connect("127.0.0.1", server.port)
        assert device.problems() == []
        server.kill()
        device.publish("heat", 1.0, 1)
        assert not device.wait_acknowledged(0.5)
        problems = device.problems()
        device.close()
        assert problems[0] == "1 readings were not acknowledged"
        assert any("the connection was" in one for one in problems[1:])
    finally:
        server.kill_if_running()


def test_a_refused_connection_ends_connect(tmp_path: Path) -> None:
    """CONNACK's code is in the error."""
    server = Server(tmp_path / "data", "--set", f"broker.store.free_space_bytes_min={1 << 60}")
    server.start()
    try:
        with pytest.raises(ConnectionError, match="refused the connection: server unavailable"):
            Device("stranger", SystemClock()).connect("127.0.0.1", server.port)
    finally:
        server.kill_if_running()
