"""A client library of MQTT 5 against a real server process: properties, codes and sessions as it sees them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.processes.rig import DEADLINE_S, Server

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A started server that is ended after the test."""
    folder: Path = tmp_path_factory.mktemp("mqtt5")
    started = Server(folder / "data")
    started.start()
    yield started
    started.kill_if_running()


def said(packet: int, **values: Any) -> Properties:
    """Properties of a packet, by paho's names."""
    properties = Properties(packet)
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


class Client5:
    """A paho client of MQTT 5 that keeps what it received."""

    def __init__(self, server: Server, client_id: str, *, clean: bool = True, **connect: Any) -> None:
        self.changed = threading.Condition()
        self.messages: list[mqtt.MQTTMessage] = []
        self.connack: tuple[bool, int, Any] | None = None
        self.codes: list[int] = []
        self.left: int | None = None
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)
        self.client.on_connect = lambda _c, _d, flags, reason, found: self._set(
            connack=(flags.session_present, reason.value, found)
        )
        self.client.on_message = lambda _c, _d, message: self._set(messages=[*self.messages, message])
        self.client.on_subscribe = lambda _c, _d, _mid, reasons, _p: self._set(codes=[one.value for one in reasons])
        self.client.on_disconnect = lambda _c, _d, _flags, reason, _p: self._left(reason.value)
        properties = said(PacketTypes.CONNECT, **connect) if connect else None
        self.client.connect("127.0.0.1", server.port, 60, clean_start=clean, properties=properties)
        self.client.loop_start()
        self.until(lambda: self.connack is not None)

    def _set(self, **values: Any) -> None:
        with self.changed:
            for name, value in values.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def _left(self, code: int) -> None:
        self.client.disconnect()  # or it would reconnect
        self._set(left=code)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a change made by a callback."""
        with self.changed:
            assert self.changed.wait_for(condition, DEADLINE_S), f"{len(self.messages)} messages"

    def subscribe(self, topic_filter: str, options: SubscribeOptions, identifier: int = 0) -> int:
        """Subscribe; the code of the SUBACK."""
        self.codes = []
        found = said(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=identifier) if identifier else None
        self.client.subscribe(topic_filter, options=options, properties=found)
        self.until(lambda: bool(self.codes))
        return self.codes[0]

    def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False, **values: Any) -> None:
        """Publish and wait for the acknowledgement."""
        found = said(PacketTypes.PUBLISH, **values) if values else None
        self.client.publish(topic, payload, qos, retain, found).wait_for_publish(DEADLINE_S)

    def close(self) -> None:
        """Send DISCONNECT."""
        self.client.disconnect()
        self.client.loop_stop()


def test_a_request_and_its_answer(server: Server) -> None:
    """Response topic, correlation data, user properties, format and type, with every QoS and an identifier."""
    asker, service = Client5(server, "asker"), Client5(server, "service")
    assert service.subscribe("ask/+", SubscribeOptions(qos=2), 7) == 2
    assert asker.subscribe("answers", SubscribeOptions(qos=2)) == 2
    for qos in range(3):
        asker.publish(
            "ask/it", b"%d" % qos, qos, ResponseTopic="answers", CorrelationData=b"\x00\x01", ContentType="n",
            PayloadFormatIndicator=1, UserProperty=[("b", "1"), ("a", "2"), ("b", "3")],
        )  # fmt: skip
    service.until(lambda: len(service.messages) == 3)
    for qos, message in enumerate(service.messages):
        found = message.properties
        assert (message.qos, message.payload, found.SubscriptionIdentifier) == (qos, b"%d" % qos, [7])
        assert (found.ResponseTopic, found.CorrelationData, found.ContentType) == ("answers", b"\x00\x01", "n")
        assert (found.PayloadFormatIndicator, found.UserProperty) == (1, [("b", "1"), ("a", "2"), ("b", "3")])
        service.publish(found.ResponseTopic, message.payload, 2, CorrelationData=found.CorrelationData)
    asker.until(lambda: len(asker.messages) == 3)
    assert [message.payload for message in asker.messages] == [b"0", b"1", b"2"]
    for client in (asker, service):
        client.close()


def test_a_session_with_an_expiry_and_what_it_missed(server: Server) -> None:
    """The session is kept as long as requested; it gets those messages it missed that have not expired."""
    away = Client5(server, "away", clean=False, SessionExpiryInterval=1_000)
    assert away.connack is not None
    assert not away.connack[0]
    away.subscribe("missed", SubscribeOptions(qos=1))
    away.close()
    sender = Client5(server, "sender")
    sender.publish("missed", b"kept", 1, MessageExpiryInterval=900)
    back = Client5(server, "away", clean=False, SessionExpiryInterval=0)
    assert back.connack is not None
    assert back.connack[0]
    back.until(lambda: bool(back.messages))
    assert 0 < back.messages[0].properties.MessageExpiryInterval <= 900
    back.close()
    again = Client5(server, "away", clean=False)
    assert again.connack is not None
    assert not again.connack[0]
    for client in (sender, again):
        client.close()


def test_what_the_server_assigns_and_reports(server: Server) -> None:
    """An id for a client without one, its limits, a refused publish, the end of a connection that was taken over."""
    nameless = Client5(server, "")
    assert nameless.connack is not None
    found = nameless.connack[2]
    assert found.AssignedClientIdentifier
    assert (found.ReceiveMaximum, found.TopicAliasMaximum) == (1_024, 64)
    own = SubscribeOptions(qos=1, noLocal=True, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
    assert nameless.subscribe("mine", own) == 1
    nameless.publish("mine", b"not to me", 1, retain=True)
    other = Client5(server, found.AssignedClientIdentifier)
    nameless.until(lambda: nameless.left is not None)
    assert nameless.left == 0x8E
    assert nameless.messages == []
    other.close()
