"""Simulated devices over real MQTT: the connections that publish and receive for them, and a life until the story ends.

    Gateways    a few connections that publish for many devices and count the answers
    Inbox       one subscriber with a persistent session
    Reporting   a base for devices that publish through gateways
    Living      a base for devices that act in a thread of their own until they are stopped

Invariants: messages of a device go through one connection, in their order; a message counts as acknowledged after a
PUBACK that accepts it. Thread rule: one thread publishes, paho calls back on its own; counters are guarded by one lock.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

from kit.stage import Stage

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from mqtt_bridge.paho_client import in_words

UNACKNOWLEDGED_MAX = 4000
"""Devices wait for acknowledgements beyond this many; the story then takes longer."""
WAIT_MAX_S = 30.0
"""But no longer than this: a server that is gone must not keep a story from its end."""
IN_FLIGHT_MAX = 500
CONNECT_TIMEOUT_S = 20.0


class Gateways:
    """A few MQTT connections that publish for many devices, each device always through the same one."""

    def __init__(self, stage: Stage, name: str, connections: int = 4) -> None:
        self._stage = stage
        self._answered = threading.Condition(threading.Lock())
        """Guards the numbers below, and is notified with each of paho's answers."""
        self._connected = 0
        self.sent = 0
        self.acknowledged = 0
        self.refused: Counter[str] = Counter()
        """Messages and connections that the server refused, by reason."""
        self.lost_connections = 0
        self._clients = [self._client(f"{name}-gateway-{number}") for number in range(connections)]

    def _client(self, client_id: str) -> Client:
        client = Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTProtocolVersion.MQTTv5)
        client.max_inflight_messages_set(IN_FLIGHT_MAX)
        client.reconnect_delay_set(1, 2)
        client.on_connect, client.on_publish = self._on_connect, self._on_publish
        client.on_disconnect = self._on_disconnect
        return client

    def connect(self) -> None:
        """Return when all are connected; raises ConnectionError with the server's reason, OSError, TimeoutError."""
        for client in self._clients:
            try:
                client.connect(self._stage.mqtt_host, self._stage.mqtt_port, keepalive=30)
            except OSError as failure:
                place = f"{self._stage.mqtt_host}:{self._stage.mqtt_port}"
                raise ConnectionError(f"no MQTT server answers at {place}: {failure.strerror or failure}") from failure
            client.loop_start()
        with self._answered:
            ready = self._answered.wait_for(
                lambda: self._connected == len(self._clients) or self.refused.total(), CONNECT_TIMEOUT_S
            )
            if self.refused:
                raise ConnectionError(f"the server refused the devices: {next(iter(self.refused))}")
        if not ready:
            raise TimeoutError(f"{self._stage.mqtt_host}:{self._stage.mqtt_port} did not answer the devices")

    def publish(self, device: int, topic: str, body: bytes, *, retain: bool = False) -> None:
        """Send one message of a device (its number) with QoS 1; waits while too many are unanswered."""
        with self._answered:
            self._answered.wait_for(lambda: self.unanswered < UNACKNOWLEDGED_MAX, WAIT_MAX_S)
            self.sent += 1
        self._clients[device % len(self._clients)].publish(topic, body, qos=1, retain=retain)

    @property
    def unanswered(self) -> int:
        """Messages that were neither accepted nor refused."""
        return self.sent - self.acknowledged - self.refused.total()

    def settle(self, timeout_s: float) -> bool:
        """Wait until everything is answered and disconnect; False when something is not or was refused."""
        with self._answered:
            done = self._answered.wait_for(lambda: self.unanswered <= 0, timeout_s)
        for client in self._clients:
            client.disconnect()
            client.loop_stop()
        return done and not self.refused

    def _on_connect(self, _client: Client, _userdata: object, _flags: Any, reason: Any, properties: Any) -> None:
        with self._answered:
            if reason.is_failure:
                self.refused[in_words(reason, properties)] += 1
            else:
                self._connected += 1
            self._answered.notify_all()

    def _on_disconnect(self, _client: Client, _userdata: object, _flags: Any, reason: Any, _properties: Any) -> None:
        with self._answered:
            self.lost_connections += bool(reason.is_failure)

    def _on_publish(self, _client: Client, _userdata: object, _mid: int, reason: Any, properties: Any) -> None:
        with self._answered:
            if reason.is_failure:
                self.refused[in_words(reason, properties)] += 1
            else:
                self.acknowledged += 1
            self._answered.notify_all()


class Inbox:
    """One subscriber with a persistent session: calls back with topic and body of each message, on paho's thread."""

    def __init__(
        self, stage: Stage, client_id: str, topic_filter: str, receive: Callable[[str, bytes], object], *, qos: int = 2
    ) -> None:
        self._stage, self._filter, self._qos = stage, topic_filter, qos
        self._receive = receive
        self._granted = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
        self._client.reconnect_delay_set(1, 2)
        self._client.on_connect, self._client.on_subscribe = self._on_connect, self._on_subscribe
        self._client.on_message = self._on_message

    def connect(self) -> None:
        """Return when the subscription is granted; raises OSError, TimeoutError."""
        self._client.connect(self._stage.mqtt_host, self._stage.mqtt_port, keepalive=30)
        self._client.loop_start()
        if not self._granted.wait(CONNECT_TIMEOUT_S):
            raise TimeoutError(f"the subscription to {self._filter} was not granted in {CONNECT_TIMEOUT_S:.0f} s")

    def close(self) -> None:
        """Disconnect; the session stays at the server."""
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, client: Client, _userdata: object, _flags: Any, _reason: Any, _properties: Any) -> None:
        client.subscribe(self._filter, qos=self._qos)

    def _on_subscribe(self, _client: Client, _userdata: object, _mid: int, reasons: list[Any], _props: Any) -> None:
        if not reasons[0].is_failure:
            self._granted.set()

    def _on_message(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        self._receive(message.topic, bytes(message.payload))


class Reporting:
    """Devices that publish through gateways, which count for them."""

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways

    @property
    def sent(self) -> int:
        """Messages handed to MQTT."""
        return self._gateways.sent

    @property
    def acknowledged(self) -> int:
        """Messages accepted by the server."""
        return self._gateways.acknowledged

    def settle(self, timeout_s: float) -> bool:
        """Wait for the acknowledgements and disconnect; False when something is missing."""
        return self._gateways.settle(timeout_s)


class Living(ABC):
    """Devices that act until they are stopped; `start` starts `_thread` when they are connected."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)

    @abstractmethod
    def _live(self) -> None:
        """Act until `_stopped` is set."""

    def stop(self) -> None:
        """Publish nothing more; what still comes is received."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def finished(self) -> bool:
        """Whether there is nothing left to do: never, before `stop`."""
        return False
