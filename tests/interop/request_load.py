"""`python -m tests.interop.request_load --seconds 60`: requests between MQTT 5 and RocketMQ's Java client, as JSON.

Each direction is measured alone: an MQTT client asks a RocketMQ service, and a RocketMQ producer asks an MQTT service.
`MqttService` and `MqttAsker` are paho's client; `RequestLoad.java` is the other side of both. An answer is `re:` and
the body of its request, with zeros behind it when a large one was asked for, so that each asker can tell its own.
Callbacks run on paho's threads; counts change under a lock.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.interop import rocketmq_java
from tests.interop.rocketmq_java import JavaProcess
from tests.processes.rig import DEADLINE_S, Installation

IN_FLIGHT_MAX = 1_000
STARTED_S, LATE_S = 120, 30
PROGRAM_BYTES_MAX = 16 * 1024 * 1024


class _Client5:
    """A connected paho client of MQTT 5 with one subscription."""

    def __init__(self, port: int, client_id: str, topic_filter: str) -> None:
        self.lock = threading.Condition()
        self._filter = topic_filter
        self._subscribed = threading.Event()
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)
        self.client.max_inflight_messages_set(IN_FLIGHT_MAX)
        self.client.reconnect_delay_set(1, 1)
        self.client.on_connect = lambda *_: self.client.subscribe(self._filter, 1)
        self.client.on_subscribe = lambda *_: self._subscribed.set()
        self.client.on_message = self._received
        self.client.connect("127.0.0.1", port, 60)
        self.client.loop_start()
        assert self._subscribed.wait(DEADLINE_S), "no SUBACK"

    def _received(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()


class MqttService(_Client5):
    """Answers each request with `re:` and its body; counts them by Correlation Data."""

    def __init__(self, port: int, client_id: str = "service", topic_filter: str = "rooms/+/ask") -> None:
        self.served: dict[bytes, int] = {}
        super().__init__(port, client_id, topic_filter)

    def _received(self, client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        correlation = message.properties.CorrelationData
        answer = Properties(PacketTypes.PUBLISH)
        answer.CorrelationData = correlation
        client.publish(message.properties.ResponseTopic, b"re:" + message.payload, 1, properties=answer)
        with self.lock:
            self.served[correlation] = self.served.get(correlation, 0) + 1


class MqttAsker(_Client5):
    """Asks `plant/<id>/ask`, and judges what it gets on `answers/<id>`."""

    def __init__(self, port: int, client_id: str = "asker") -> None:
        self.topic, self._answers = f"plant/{client_id}/ask", f"answers/{client_id}"
        self._asked: list[float] = []
        self.took_s: dict[int, float] = {}
        self.wrong: list[tuple[bytes, bytes]] = []
        self.twice = 0
        super().__init__(port, client_id, self._answers)

    def _received(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        now = time.monotonic()
        correlation = message.properties.CorrelationData
        number = int.from_bytes(correlation, "big")
        with self.lock:
            if number >= len(self._asked) or message.payload.rstrip(b"\0") != b"re:%d" % number:
                self.wrong.append((correlation, message.payload[:40]))
            elif number in self.took_s:
                self.twice += 1
            else:
                self.took_s[number] = now - self._asked[number]
            self.lock.notify_all()

    def ask(self, **user: str) -> int:
        """Send one request with these user properties; its number."""
        asked = Properties(PacketTypes.PUBLISH)
        number = len(self._asked)
        asked.ResponseTopic, asked.CorrelationData = self._answers, number.to_bytes(8, "big")
        if user:
            asked.UserProperty = [(name.replace("_", "-"), value) for name, value in user.items()]
        with self.lock:
            self._asked.append(time.monotonic())
        self.client.publish(self.topic, b"%d" % number, 1, properties=asked)
        return number

    def ask_many(self, count: int, per_second: int) -> None:
        """Send requests at a constant rate."""
        began = time.monotonic()
        for number in range(count):
            pause = began + number / per_second - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            self.ask()

    def answered(self, number: int, within_s: float) -> bool:
        """Wait for the answer to a request."""
        with self.lock:
            return self.lock.wait_for(lambda: number in self.took_s, within_s)

    def figures(self, within_s: float) -> dict[str, Any]:
        """What became of the requests, once all are answered or the time is over."""
        with self.lock:
            self.lock.wait_for(lambda: len(self.took_s) == len(self._asked), within_s)
            took = sorted(self.took_s.values())
            counts = {"sent": len(self._asked), "answered": len(took), "timed_out": len(self._asked) - len(took)}
            found: dict[str, Any] = {**counts, "wrong": len(self.wrong), "twice": self.twice}
        shares = {"ms_p50": 0.5, "ms_p99": 0.99, "ms_p999": 0.999, "ms_max": 1.0}
        for name, share in shares.items():
            found[name] = round(took[min(len(took) - 1, int(share * len(took)))] * 1_000, 1) if took else None
        return found


def program(folder: Path, address: str, mqtt_port: int) -> JavaProcess:
    """RocketMQ's Java client as service and asker, started; `address`: the name servers.

    The topic of the requests exists before: the client looks for missing ones every twenty seconds only.
    """
    first = MqttAsker(mqtt_port, "first")
    first.ask()
    first.close()
    made = JavaProcess(rocketmq_java.compiled(folder), folder / "home", "RequestLoad", address, str(PROGRAM_BYTES_MAX))
    made.wait_for("started", STARTED_S)
    return made


def asked_by_java(java: JavaProcess, count: int, per_second: int, timeout_ms: int = 10_000) -> dict[str, Any]:
    """What became of requests to an MQTT service."""
    before = sum("asked {" in line for line in java.lines)
    java.say(f"{count} {per_second} {timeout_ms}")
    line = java.wait_for("asked {", count / per_second + timeout_ms / 1_000 + LATE_S, count=before + 1)
    found: dict[str, Any] = json.loads(line.partition("asked ")[2])
    return found


def warm(java: JavaProcess, asker: MqttAsker) -> None:
    """Return when both directions answer: routes and channels are there."""
    assert asker.answered(asker.ask(), STARTED_S), java.lines[-20:]
    asked_by_java(java, 1, 1)


def main() -> None:
    """Measure both directions and print one line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--per-second", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="request-load-") as name:
        folder = Path(name)
        server = Installation(folder / "data")
        try:
            server.start()
            asker, service = MqttAsker(server.port), MqttService(server.port)
            java = program(folder, server.address, server.port)
            warm(java, asker)
            count = options.seconds * options.per_second
            again = MqttAsker(server.port, "load")
            again.ask_many(count, options.per_second)
            print(json.dumps({"from": "MQTT", "to": "RocketMQ", **again.figures(LATE_S)}), flush=True)
            found = asked_by_java(java, count, options.per_second)
            print(json.dumps({"from": "RocketMQ", "to": "MQTT", **found}), flush=True)
            java.kill()
            for client in (asker, service, again):
                client.close()
        finally:
            server.kill_if_running()


if __name__ == "__main__":
    main()
