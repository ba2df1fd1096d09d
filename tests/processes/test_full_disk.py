"""A file system without a byte left: clear refusals, reading continues, and nothing acknowledged is missing.

Every client gets a reason; reading, deleting and the pages continue, and so does writing as soon as there is room.
`small_disk` is a real file system, so what runs into its end is the operating system's own refusal. Two servers meet
it: one stops in time, at its floor; the other has none and finds out by a write that fails.
"""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remoting.client.admin import topic_fields
from remoting.client.batching import Message
from remoting.client.blocking import BlockingConnection, checked
from remoting.client.threads import Producer
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from remoting.protocol.records.stored_message import iter_stored
from spark_connector.brokers import find_masters
from spark_connector.errors import BrokerRefused
from spark_connector.options.read_write import parse_write
from spark_connector.writing import sink
from spark_connector.writing.row_encoder import EncodedRows
from tests.processes import wire
from tests.processes.rig import DEADLINE_S, ROOT, Client, Server, no_traceback
from tests.support.spark_rows import send_rows

MIB = 1024 * 1024
FULL = ResponseCode.SERVICE_NOT_AVAILABLE
TOLD = "the disk of this broker is full, nothing was stored: disk full: "
REFUSED_PUBLISHES = 'rocketmq_mqtt_publishes_refused_total{reason="broker_refused"}'
REFUSED_REQUESTS = 'rocketmq_requests_refused_total{reason="disk_full"}'
PLACE = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
SMALL_LOG_FILES = f"--set=broker.store.segment_size_bytes={16 * MIB}"
A_FLOOR = (f"--set=broker.store.free_space_bytes_min={12 * MIB}", f"--set=broker.store.ballast_size_bytes={4 * MIB}")
NO_FLOOR = ("--set=broker.store.free_space_bytes_min=0", "--set=broker.store.ballast_size_bytes=0")

pytestmark = pytest.mark.processes


class Scene:
    """A server on a small disk, what it acknowledged, and a subscriber from before the disk was full."""

    def __init__(self, server: Server, filler: Path) -> None:
        self.server = server
        self.filler = filler
        filler.write_bytes(bytes(40 * MIB))  # files of others
        self.address = f"127.0.0.1:{server.ports['remoting']}"
        self.connection = BlockingConnection.dial(self.address)
        self.acknowledged: list[int] = []
        for topic in ("orders", "unwanted"):
            self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **topic_fields(topic, 1))
        for number in range(5):
            assert self.send(b"%d" % number).code == 0
        self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **PLACE, commitOffset="2")
        sleeper = Client(server, "sleeper", clean=False)
        sleeper.subscribe(("line/#", 1))
        sleeper.close()

    def publish_until_refused(self) -> None:
        """QoS 1 from a client that does not repeat; every PUBACK it gets counts."""
        peer = wire.Peer(self.server.port)
        peer.send(wire.connect("publisher"))
        assert peer.receive(4) == b"\x20\x02\x00\x00"
        while True:
            number = len(self.acknowledged)
            packet = number % 60_000 + 1
            peer.send(wire.publish("line/a", b"%d " % number + bytes(20_000), qos=1, packet_id=packet))
            if peer.receive(4) != b"\x40\x02" + packet.to_bytes(2):
                break
            self.acknowledged.append(number)
            assert number < 20_000
        peer.close()

    def take_the_rest(self) -> None:
        """Fill the file system to its last byte, with what the server gives back of files that it could not finish."""
        until(self._takes_nothing)

    def _takes_nothing(self) -> bool:
        with self.filler.open("ab", buffering=0) as stream:
            for size in (MIB, 4096, 1):
                with suppress(OSError):
                    while stream.write(bytes(size)):
                        pass
        another = self.filler.with_name("another")
        try:
            another.write_bytes(b"x")
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return True
        finally:
            another.unlink(missing_ok=True)
        return False

    def ask(self, code: int, body: bytes = b"", **fields: str) -> Command:
        """An answer that must be a success."""
        return checked(self.connection.request(Command(code, fields=fields, body=body)))

    def send(self, body: bytes) -> Command:
        """RocketMQ's SEND_MESSAGE; returns any answer."""
        return self.connection.request(
            Command(RequestCode.SEND_MESSAGE_V2, fields={"b": "orders", "e": "0"}, body=body)
        )

    def pulled(self) -> list[bytes]:
        """The bodies of `orders`, pulled as RocketMQ's consumers do."""
        more = {"queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "subscription": "*"}
        reply = self.ask(RequestCode.PULL_MESSAGE, **PLACE, **more, suspendTimeoutMillis="0")
        return [message.body for message in iter_stored(reply.body)]

    def page(self, name: str) -> tuple[int, str]:
        """A page of the administration port."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.server.ports['admin']}/{name}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """One line of /metrics; 0 while it is not there."""
        lines = [line for line in self.page("metrics")[1].splitlines() if line.startswith(name)]
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0


@pytest.fixture(params=[A_FLOOR, NO_FLOOR], ids=["floor", "no-floor"])
def scene(small_disk: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A server that still has room."""
    server = Server(small_disk / "data", SMALL_LOG_FILES, *request.param)
    server.log = small_disk.with_name("server.log")
    try:
        server.start()
        yield Scene(server, small_disk / "filler")
    finally:
        server.kill_if_running()


def test_a_full_disk_stops_only_what_would_be_stored(scene: Scene) -> None:
    """Refusals in each protocol, everything else as before, and no restart once there is room."""
    online = Client(scene.server, "online", clean=False)
    online.subscribe(("line/#", 1))
    scene.publish_until_refused()
    scene.take_the_rest()
    assert scene.acknowledged
    mqtt_is_refused(scene)
    remoting_is_refused(scene)
    spark_is_refused(scene)
    online.until(lambda: len(online.messages) == len(scene.acknowledged))
    others_go_on(scene)
    scene.filler.unlink()
    until(lambda: scene.page("readyz")[0] == 200)
    publisher = Client(scene.server, "later")
    publisher.publish("line/a", b"later")
    assert json.loads(scene.page("readyz")[1])["ready"]
    assert scene.metric("rocketmq_disk_full") == 0
    assert scene.send(b"later").fields["queueOffset"] == "5"
    online.until(lambda: online.latest["line/a"] == b"later")
    publisher.close()
    online.close()
    nothing_is_missing(scene)


def mqtt_is_refused(scene: Scene) -> None:
    """No PUBACK, the connection ends, the reason is logged and counted; no new durable session begins."""
    before = scene.metric(REFUSED_PUBLISHES)
    client = Client(scene.server, "late-publisher")
    gone: list[Any] = []
    client.client.on_disconnect = lambda *arguments: gone.append(arguments)
    client.client.reconnect_delay_set(60, 60)
    sent = client.client.publish("line/a", b"no", 1)
    until(lambda: bool(gone))
    assert not sent.is_published()
    client.close()
    assert scene.metric(REFUSED_PUBLISHES) == before + 1
    assert f"broker_refused: SERVICE_NOT_AVAILABLE: {TOLD}" in scene.server.log.read_text()
    peer = wire.Peer(scene.server.port)
    peer.send(wire.connect("new", flags=0))
    assert peer.until_closed() == b"\x20\x02\x00\x03"
    peer.close()


def remoting_is_refused(scene: Scene) -> None:
    """Code and remark for everything that would be stored, by whichever request."""
    before = scene.metric(REFUSED_REQUESTS)
    entry = image.encode_mqtt_image(b"line/a", b"no", 1, 0, b"test")
    appended = Command(RequestCode.APPEND_MANY, body=b"".join([entry, entry]))
    topic = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=topic_fields("new", 1))
    offset = Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields={**PLACE, "commitOffset": "3"})
    for reply in (scene.send(b"no"), *(scene.connection.request(each) for each in (appended, topic, offset))):
        assert (reply.code, reply.remark.startswith(TOLD)) == (FULL, True), reply.remark
    with Producer(scene.address) as producer, pytest.raises(Refused, match="disk full"):
        producer.send(Message(topic="orders", body=b"no")).result(DEADLINE_S)
    assert scene.metric(REFUSED_REQUESTS) >= before + 5


def spark_is_refused(scene: Scene) -> None:
    """What its sink raises in a task, staged and direct."""
    options = parse_write({"nameServer": scene.address, "topic": "orders"})
    entry = image.encode_mqtt_image(b"line/a", b"no", 1, 0, b"spark")
    rows = EncodedRows(memoryview(entry), np.array([0, len(entry)], np.int64))
    (master,) = find_masters(options).values()
    for attempt in (sink.AttemptName("s", 0, 0, 0), None):
        with pytest.raises(BrokerRefused, match="disk full"):
            send_rows(master.address, [rows], attempt, options)


def others_go_on(scene: Scene) -> None:
    """Reading, offsets, deleting, the lists and the pages."""
    assert scene.pulled() == [b"%d" % number for number in range(5)]
    assert scene.ask(RequestCode.QUERY_CONSUMER_OFFSET, **PLACE).fields["offset"] == "2"
    sleeper = Client(scene.server, "sleeper", clean=False)
    sleeper.until(lambda: len(sleeper.messages) == len(scene.acknowledged))
    assert [int(message.payload.split()[0]) for message in sleeper.messages] == scene.acknowledged
    sleeper.close()
    tail = [*Server.python, "tail", "orders", "--server", scene.address, "--json", "--offset", "0", "--count", "5"]
    assert run(tail).returncode == 0
    scene.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="unwanted")
    listed = run([*Server.python, "topics", "--server", scene.address, "--json"]).stdout.splitlines()
    names = [json.loads(line)["topic"] for line in listed]
    assert "orders" in names
    assert "unwanted" not in names
    for code in (RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_ALL_TOPIC_CONFIG):
        scene.ask(code)
    status, page = scene.page("readyz")
    assert status == 503
    assert "disk full: " in json.loads(page)["reasons"]["broker"]
    assert scene.page("livez")[0] == scene.page("status")[0] == 200
    assert scene.metric("rocketmq_disk_full") == 1
    assert run([*Server.python, "store", "stat", str(scene.server.data)]).returncode == 0


def nothing_is_missing(scene: Scene) -> None:
    """Everything acknowledged is in the stored queues, and the store is sound, also after a restart."""
    assert scene.pulled() == [b"0", b"1", b"2", b"3", b"4", b"later"]
    scene.connection.close()
    assert scene.server.end(signal.SIGTERM) == 0
    verified = run([*Server.python, "store", "verify", str(scene.server.data), "--json"])
    assert json.loads(verified.stdout)["errors"] == []
    assert verified.returncode == 0
    scene.server.start()
    sleeper = Client(scene.server, "sleeper", clean=False)
    sleeper.until(lambda: sleeper.latest.get("line/a") == b"later")
    sleeper.close()
    assert scene.server.end(signal.SIGTERM) == 0
    no_traceback(scene.server)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """A command to its end."""
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, cwd=ROOT, check=False)


def until(condition: Callable[[], bool]) -> None:
    """For conditions that can only be polled."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
