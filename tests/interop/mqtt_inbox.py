"""An MQTT 5 subscriber that keeps the messages it receives and waits for an expected number."""

from __future__ import annotations

import threading
from typing import Any, Self

import paho.mqtt.client as mqtt

DEADLINE_S = 60.0


class _Kept:
    """One message; properties that were not sent are None."""

    def __init__(self, message: mqtt.MQTTMessage) -> None:
        self.topic, self.payload, self.qos, self.retain = message.topic, message.payload, message.qos, message.retain
        self.properties = _Said(message.properties)


class _Said:
    def __init__(self, properties: Any) -> None:
        self.content_type = getattr(properties, "ContentType", None)
        self.user = getattr(properties, "UserProperty", [])


class Inbox:
    """Subscribed with QoS 2 from the beginning of the `with` block."""

    def __init__(self, port: int, topic_filter: str) -> None:
        self._port, self._filter = port, topic_filter
        self._changed = threading.Condition()
        self._messages: list[_Kept] = []
        self._subscribed = False
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.on_connect = lambda client, *_rest: client.subscribe(self._filter, 2)
        self._client.on_subscribe = self._granted
        self._client.on_message = self._came

    def __enter__(self) -> Self:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        with self._changed:
            assert self._changed.wait_for(lambda: self._subscribed, DEADLINE_S)
        return self

    def __exit__(self, *_error: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def take(self, count: int) -> list[_Kept]:
        """Wait for `count` messages and return them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._messages) >= count, DEADLINE_S), len(self._messages)
            return list(self._messages)

    def _granted(self, *_given: Any) -> None:
        with self._changed:
            self._subscribed = True
            self._changed.notify_all()

    def _came(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        with self._changed:
            self._messages.append(_Kept(message))
            self._changed.notify_all()
