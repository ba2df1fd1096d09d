"""MQTT clients against a real server process: what is acknowledged survives `kill -9` of everything."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 30.0

pytestmark = pytest.mark.processes


class Server:
    """`lightmq up` on a data directory, on the same MQTT port at every start."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start and wait until it says its ports."""
        command = [sys.executable, "-m", "lightmq", "up", "--json", "--data", str(self.data)]
        command += ["--mqtt-port", str(self.port), "--remoting-port", "0", "--admin-port", "0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline())["mqtt"])

    def kill(self) -> None:
        """kill -9."""
        self.end(signal.SIGKILL)

    def end(self, number: int) -> int:
        """Send a signal and wait for the end; the exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def rss_kb(self) -> int:
        """Anonymous memory of the process: what it allocated, without the mapped log."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0])


class Client:
    """A paho client that remembers what it got."""

    def __init__(self, server: Server, client_id: str, *, clean: bool = True, will: tuple[Any, ...] = ()) -> None:
        self.messages: list[mqtt.MQTTMessage] = []
        self.changed = threading.Condition()
        self.present: bool | None = None
        self.code = -1
        self.granted: list[int] = []
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id, clean_session=clean)
        self.client.max_inflight_messages_set(200)
        self.client.max_queued_messages_set(0)
        self.client.on_connect = self._connected
        self.client.on_message = self._received
        self.client.on_subscribe = self._subscribed
        if will:
            self.client.will_set(*will)
        self.client.connect("127.0.0.1", server.port, keepalive=60)
        self.client.loop_start()
        self.until(lambda: self.present is not None)

    def _connected(self, _client: Any, _data: Any, flags: Any, reason: Any, _properties: Any) -> None:
        with self.changed:
            self.present, self.code = flags.session_present, reason.value
            self.changed.notify_all()

    def _received(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()

    def _subscribed(self, _client: Any, _data: Any, _mid: int, reasons: Any, _properties: Any) -> None:
        with self.changed:
            self.granted = [reason.value for reason in reasons]
            self.changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that a callback changes."""
        with self.changed:
            assert self.changed.wait_for(condition, DEADLINE_S), f"{len(self.messages)} messages"

    def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        """Subscribe and wait for the SUBACK's codes."""
        self.granted = []
        self.client.subscribe(list(filters))
        self.until(lambda: bool(self.granted))
        return self.granted

    def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        """Publish and wait for the acknowledgement."""
        self.client.publish(topic, payload, qos, retain).wait_for_publish(DEADLINE_S)

    def publish_many(self, topic: str, first: int, count: int) -> None:
        """QoS 1 messages with rising numbers; returns when all are acknowledged."""
        sent = [self.client.publish(topic, b"%d" % number, 1) for number in range(first, first + count)]
        for info in sent:
            info.wait_for_publish(DEADLINE_S)
            assert info.is_published()

    def numbers(self, topic: str) -> list[int]:
        """Payloads of a topic in order of arrival."""
        return [int(message.payload) for message in self.messages if message.topic == topic]

    def close(self) -> None:
        """DISCONNECT."""
        self.client.disconnect()
        self.client.loop_stop()

    def vanish(self) -> None:
        """Break the socket without DISCONNECT."""
        self.client.loop_stop()
        sock = self.client.socket()
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A started server that is gone afterwards."""
    started = Server(tmp_path / "data")
    started.start()
    yield started
    if started.process is not None and started.process.poll() is None:
        started.kill()


def test_the_life_of_messages(server: Server) -> None:
    """QoS 0 and 1, wildcards, one copy for overlapping filters, retained, wills, take-over, the server's own topics."""
    publisher = Client(server, "publisher")
    subscriber = Client(server, "subscriber")
    assert subscriber.subscribe(("plant/+/temp", 1), ("plant/#", 0), ("other", 0)) == [1, 0, 0]
    publisher.publish("plant/7/temp", b"21")
    publisher.publish("plant/7/state", b"on", 0)
    publisher.publish("other", b"x", 1)
    publisher.publish("plant/7/temp", b"22", retain=True)
    subscriber.until(lambda: len(subscriber.messages) >= 4)
    got = {(m.topic, m.payload, m.qos, m.retain) for m in subscriber.messages}
    assert got == {
        ("plant/7/temp", b"21", 1, False),
        ("plant/7/state", b"on", 0, False),
        ("other", b"x", 0, False),
        ("plant/7/temp", b"22", 1, False),
    }
    late = Client(server, "late", will=("plant/wills", b"gone", 1, False))
    late.subscribe(("#", 1))
    late.until(lambda: bool(late.messages))
    assert [(m.topic, m.payload, m.retain) for m in late.messages] == [("plant/7/temp", b"22", True)]
    late.vanish()
    subscriber.until(lambda: subscriber.messages[-1].topic == "plant/wills")
    replaced = Client(server, "taken", will=("plant/wills", b"taken over", 1, False))
    replaced.client.on_disconnect = lambda client, *_: client.disconnect()  # or it would come back and take over again
    taker = Client(server, "taken")
    subscriber.until(lambda: subscriber.messages[-1].payload == b"taken over")
    intruder = Client(server, "intruder")
    gone = threading.Event()
    intruder.client.on_disconnect = lambda client, *_: (gone.set(), client.disconnect())
    intruder.client.publish("$SYS/broker/uptime", b"mine", 1)
    assert gone.wait(DEADLINE_S)
    for client in (publisher, subscriber, taker):
        client.close()
    assert not [m for m in subscriber.messages if m.topic.startswith("$")]
    assert server.end(signal.SIGTERM) == 0


def test_an_offline_session_gets_everything_after_kill_9(server: Server) -> None:
    """8,000 acknowledged messages, retained ones, a stored session: all there after the process was killed."""
    durable = Client(server, "durable", clean=False)
    durable.subscribe(("line/#", 1))
    durable.close()
    publisher = Client(server, "publisher")
    publisher.publish("line/retained", b"-1", retain=True)
    publisher.publish_many("line/a", 0, 8_000)
    server.kill()
    publisher.client.loop_stop()
    server.start()
    durable = Client(server, "durable", clean=False)
    assert durable.present
    durable.until(lambda: len(durable.numbers("line/a")) >= 8_000)
    assert durable.numbers("line/a") == list(range(8_000))
    fresh = Client(server, "fresh")
    fresh.subscribe(("line/retained", 1))
    fresh.until(lambda: bool(fresh.messages))
    assert [(m.payload, m.retain) for m in fresh.messages] == [(b"-1", True)]
    for client in (durable, fresh):
        client.close()


def test_an_online_session_misses_nothing_acknowledged(server: Server) -> None:
    """Killed in the middle of the stream: every acknowledged message arrives, a topic's order holds."""
    durable = Client(server, "durable", clean=False)
    durable.subscribe(("line/#", 1))
    publisher = Client(server, "publisher", clean=False)
    infos = [publisher.client.publish("line/a", b"%d" % number, 1) for number in range(8_000)]
    durable.until(lambda: len(durable.messages) > 1_000)
    server.kill()
    publisher.client.loop_stop()
    acknowledged = [number for number, info in enumerate(infos) if info.is_published()]
    assert acknowledged
    server.start()
    deadline = time.monotonic() + DEADLINE_S
    while not set(acknowledged) <= set(durable.numbers("line/a")) and time.monotonic() < deadline:
        with durable.changed:
            durable.changed.wait(0.2)
    numbers = durable.numbers("line/a")
    assert set(acknowledged) <= set(numbers)
    first_seen = list(dict.fromkeys(numbers))
    assert first_seen == sorted(first_seen)
    assert durable.present
    durable.close()


def test_a_slow_reader_costs_no_memory(server: Server) -> None:
    """A subscriber that does not read: the server's memory stays flat, and it gets everything when it reads again."""
    slow = Client(server, "slow")
    slow.subscribe(("bulk/#", 0))
    slow.client.loop_stop()
    publisher = Client(server, "publisher")
    payload = b"x" * 16_384
    before_kb = server.rss_kb()
    sent = [publisher.client.publish("bulk/1", payload, 1) for _ in range(4_000)]
    for info in sent:
        info.wait_for_publish(DEADLINE_S)
    grown_kb = server.rss_kb() - before_kb
    assert grown_kb < 40_000, f"{4_000 * 16} KB published, the process grew by {grown_kb} KB"
    slow.client.loop_start()
    slow.until(lambda: len(slow.messages) == 4_000)
    publisher.close()
    slow.close()


class Process(Server):
    """One part alone; `port` is what it listens on for its clients."""

    def __init__(self, arguments: list[str], speaks: str) -> None:
        super().__init__(Path())
        self.arguments = arguments
        self.speaks = speaks

    def start(self) -> None:
        """Start and wait until it says its port; the same one at every start."""
        command = [sys.executable, "-m", "lightmq", *self.arguments, f"--{self.speaks}-port", str(self.port)]
        self.process = subprocess.Popen(
            [*command, "--admin-port", "0", "--json"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline())[self.speaks])


def test_a_killed_broker_leaves_idle_connections_open(tmp_path: Path) -> None:
    """Proxy and broker as processes: the broker is killed and comes back; nobody who waited has to connect again."""
    broker = Process(["broker", "--data", str(tmp_path / "data")], "remoting")
    broker.start()
    proxy = Process(["proxy", "--set", f"proxy.broker=127.0.0.1:{broker.port}"], "mqtt")
    try:
        proxy.start()
        durable, clean = Client(proxy, "durable", clean=False), Client(proxy, "clean")
        disconnects: list[object] = []
        for client in (durable, clean):
            client.subscribe(("line/#", 1))
            client.client.on_disconnect = lambda *arguments: disconnects.append(arguments)
        publisher = Client(proxy, "publisher")
        publisher.publish_many("line/a", 0, 500)
        broker.kill()
        infos = [publisher.client.publish("line/a", b"%d" % number, 1) for number in range(500, 1_000)]
        broker.start()
        for info in infos:
            info.wait_for_publish(DEADLINE_S)
        for client in (durable, clean):
            client.until(lambda client=client: set(client.numbers("line/a")) == set(range(1_000)))
        assert not disconnects
        for client in (durable, clean, publisher):
            client.close()
        assert proxy.end(signal.SIGTERM) == 0
    finally:
        for part in (proxy, broker):
            if part.process is not None and part.process.poll() is None:
                part.kill()
