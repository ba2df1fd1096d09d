"""Delayed messages through `kill -9`: each acknowledged one is in its topic once, and not before its time.

Messages become due while the broker runs, while it is down, and in the moment it is killed.
"""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.bodies.pull_body import decode_range_pull_reply, encode_range_pull
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, MQTT_TOPIC_KEY, RecordView, iter_records
from tests.processes.rig import Client, Installation, Server, no_traceback

pytestmark = pytest.mark.processes
TOPIC = b"later/x"
DELAY_MS_MAX = 1_500
FRAME = 20


def entry(number: int, delay_ms: int) -> bytes:
    """A message with its number, its time of sending and its delay."""
    properties = ((MQTT_TOPIC_KEY, TOPIC), (CLIENT_ID_KEY, b"test"), (b"delay-ms", b"%d" % delay_ms))
    born_ms = time.time_ns() // 1_000_000
    return encode_image(
        flags=FLAG_MQTT | 1, queue_index=0xFFFF, born_ms=born_ms, topic=parent_topic(TOPIC),
        properties=properties, body=b"%d %d" % (number, delay_ms),
    )  # fmt: skip


class Load(threading.Thread):
    """Sends frames of delayed messages one after another, across kills; a frame that fails is not sent again."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[int] = []
        self.sent = 0
        self.stopped = threading.Event()
        self._address = address
        self._random = random.Random(4)
        self._grew = threading.Condition()

    def run(self) -> None:
        connection: BlockingConnection | None = None
        while not self.stopped.is_set():
            try:
                connection = connection or BlockingConnection.dial(self._address, 5_000)
                self._send(connection)
            except (LightMQError, OSError):
                connection = None
                self.stopped.wait(0.05)  # the server is being started

    def _send(self, connection: BlockingConnection) -> None:
        numbers = range(self.sent, self.sent + FRAME)
        self.sent += FRAME
        body = b"".join([entry(number, self._random.randint(1, DELAY_MS_MAX)) for number in numbers])
        checked(connection.request(Command(RequestCode.APPEND_MANY, body=body)))
        with self._grew:
            self.acknowledged += numbers
            self._grew.notify_all()

    def flowing(self, more: int = 400) -> None:
        """Return when this many more messages are acknowledged."""
        with self._grew:
            wanted = len(self.acknowledged) + more
            assert self._grew.wait_for(lambda: len(self.acknowledged) >= wanted, 60)


def stored(connection: BlockingConnection) -> list[RecordView]:
    """The records of the parent topic, queue by queue."""
    listed = json.loads(checked(connection.request(Command(RequestCode.TOPIC_LIST))).body)["topics"]
    records: list[RecordView] = []
    for queue in next(topic for topic in listed if topic["topic"] == "later")["queues"]:
        offset = 0
        while offset < queue["max"]:
            want = encode_range_pull(queue["id"], offset, queue["max"], 1 << 20)
            pulled = decode_range_pull_reply(
                checked(connection.request(Command(RequestCode.RANGE_PULL, body=want))).body
            )
            found = list(iter_records(pulled.blob))
            records += found
            offset += len(found)
    return records


@pytest.mark.parametrize(
    "kills", [2, pytest.param(15, marks=[pytest.mark.slow, pytest.mark.timeout(400)], id="15-slow")]
)
def test_delayed_messages_are_delivered_once_over_kills(tmp_path: Path, kills: int) -> None:
    server = Installation(tmp_path / "data")
    server.start()
    try:
        load = Load(server.address)
        load.start()
        for _ in range(kills):
            load.flowing()
            server.kill()
            server.start()
        load.flowing()
        load.stopped.set()
        load.join()
        last = Client(server, "last")
        last.subscribe(("later/#", 1))
        with BlockingConnection.dial(server.address) as connection:
            body = b"".join([entry(10**9, DELAY_MS_MAX + 100)])
            checked(connection.request(Command(RequestCode.APPEND_MANY, body=body)))
            last.until(lambda: any(message.payload.startswith(b"1000000000 ") for message in last.messages))
            records = stored(connection)
        last.close()
        check(load, records)
        server.end(15)
        no_traceback(server)
    finally:
        server.kill_if_running()


def check(load: Load, records: list[RecordView]) -> None:
    """Every acknowledged one is there, none twice, none early."""
    numbers = []
    for record in records:
        number, delay_ms = map(int, bytes(record.body).split())
        numbers.append(number)
        assert record.store_ms >= record.born_ms + delay_ms, number
    assert len(numbers) == len(set(numbers))
    assert set(load.acknowledged) <= set(numbers)
    assert len(load.acknowledged) >= 3 * 400


def test_both_mqtt_forms_from_a_real_client(tmp_path: Path) -> None:
    """The topic form of 3.1.1 and the user property of MQTT 5; subscribers get ordinary messages of the real topic."""
    server = Server(tmp_path / "data")
    server.start()
    try:
        watcher = Client(server, "watcher")
        watcher.subscribe(("later/#", 1))
        sender = Client(server, "sender")
        sender.publish("$delayed/1/later/old", b"after")
        sender.publish("later/old", b"before")
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = [("delay-ms", "900")]
        began = time.monotonic()
        modern = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "modern", protocol=mqtt.MQTTv5)
        modern.connect("127.0.0.1", server.port)
        modern.loop_start()
        modern.publish("later/new", b"five", 1, properties=properties).wait_for_publish(10)
        watcher.until(lambda: len(watcher.messages) == 3)
        assert time.monotonic() - began >= 0.85
        assert watcher.messages[0].payload == b"before"
        assert {(one.topic, one.payload) for one in watcher.messages[1:]} == {
            ("later/old", b"after"),
            ("later/new", b"five"),
        }
        modern.disconnect()
        modern.loop_stop()
        watcher.close()
        sender.close()
        server.end(15)
        no_traceback(server)
    finally:
        server.kill_if_running()
