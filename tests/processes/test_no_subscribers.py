"""0x10, no matching subscribers: from every kind of installation, for QoS 1 and 2, for the right messages only."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from mqtt_bridge.paho_client import CheckedClient
from tests.processes.broker_group import BrokerGroup
from tests.processes.rig import DEADLINE_S, ROOT, Client, Process, Server

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

OPTION = ("--set", "proxy.report_no_subscribers=true")
NOBODY = 0x10


class Installation:
    """A place to publish at and one to subscribe at."""

    def __init__(self, publishing: Server, subscribing: Server, end: Callable[[], None]) -> None:
        self.publishing, self.subscribing, self.end = publishing, subscribing, end


def one_process(folder: Path) -> Installation:
    server = Server(folder / "data", *OPTION)
    server.start()
    return Installation(server, server, server.kill_if_running)


def proxies_apart(folder: Path) -> Installation:
    server = Server(folder / "data", "--proxies", "2", *OPTION)
    server.start()
    return Installation(server, server, server.kill_if_running)


def cluster(folder: Path) -> Installation:
    """Two brokers of a group, and a second proxy that has the subscribers."""
    group = BrokerGroup(folder, brokers=2, arguments={"proxy": OPTION})
    other = Process(folder / "other-proxy", ["proxy", "--controllers", group.addresses, *OPTION], "mqtt")

    def end() -> None:
        other.kill_if_running()
        group.end()

    try:
        group.start()
        other.start()
    except BaseException:
        end()
        raise
    return Installation(group.proxy, other, end)


@pytest.fixture(scope="module", params=[one_process, proxies_apart, cluster])
def installation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    made = request.param(tmp_path_factory.mktemp("subscribers"))
    yield made
    made.end()


class Client5:
    """A paho client of MQTT 5 that waits for every answer."""

    def __init__(self, server: Server, client_id: str, *, clean: bool = True, expiry_s: int = 0) -> None:
        self.client = CheckedClient(mqtt.CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)
        answers: queue.Queue[int] = queue.Queue()
        self._answers = answers
        self.topics: queue.Queue[str] = queue.Queue()
        self.client.on_connect = lambda _c, _d, _flags, reason, _p: answers.put(reason.value)
        self.client.on_subscribe = lambda _c, _d, _mid, reasons, _p: answers.put(reasons[0].value)
        self.client.on_unsubscribe = lambda _c, _d, _mid, reasons, _p: answers.put(reasons[0].value)
        self.client.on_publish = lambda _c, _d, _mid, reason, _p: answers.put(reason.value)
        self.client.on_disconnect = lambda *_: answers.put(0)
        self.client.on_message = lambda _c, _d, message: self.topics.put(message.topic)
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = expiry_s
        self.client.connect("127.0.0.1", server.port, 60, clean_start=clean, properties=properties)
        self.client.loop_start()
        assert answers.get(timeout=DEADLINE_S) == 0

    def subscribe(self, topic_filter: str, *, no_local: bool = False) -> None:
        self.client.subscribe(topic_filter, options=SubscribeOptions(1, noLocal=no_local))
        assert self._answers.get(timeout=DEADLINE_S) == 1

    def unsubscribe(self, topic_filter: str) -> None:
        self.client.unsubscribe(topic_filter)
        assert self._answers.get(timeout=DEADLINE_S) == 0

    def publish(self, topic: str, qos: int, *, retain: bool = False, user: tuple[str, str] | None = None) -> int:
        """The reason code of PUBACK or PUBREC."""
        properties = Properties(PacketTypes.PUBLISH)
        if user is not None:
            properties.UserProperty = user
        self.client.publish(topic, b"x", qos, retain, properties)
        return self._answers.get(timeout=DEADLINE_S)

    def close(self) -> None:
        self.client.disconnect()
        assert self._answers.get(timeout=DEADLINE_S) == 0
        self.client.loop_stop()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("durable", [False, True], ids=["clean", "durable"])
def test_only_messages_without_subscribers(installation: Installation, qos: int, durable: bool) -> None:
    """Exact and wildcard filters, groups, sessions that are away: wherever the subscriber is connected."""
    name = f"t{qos}{durable}"
    publisher = Client5(installation.publishing, f"publisher-{name}", expiry_s=60 * durable)
    reader = Client5(installation.subscribing, f"reader-{name}", expiry_s=60)
    assert publisher.publish(f"{name}/a", qos) == NOBODY
    for topic_filter in (f"{name}/a", f"{name}/+", f"$share/g/{name}/a", f"$share/g/{name}/#"):
        reader.subscribe(topic_filter)
        assert (publisher.publish(f"{name}/a", qos), publisher.publish(f"{name}x", qos)) == (0, NOBODY)
        assert reader.topics.get(timeout=DEADLINE_S) == f"{name}/a"
        reader.unsubscribe(topic_filter)
        assert publisher.publish(f"{name}/a", qos) == NOBODY
    reader.subscribe(f"{name}/kept/+")
    reader.close()
    assert publisher.publish(f"{name}/kept/1", qos) == 0
    back = Client5(installation.subscribing, f"reader-{name}", clean=False)
    assert back.topics.get(timeout=DEADLINE_S) == f"{name}/kept/1"
    back.unsubscribe(f"{name}/kept/+")
    assert publisher.publish(f"{name}/kept/1", qos) == NOBODY
    for one in (back, publisher):
        one.close()


@pytest.mark.parametrize("qos", [1, 2])
def test_own_retained_and_delayed_messages(installation: Installation, qos: int) -> None:
    """No Local excludes only its own client; a retained message is stored all the same; a delayed one is not judged."""
    name = f"s{qos}"
    client, other = (Client5(installation.publishing, f"{who}-{name}") for who in ("own", "other"))
    client.subscribe(f"{name}/own/#", no_local=True)
    assert (client.publish(f"{name}/own/1", qos), other.publish(f"{name}/own/1", qos)) == (NOBODY, 0)
    client.subscribe(f"{name}/own/#")
    assert client.publish(f"{name}/own/1", qos) == 0
    assert other.publish(f"{name}/kept", qos, retain=True) == NOBODY
    client.unsubscribe(f"{name}/own/#")
    while not client.topics.empty():
        client.topics.get()
    client.subscribe(f"{name}/kept")
    assert client.topics.get(timeout=DEADLINE_S) == f"{name}/kept"
    assert other.publish(f"{name}/later", qos, user=("delay-ms", "86400000")) == 0
    assert other.publish(f"$delayed/86400/{name}/later", qos) == 0
    for one in (client, other):
        one.close()


def test_clients_of_3_1_1_get_no_code(installation: Installation) -> None:
    client = Client(installation.publishing, "old")
    for qos in (1, 2):
        client.publish("old/nobody", b"x", qos)
    client.close()


@pytest.mark.parametrize("qos", ["1", "2"])
def test_pub_prints_it(installation: Installation, qos: str) -> None:
    arguments = ["pub", "-p", str(installation.publishing.port), "-V", "5", "-q", qos, "-t", "pub/nobody", "-m", "x"]
    done = subprocess.run(
        [sys.executable, "-m", "lightmq", *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, "")
    said = "there is no subscription to pub/nobody: no matching subscribers (0x10)"
    assert done.stderr == f"the server accepted the message, but {said}\n"


def test_the_code_is_off_by_default(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    server.start()
    try:
        client = Client5(server, "c")
        assert [client.publish("nobody", qos) for qos in (1, 2)] == [0, 0]
        client.close()
        assert server.end(signal.SIGTERM) == 0
    finally:
        server.kill_if_running()
