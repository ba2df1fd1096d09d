"""Widely used MQTT clients behind one interface: paho-mqtt, aiomqtt, gmqtt and amqtt's client.

Invariant: an adapter adds no MQTT behaviour; `CANNOT` names what its library does not support. Loop rule: one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, ClassVar

import aiomqtt
import gmqtt
import paho.mqtt.client as paho
from amqtt.client import MQTTClient
from gmqtt.mqtt.constants import MQTTv50, MQTTv311
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

DEADLINE_S = 20.0
EXPIRY_S = 600
Will = tuple[str, bytes, int, bool]
"""Topic, payload, QoS, retain."""


class Message:
    """The parameters of a client."""

    def __init__(self, topic: str, payload: bytes, qos: int, retain: bool, said: dict[str, Any] | None = None) -> None:
        self.topic, self.payload, self.qos, self.retain = topic, payload, qos, retain
        self.said = said or {}

    def __repr__(self) -> str:
        return f"{self.topic}={self.payload!r} qos {self.qos} retain {self.retain} {self.said}"


class Face:
    """One connection of one library."""

    CANNOT: ClassVar[frozenset[str]] = frozenset()
    version = 4
    websockets = False

    def __init__(self, name: str, *, clean: bool = True, will: Will | None = None) -> None:
        self.name, self.clean, self.will = name, clean, will
        self.messages: list[Message] = []
        self.present: bool | None = None
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def got(self, message: Message) -> None:
        self.messages.append(message)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for messages."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{self.name} has {self.messages}") from None

    async def connect(self, port: int) -> None:
        raise NotImplementedError

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        raise NotImplementedError

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def vanish(self) -> None:
        """Break the connection without DISCONNECT."""
        raise NotImplementedError


class Paho(Face):
    """paho-mqtt with its network thread."""

    async def connect(self, port: int) -> None:
        five = self.version == 5
        self.client = client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, self.name, clean_session=None if five else self.clean,
            protocol=paho.MQTTv5 if five else paho.MQTTv311, transport="websockets" if self.websockets else "tcp",
            reconnect_on_failure=False,
        )  # fmt: skip
        answered = asyncio.Event()

        def connected(_c: Any, _u: Any, flags: Any, reason: Any, _p: Any) -> None:
            assert not reason.is_failure, reason
            self.present = bool(flags.session_present)
            self._loop.call_soon_threadsafe(answered.set)

        def received(_c: Any, _u: Any, message: Any) -> None:
            said = _said(getattr(message, "properties", None))
            made = Message(message.topic, message.payload, message.qos, message.retain, said)
            self._loop.call_soon_threadsafe(self.got, made)

        self._granted = asyncio.Event()
        client.on_connect, client.on_message = connected, received
        client.on_subscribe = lambda *_: self._loop.call_soon_threadsafe(self._granted.set)
        if self.will is not None:
            client.will_set(*self.will)
        options: dict[str, Any] = {"clean_start": self.clean, "properties": _expiry()} if five else {}
        await asyncio.to_thread(client.connect, "127.0.0.1", port, 60, **options)
        client.loop_start()
        await asyncio.wait_for(answered.wait(), DEADLINE_S)

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        self._granted.clear()
        self.client.subscribe(topic_filter, qos)
        await asyncio.wait_for(self._granted.wait(), DEADLINE_S)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        said = _properties() if self.version == 5 else None
        info = self.client.publish(topic, payload, qos, retain, said)
        await asyncio.to_thread(info.wait_for_publish, DEADLINE_S)

    async def close(self) -> None:
        self.client.disconnect()
        await asyncio.to_thread(self.client.loop_stop)

    async def vanish(self) -> None:
        await asyncio.to_thread(self.client.loop_stop)
        _cut(self.client.socket())


class Paho5(Paho):
    version = 5


class PahoWebSockets(Paho5):
    websockets = True


class AioMqtt(Face):
    """aiomqtt, an asyncio interface to paho."""

    version = 5

    async def connect(self, port: int) -> None:
        will = None if self.will is None else aiomqtt.Will(*self.will)
        five = self.version == 5
        options: dict[str, Any] = (
            {"clean_start": self.clean, "properties": _expiry()} if five else {"clean_session": self.clean}
        )
        self.client = aiomqtt.Client(
            "127.0.0.1", port, identifier=self.name, will=will, transport="websockets" if self.websockets else "tcp",
            protocol=aiomqtt.ProtocolVersion.V5 if five else aiomqtt.ProtocolVersion.V311, websocket_path="/mqtt",
            **options,
        )  # fmt: skip
        await self.client.__aenter__()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(aiomqtt.MqttError):
            async for message in self.client.messages:
                said = _said(message.properties)
                self.got(Message(str(message.topic), bytes(message.payload), message.qos, message.retain, said))  # type: ignore[arg-type]

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        await self.client.subscribe(topic_filter, qos)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        await self.client.publish(topic, payload, qos, retain, _properties() if self.version == 5 else None)

    async def close(self) -> None:
        self._reading.cancel()
        await self.client.__aexit__(None, None, None)

    async def vanish(self) -> None:
        self._reading.cancel()
        _cut(self.client._client.socket())
        with contextlib.suppress(aiomqtt.MqttError):
            await self.client.__aexit__(None, None, None)


class AioMqtt311(AioMqtt):
    version = 4


class AioMqttWebSockets(AioMqtt):
    websockets = True


class Gmqtt(Face):
    """gmqtt, which implements the protocol itself."""

    version = 5

    async def connect(self, port: int) -> None:
        will = None
        if self.will is not None:
            topic, payload, qos, retain = self.will
            will = gmqtt.Message(topic, payload, qos=qos, retain=retain)
        more = {} if self.version != 5 or self.clean else {"session_expiry_interval": EXPIRY_S}
        self.client = gmqtt.Client(self.name, clean_session=self.clean, will_message=will, **more)
        self.client.set_config({"reconnect_retries": 0, "reconnect_delay": 0})
        self._granted = asyncio.Event()
        self.client.on_connect = lambda _client, flags, _code, _said: setattr(self, "present", bool(flags & 1))
        self.client.on_message = self._received
        self.client.on_subscribe = lambda *_: self._granted.set()
        await self.client.connect("127.0.0.1", port, version=MQTTv50 if self.version == 5 else MQTTv311)

    def _received(self, _client: Any, topic: str, payload: bytes, qos: int, said: dict[str, Any]) -> int:
        shown = {"user": said.get("user_property", []), "content_type": said.get("content_type", [None])[0]}
        self.got(Message(topic, bytes(payload), qos, bool(said["retain"]), shown))
        return 0

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        self._granted.clear()
        self.client.subscribe(topic_filter, qos)
        await asyncio.wait_for(self._granted.wait(), DEADLINE_S)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        said = {"user_property": [("k", "1"), ("k", "2")], "content_type": "text/plain"} if self.version == 5 else {}
        self.client.publish(topic, payload, qos=qos, retain=retain, **said)

    async def close(self) -> None:
        await self.client.disconnect()

    async def vanish(self) -> None:
        self.client.stop_reconnect()
        self.client._connection._transport.abort()


class Gmqtt311(Gmqtt):
    version = 4


class Amqtt(Face):
    """amqtt's client; 3.1.1 only."""

    scheme = "mqtt"

    async def connect(self, port: int) -> None:
        config: dict[str, Any] = {"auto_reconnect": False}
        if self.will is not None:
            topic, payload, qos, retain = self.will
            config["will"] = {"topic": topic, "message": payload.decode(), "qos": qos, "retain": retain}
        self.client = MQTTClient(self.name, config)
        tail = "/mqtt" if self.scheme == "ws" else "/"
        await self.client.connect(f"{self.scheme}://127.0.0.1:{port}{tail}", cleansession=self.clean)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            message = await self.client.deliver_message()
            assert message is not None
            packet = message.publish_packet
            self.got(Message(message.topic, bytes(message.data), message.qos, packet.retain_flag))

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        assert await self.client.subscribe([(topic_filter, qos)]) == [qos]

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        await self.client.publish(topic, payload, qos, retain)

    async def close(self) -> None:
        self._reading.cancel()
        await self.client.disconnect()

    async def vanish(self) -> None:
        self._reading.cancel()
        assert self.client._handler is not None
        writer = self.client._handler.writer
        assert writer is not None
        await writer.close()


class AmqttWebSockets(Amqtt):
    scheme = "ws"
    websockets = True


TCP: list[type[Face]] = [Paho, Paho5, AioMqtt311, AioMqtt, Gmqtt311, Gmqtt, Amqtt]
WEBSOCKETS: list[type[Face]] = [PahoWebSockets, AioMqttWebSockets, AmqttWebSockets]


def _properties() -> Properties:
    said = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    said.UserProperty = [("k", "1"), ("k", "2")]
    said.ContentType = "text/plain"
    return said


def _expiry() -> Properties:
    said = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    said.SessionExpiryInterval = EXPIRY_S
    return said


def _said(properties: Properties | None) -> dict[str, Any]:
    return {
        "user": list(getattr(properties, "UserProperty", [])),
        "content_type": getattr(properties, "ContentType", None),
    }


def _cut(sock: Any) -> None:
    with contextlib.suppress(OSError):
        getattr(sock, "_socket", sock).shutdown(socket.SHUT_RDWR)
