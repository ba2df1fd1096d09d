"""One device: publishes readings and obeys commands, over MQTT with paho-mqtt like any device would.

Invariant: a reading counts as published when its PUBACK has come; each command is counted by its identity, so a second
delivery of the same one is seen. paho calls back on its own thread; shared numbers are guarded by one lock.
"""

from __future__ import annotations

import json
import threading
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from runtime.clock import Clock

KEEP_ALIVE_S = 30
IN_FLIGHT_MAX = 1000
ACKNOWLEDGEMENT_SENSOR = "command_ack"
COMMANDS = "commands"


class Device:
    """A publisher of `machines/<label>/<sensor>` and a subscriber of `machines/<label>/commands`, both QoS 1."""

    def __init__(self, label: str, clock: Clock) -> None:
        self.label = label
        self._clock = clock
        self._lock = threading.Lock()
        self._sequence = 0
        self._ready = threading.Event()
        self._all_acknowledged = threading.Condition(self._lock)
        self.sent = 0
        self.acknowledged = 0
        self.commands: dict[str, int] = {}
        self.round_trips_ms: list[float] = []
        """Reading to command, for readings sent since `measure_from_ms`; earlier ones are a backlog."""
        self.measure_from_ms: int | None = None
        self.events: list[dict[str, Any]] = []
        self._publisher = self._client("sensors", clean=True)
        self._actuator = self._client("actuator", clean=False)

    def _client(self, role: str, *, clean: bool) -> Client:
        client = Client(CallbackAPIVersion.VERSION2, client_id=f"{self.label}-{role}", clean_session=clean)
        client.max_inflight_messages_set(IN_FLIGHT_MAX)
        client.on_publish = self._on_publish
        client.on_message = self._on_message
        return client

    def connect(self, host: str, port: int, timeout_s: float = 15.0) -> None:
        """Connect both clients and return once the subscription for commands is granted."""
        topic = f"machines/{self.label}/{COMMANDS}"
        self._actuator.on_connect = lambda client, *_: client.subscribe(topic, qos=1)
        self._actuator.on_subscribe = lambda *_: self._ready.set()
        for client in (self._actuator, self._publisher):
            client.connect(host, port, keepalive=KEEP_ALIVE_S)
            client.loop_start()
        if not self._ready.wait(timeout_s):
            raise TimeoutError(
                f"the proxy at {host}:{port} did not grant the subscription to {topic} in {timeout_s:.0f} s"
            )

    def publish(self, sensor: str, value: float, time_ms: int) -> None:
        """Publish one reading at QoS 1; does not wait for its acknowledgement."""
        with self._lock:
            self._sequence += 1
            identity = f"{self.label}-{self._sequence}"
            self.sent += 1
        reading = {
            "id": identity,
            "sensor": sensor,
            "value": value,
            "time_ms": time_ms,
            "sent_ms": self._clock.now_ms(),
        }
        self._publisher.publish(f"machines/{self.label}/{sensor}", json.dumps(reading), qos=1)

    def _on_publish(self, *_: object) -> None:
        with self._all_acknowledged:
            self.acknowledged += 1
            if self.acknowledged == self.sent:
                self._all_acknowledged.notify_all()

    def _on_message(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        command = json.loads(message.payload)
        now_ms = self._clock.now_ms()
        round_trip_ms = float(now_ms - command["sent_ms"])
        with self._lock:
            identity = command["id"]
            self.commands[identity] = self.commands.get(identity, 0) + 1
            if self.measure_from_ms is not None and command["sent_ms"] >= self.measure_from_ms:
                self.round_trips_ms.append(round_trip_ms)
            self.events.append(command)
        self.publish(ACKNOWLEDGEMENT_SENSOR, round_trip_ms, now_ms)

    def wait_acknowledged(self, timeout_s: float) -> bool:
        """Wait until every reading sent so far is acknowledged."""
        with self._all_acknowledged:
            return self._all_acknowledged.wait_for(lambda: self.acknowledged == self.sent, timeout_s)

    def close(self) -> None:
        """Disconnect both clients and stop their threads."""
        for client in (self._publisher, self._actuator):
            client.disconnect()
            client.loop_stop()
