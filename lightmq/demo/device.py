"""One device: publishes readings and obeys commands, over MQTT with paho-mqtt like any device would.

Invariant: a reading counts as published when a PUBACK that accepts it has come, as refused when one came that does not;
a refused connection or subscription ends `connect` with its reason. Each command is counted by its identity, so a
second delivery of the same one is seen. paho calls back on its own thread; shared numbers are guarded by one lock.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from mqtt_bridge.paho_client import in_words, why_ended
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
        self._refusal = ""
        self._closing = False
        self._all_acknowledged = threading.Condition(self._lock)
        self.sent = 0
        self.acknowledged = 0
        self.refused: Counter[str] = Counter()
        """Readings the server refused, by reason."""
        self.losses: Counter[str] = Counter()
        """How often a connection ended without our doing, by reason."""
        self.commands: dict[str, int] = {}
        self.round_trips_ms: list[float] = []
        """Reading to command, for readings sent since `measure_from_ms`; earlier ones are a backlog."""
        self.measure_from_ms: int | None = None
        self.events: list[dict[str, Any]] = []
        self._publisher = self._client("sensors", clean=True)
        self._actuator = self._client("actuator", clean=False)

    def _client(self, role: str, *, clean: bool) -> Client:
        name = f"{self.label}-{role}"
        if clean:  # readings are published with MQTT 5, which gives a refused one its reason
            client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5)
        else:
            client = Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
        client.max_inflight_messages_set(IN_FLIGHT_MAX)
        client.on_publish = self._on_publish
        client.on_message = self._on_message
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        return client

    def connect(self, host: str, port: int, timeout_s: float = 15.0) -> None:
        """Connect both clients and return once the subscription for commands is granted.

        Raises OSError, ConnectionError with the server's reason when it refuses, TimeoutError.
        """
        topic = self._command_topic
        for client in (self._actuator, self._publisher):
            client.connect(host, port, keepalive=KEEP_ALIVE_S)
            client.loop_start()
        if not self._ready.wait(timeout_s):
            raise TimeoutError(
                f"the proxy at {host}:{port} did not grant the subscription to {topic} in {timeout_s:.0f} s"
            )
        if self._refusal:
            self.close()
            raise ConnectionError(f"the proxy at {host}:{port} refused {self._refusal}")

    @property
    def _command_topic(self) -> str:
        return f"machines/{self.label}/{COMMANDS}"

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

    def _on_connect(self, client: Client, _userdata: object, _flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._refuse(f"the connection: {in_words(reason, properties)}")
        elif client is self._actuator:
            client.subscribe(self._command_topic, qos=1)

    def _on_subscribe(self, _client: Client, _userdata: object, _mid: int, reasons: list[Any], properties: Any) -> None:
        if reasons[0].is_failure:
            self._refuse(f"the subscription to {self._command_topic}: {in_words(reasons[0], properties)}")
        self._ready.set()

    def _refuse(self, what: str) -> None:
        with self._lock:
            self._refusal = self._refusal or what
            self.losses[f"refused {what}"] += 1
        self._ready.set()

    def _on_disconnect(self, client: Client, _userdata: object, flags: Any, reason: Any, properties: Any) -> None:
        if not self._closing:
            with self._lock:
                self.losses[why_ended(flags, reason, properties, is_v5=client is self._publisher)] += 1

    def _on_publish(self, _client: Client, _userdata: object, _mid: int, reason: Any, properties: Any) -> None:
        with self._all_acknowledged:
            if reason.is_failure:
                self.refused[in_words(reason, properties)] += 1
            else:
                self.acknowledged += 1
            if self.unanswered == 0:
                self._all_acknowledged.notify_all()

    @property
    def unanswered(self) -> int:
        """Readings sent that were neither acknowledged nor refused."""
        return self.sent - self.acknowledged - self.refused.total()

    def problems(self) -> list[str]:
        """What became of readings that are not published, in sentences; empty when all are."""
        with self._lock:
            found = [f"{count:,} readings were refused: {reason}" for reason, count in self.refused.items()]
            if self.unanswered:
                found.append(f"{self.unanswered:,} readings were not acknowledged")
                found += [f"{count} x {reason}" for reason, count in self.losses.most_common()]
            return found

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
        """Wait until every reading sent so far is acknowledged or refused."""
        with self._all_acknowledged:
            return self._all_acknowledged.wait_for(lambda: self.unanswered == 0, timeout_s)

    def close(self) -> None:
        """Disconnect both clients and stop their threads."""
        self._closing = True
        for client in (self._publisher, self._actuator):
            client.disconnect()
            client.loop_stop()
