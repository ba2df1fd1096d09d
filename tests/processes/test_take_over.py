"""A session moves between proxies: taken over while connected, continued after `kill -9`, refused to others."""

from __future__ import annotations

import asyncio
import queue
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from mqtt_proxy.access.credentials import make_hash
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.properties import SESSION_EXPIRY
from tests.processes.rig import DEADLINE_S, Process, no_traceback

pytestmark = pytest.mark.processes

TAKEN_OVER, NOT_AUTHORIZED = 0x8E, 0x87


class Parts:
    """A broker and two proxies that know two users."""

    def __init__(self, directory: Path) -> None:
        self.broker = Process(
            directory / "broker",
            ["broker", "--data", str(directory / "data"), "--set", "broker.proxy_grace_ms=1000"],
            "remoting",
        )
        self.broker.start()
        users = directory / "users"
        users.write_text("".join(f"{user}:{make_hash(user)}\n" for user in ("anna", "otto")))
        users.chmod(0o600)
        options = ["--set", f"proxy.broker=127.0.0.1:{self.broker.port}", "--password-file", str(users)]
        options += ["--set", "proxy.host=127.0.0.1", "--set", "proxy.reconnect_delay_ms_max=100"]
        self.proxies = [Process(directory / name, ["proxy", *options], "mqtt") for name in ("one", "two")]
        for proxy in self.proxies:
            proxy.start()

    def all(self) -> list[Process]:
        return [self.broker, *self.proxies]


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with ExitStack() as stack:
        made = Parts(tmp_path)
        for process in made.all():
            stack.callback(process.kill_if_running)
        yield made
        no_traceback(*made.all())


class Client5:
    """An MQTT 5 client whose events are awaited."""

    def __init__(
        self,
        proxy: Process,
        client_id: str,
        user: str = "anna",
        *,
        clean: bool = False,
        will: tuple[str, int] | None = None,
        manual_ack: bool = False,
    ) -> None:
        self.connected: queue.Queue[tuple[int, bool]] = queue.Queue()
        self.disconnected: queue.Queue[int] = queue.Queue()
        self.messages: queue.Queue[mqtt.MQTTMessage] = queue.Queue()
        self.granted: queue.Queue[list[int]] = queue.Queue()
        client = self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5, manual_ack=manual_ack
        )
        client.username_pw_set(user, user)
        client.on_connect = lambda _c, _d, flags, reason, _p: self.connected.put((reason.value, flags.session_present))
        client.on_disconnect = lambda _c, _d, _f, reason, _p: self.disconnected.put(reason.value)
        client.on_message = lambda _c, _d, message: self.messages.put(message)
        client.on_subscribe = lambda _c, _d, _m, reasons, _p: self.granted.put([one.value for one in reasons])
        if will is not None:
            properties = Properties(PacketTypes.WILLMESSAGE)
            properties.WillDelayInterval = will[1]
            properties.UserProperty = ("colour", "red")
            client.will_set(will[0], b"gone", 1, properties=properties)
        wanted = Properties(PacketTypes.CONNECT)
        wanted.SessionExpiryInterval = 600
        client.connect("127.0.0.1", proxy.port, clean_start=clean, properties=wanted)
        client.loop_start()
        self.code, self.present = self.connected.get(timeout=DEADLINE_S)

    def subscribe(self, topic_filter: str, options: SubscribeOptions, identifier: int = 0) -> None:
        properties = Properties(PacketTypes.SUBSCRIBE)
        if identifier:
            properties.SubscriptionIdentifier = identifier
        self.client.subscribe(topic_filter, options=options, properties=properties)
        assert self.granted.get(timeout=DEADLINE_S) == [options.QoS]

    def publish(self, topic: str, payload: bytes, **options: Any) -> None:
        self.client.publish(topic, payload, 1, **options).wait_for_publish(DEADLINE_S)

    def next(self) -> mqtt.MQTTMessage:
        return self.messages.get(timeout=DEADLINE_S)

    def vanish(self) -> None:
        """Break the socket without DISCONNECT."""
        self.client.loop_stop()
        sock = self.client.socket()
        assert sock is not None
        sock.close()

    def close(self, reason: int = 0) -> None:
        self.client.disconnect(mqtt.ReasonCode(PacketTypes.DISCONNECT, identifier=reason))
        self.client.loop_stop()


def test_a_session_is_taken_over_through_another_proxy(parts: Parts) -> None:
    """The first connection gets 0x8E; subscriptions, options and unacknowledged messages move along."""
    one, two = parts.proxies
    sender = Client5(two, "sender", clean=True)
    first = Client5(one, "c", manual_ack=True)
    assert (first.code, first.present) == (0, False)
    first.subscribe("t/+", SubscribeOptions(1, noLocal=True, retainAsPublished=True), 7)
    sender.publish("t/1", b"1", retain=True)
    assert first.next().payload == b"1"
    second = Client5(two, "c")
    assert (second.code, second.present) == (0, True)
    assert first.disconnected.get(timeout=DEADLINE_S) == TAKEN_OVER
    first.client.loop_stop()
    again = second.next()
    assert (again.payload, again.dup, again.retain) == (b"1", True, True)
    assert again.properties.SubscriptionIdentifier == [7]
    second.publish("t/own", b"not for me")
    sender.publish("t/2", b"2", retain=True)
    message = second.next()
    assert (message.payload, message.retain, message.properties.SubscriptionIdentifier) == (b"2", True, [7])
    one.kill()  # nothing was left of the session
    sender.publish("t/3", b"3")
    assert second.next().payload == b"3"
    second.close()
    sender.close()


def test_another_users_session_is_refused(parts: Parts) -> None:
    """Neither to resume nor to clean it, and the owner does not notice."""
    one, two = parts.proxies
    owner = Client5(one, "c")
    owner.subscribe("t", SubscribeOptions(1))
    for clean in (False, True):
        thief = Client5(two, "c", "otto", clean=clean)
        assert thief.code == NOT_AUTHORIZED
        thief.client.loop_stop()
    owner.publish("t", b"mine")
    assert owner.next().payload == b"mine"
    owner.close()
    thief = Client5(two, "c", "otto")
    assert thief.code == NOT_AUTHORIZED
    thief.client.loop_stop()
    back = Client5(two, "c")
    assert (back.code, back.present) == (0, True)
    back.close()


def test_wills_wait_and_are_cancelled(parts: Parts) -> None:
    """The delay of MQTT 5, its end by a return, DISCONNECT with 0x04, properties of the message."""
    one, two = parts.proxies
    watcher = Client5(two, "watcher", clean=True)
    watcher.subscribe("wills/#", SubscribeOptions(1))
    cancelled = Client5(one, "cancelled", will=("wills/cancelled", 1))
    cancelled.vanish()
    back = Client5(two, "cancelled")
    assert (back.code, back.present) == (0, True)
    Client5(one, "waits", will=("wills/waits", 2)).vanish()
    Client5(one, "asked", will=("wills/asked", 0)).close(0x04)
    Client5(one, "leaves", will=("wills/leaves", 0)).close(0x00)
    asked, waited = watcher.next(), watcher.next()
    assert [asked.topic, waited.topic] == ["wills/asked", "wills/waits"]
    assert waited.properties.UserProperty == [("colour", "red")]
    assert watcher.messages.empty()
    back.close()
    watcher.close()


async def fought(ports: list[int], until_s: float) -> Counter[int]:
    """The codes that many sockets with one client id get, each until the end; -1 is a socket closed without one."""
    codes: Counter[int] = Counter()
    connect = packets.Connect("fought", False, 0, "anna", b"anna", level=5, properties={SESSION_EXPIRY: 600})

    async def fighter(port: int) -> None:
        while time.monotonic() < until_s:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(encode(connect, 5))
            answer = await reader.read(4)
            codes[answer[3] if len(answer) == 4 else -1] += 1
            with suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(reader.read(), max(0.1, until_s - time.monotonic()))
            writer.transport.abort()

    await asyncio.gather(*(fighter(port) for port in ports * 5))
    return codes


def test_a_fight_for_a_client_id_leaves_nobody_without_an_answer(parts: Parts) -> None:
    """At two proxies at once: each CONNECT is accepted or refused as busy, and none is an internal error."""
    codes = asyncio.run(fought([proxy.port for proxy in parts.proxies], time.monotonic() + 4))
    assert set(codes) == {0, 0x89}, codes
    for proxy in parts.proxies:
        assert "step_failed" not in proxy.log.read_text()
