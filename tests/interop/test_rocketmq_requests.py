"""RocketMQ's own Java client answers requests of an MQTT 5 client, and has its requests answered by one."""

from __future__ import annotations

import queue
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.interop import rocketmq_java
from tests.interop.rocketmq_java import JavaProcess
from tests.processes.rig import Server

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]


def test_requests_in_both_directions(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    server.start()
    messages: queue.Queue[mqtt.MQTTMessage] = queue.Queue()
    subscribed: queue.Queue[object] = queue.Queue()
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "device", protocol=mqtt.MQTTv5)
    client.on_message = lambda _c, _d, message: messages.put(message)
    client.on_subscribe = lambda _c, _d, mid, _codes, _p: subscribed.put(mid)
    client.connect("127.0.0.1", server.port, 60)
    client.loop_start()
    try:
        client.subscribe([("answers/device", 1), ("rooms/+/ask", 1)])
        subscribed.get(timeout=30)
        asked = Properties(PacketTypes.PUBLISH)
        asked.ResponseTopic, asked.CorrelationData = "answers/device", b"\x00\x07"
        client.publish("plant/7/ask", b"how warm?", 1, properties=asked).wait_for_publish(30)
        classes = rocketmq_java.compiled(tmp_path)
        program = JavaProcess(classes, tmp_path / "home", "MqttRequests", f"127.0.0.1:{server.ports['remoting']}")
        program.wait_for("started", 60)
        answer = messages.get(timeout=60)
        assert (answer.topic, answer.payload) == ("answers/device", b"21.5 " * 2_000)
        assert answer.properties.CorrelationData == b"\x00\x07"
        program.wait_for("served SEND_OK", 30)
        program.say("how warm?")
        request = messages.get(timeout=60)
        assert (request.topic, request.payload) == ("rooms/7/ask", b"how warm?")
        sent = Properties(PacketTypes.PUBLISH)
        sent.CorrelationData = request.properties.CorrelationData
        client.publish(request.properties.ResponseTopic, b"19.0", 1, properties=sent)
        program.wait_for("answered 19.0", 30)
        program.kill()
    finally:
        client.disconnect()
        client.loop_stop()
        server.kill_if_running()
