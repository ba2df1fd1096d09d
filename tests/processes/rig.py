"""Server processes and MQTT clients for the tests of this folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt

from tests.support import warm
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 30.0


class Server:
    """`lightmq up` on a data directory, on the same MQTT port at every start; its log output is in `log`."""

    python = (sys.executable, "-m", "lightmq")

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.log = data.with_name(data.name + ".log")
        self.options = options
        self.port = 0
        self.ports: dict[str, int] = {}
        self.variables: dict[str, str] = {}
        self.process: subprocess.Popen[str] | warm.WarmServer | None = None

    def start(self) -> None:
        """Start and wait until it prints its ports."""
        self.port = self.port or free_port()
        ports = ["--mqtt-port", str(self.port), "--remoting-port", "0", "--admin-port", "0"]
        self.ports = self.launch("up", "--data", str(self.data), *ports, *self.options)
        self.port = self.ports["mqtt"]

    def launch(self, *arguments: str) -> dict[str, int]:
        """Run the command; returns the ports it prints."""
        variables = {**os.environ, "PYTHONPATH": str(ROOT), **self.variables}
        if warm.suits(variables):
            given = [*arguments, "--json"]
            self.process = warm.WarmServer(given, folder=ROOT, log=self.log, variables=variables)
        else:
            self.process = self._begin([*self.python, *arguments, "--json"], variables)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()[-2_000:]
        ports: dict[str, int] = json.loads(line)
        return ports

    @property
    def console_token(self) -> str:
        """The administrator's token of the first start, which names its file where its output is no terminal."""
        return Path(str(self.ports["console_token_file"])).read_text().strip()

    def _begin(self, command: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
        with self.log.open("ab") as stream:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True, cwd=ROOT, env=variables)

    def kill_if_running(self) -> None:
        """At the end of a test, whatever its outcome."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def kill(self) -> None:
        """kill -9."""
        self.end(signal.SIGKILL)

    def end(self, number: int) -> int:
        """Send a signal and wait for the end; returns the exit status."""
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


class Installation(Server):
    """`lightmq up` whose other ports stay the same too, for clients of the log."""

    remoting_port = 0

    def start(self) -> None:
        """Start and wait until it prints its ports."""
        self.port = self.port or free_port()
        self.remoting_port = self.remoting_port or free_port()
        ports = ["--mqtt-port", str(self.port), "--remoting-port", str(self.remoting_port), "--admin-port", "0"]
        self.ports = self.launch("up", "--data", str(self.data), *ports, *self.options)

    @property
    def address(self) -> str:
        """The address for clients of the log."""
        return f"127.0.0.1:{self.remoting_port}"


class Client:
    """A paho client that keeps what it received."""

    def __init__(self, server: Server, client_id: str, *, clean: bool = True, will: tuple[Any, ...] = ()) -> None:
        self.messages: list[mqtt.MQTTMessage] = []
        self.latest: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.present: bool | None = None
        self.code = -1
        self.granted: list[int] = []
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id, clean_session=clean)
        self.client.max_inflight_messages_set(200)
        self.client.max_queued_messages_set(0)
        self.client.reconnect_delay_set(1, 1)
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
            self.latest[message.topic] = message.payload
            self.changed.notify_all()

    def _subscribed(self, _client: Any, _data: Any, _mid: int, reasons: Any, _properties: Any) -> None:
        with self.changed:
            self.granted = [reason.value for reason in reasons]
            self.changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a change made by a callback."""
        with self.changed:
            assert self.changed.wait_for(condition, DEADLINE_S), f"{len(self.messages)} messages"

    def until_come(self, condition: Callable[[], bool]) -> None:
        """Wait for messages as long as more of them arrive: their rate depends on the machine."""
        with self.changed:
            while not condition():
                seen = len(self.messages)
                came = self.changed.wait_for(lambda seen=seen: len(self.messages) > seen, DEADLINE_S)  # type: ignore[misc]
                assert came or condition(), f"nothing comes after {seen} messages"

    def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        """Subscribe and wait for the codes of the SUBACK."""
        self.granted = []
        self.client.subscribe(list(filters))
        self.until(lambda: bool(self.granted))
        return self.granted

    def unsubscribe(self, topic_filter: str) -> None:
        """Unsubscribe and wait for the UNSUBACK: nothing new of the filter is sent after it [MQTT-3.10.4-2]."""
        answered = threading.Event()
        self.client.on_unsubscribe = lambda *_arguments: answered.set()
        self.client.unsubscribe(topic_filter)
        assert answered.wait(DEADLINE_S), f"no UNSUBACK for {topic_filter}"

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


class Process(Server):
    """One part alone; `port` is what it listens on for its clients."""

    def __init__(self, log: Path, arguments: list[str], speaks: str) -> None:
        super().__init__(log)
        self.arguments = arguments
        self.speaks = speaks

    def start(self) -> None:
        """Start and wait until it prints its port; the same one at every start."""
        self.port = self.port or free_port()
        port = [f"--{self.speaks}-port", str(self.port), "--admin-port", "0"]
        self.ports = self.launch(*self.arguments, *port)
        self.port = self.ports[self.speaks]


class Stream:
    """A client that publishes rising numbers with QoS 1 to its topic from a thread, some always in flight."""

    ON_THEIR_WAY = 100

    def __init__(self, server: Server, topic: str, *, padding_bytes: int = 0) -> None:
        self.topic = topic
        self._padding = b" " * padding_bytes
        self.sent: list[mqtt.MQTTMessageInfo] = []
        self.client = Client(server, f"stream-{topic.replace('/', '-')}", clean=False)
        self._credit = threading.Semaphore(self.ON_THEIR_WAY)
        self._ended = threading.Event()
        self._confirmed = 0
        self.client.client.on_publish = self._published
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _published(self, *_: Any) -> None:
        self._credit.release()
        with self.client.changed:
            self._confirmed += 1
            self.client.changed.notify_all()

    def _run(self) -> None:
        while not self._ended.is_set():
            if self._credit.acquire(timeout=0.1):
                self.sent.append(self.client.client.publish(self.topic, b"%d" % len(self.sent) + self._padding, 1))

    def flowing(self, count: int = 300) -> None:
        """Return when this many more messages have been sent and all sent before them are acknowledged."""
        sent, wanted = len(self.sent), self._confirmed + count + self.ON_THEIR_WAY
        self.client.until(lambda: self._confirmed >= wanted or not self._thread.is_alive())
        assert len(self.sent) > sent

    def end(self) -> int:
        """Stop, wait until everything is acknowledged and disconnect; returns the number of messages."""
        self._ended.set()
        self._thread.join(DEADLINE_S)
        self.client.until(lambda: self._confirmed == len(self.sent))
        self.client.close()
        return len(self.sent)


def expect_all(client: Client, counts: dict[str, int]) -> None:
    """Wait until the client has the last number of every topic; all must be there, their first deliveries in order."""
    client.until_come(lambda: all(client.latest.get(topic) == b"%d" % (count - 1) for topic, count in counts.items()))
    for topic, count in counts.items():
        assert list(dict.fromkeys(client.numbers(topic))) == list(range(count)), topic


def no_traceback(*servers: Server) -> None:
    """No unexpected error was logged."""
    for server in servers:
        assert "Traceback" not in server.log.read_text(), server.log
