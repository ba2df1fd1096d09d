"""A device's readings are acknowledged, and it obeys commands exactly as often as they come."""

from __future__ import annotations

import json
import threading

import paho.mqtt.publish
import pytest

from lightmq.demo.accounting import stored_counts
from lightmq.demo.device import Device
from lightmq.demo.stack import Ports
from runtime.clock import SystemClock

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

    def noticing(sensor: str, value: float, time_ms: int) -> None:
        original(sensor, value, time_ms)
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


def test_nobody_there_is_said_at_once() -> None:
    """A port where nothing listens is an error, not a wait."""
    with pytest.raises(OSError, match="refused"):
        Device("nobody", SystemClock()).connect("127.0.0.1", 1)
