"""What operators see and do at a running installation: clients of two proxies, and of everything in one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from spark_connector.listener import RocketMQProgressListener
from tests.processes.broker_group import until
from tests.processes.operators import ask, query_progress, query_started, query_terminated
from tests.processes.rig import DEADLINE_S, Client, Installation, Process, no_traceback

pytestmark = pytest.mark.processes

ADMINISTRATIVE_ACTION = 0x98


class Kicked:
    """An MQTT 5 client that reports how its connection ended, and stays away."""

    def __init__(self, port: int, client_id: str) -> None:
        self._connected, self._ended = threading.Event(), threading.Event()
        self.code = -1
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5, reconnect_on_failure=False
        )
        self.client.on_connect = lambda *_: self._connected.set()
        self.client.on_disconnect = self._gone
        self.client.connect("127.0.0.1", port, keepalive=30)
        self.client.loop_start()
        assert self._connected.wait(DEADLINE_S)

    def _gone(
        self, _client: object, _data: object, _flags: object, reason: mqtt.ReasonCode, _properties: object
    ) -> None:
        self.code = reason.value
        self._ended.set()

    def until_kicked(self) -> int:
        """The reason code of the DISCONNECT."""
        assert self._ended.wait(DEADLINE_S)
        self.client.loop_stop()
        return self.code


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[list[Process]]:
    with ExitStack() as stack:
        broker = Process(tmp_path / "broker", ["broker", "--data", str(tmp_path / "data")], "remoting")
        broker.start()
        stack.callback(broker.kill_if_running)
        options = ["proxy", "--set", f"proxy.broker=127.0.0.1:{broker.port}", "--set", "proxy.host=127.0.0.1"]
        made = [broker]
        for name in ("one", "two"):
            proxy = Process(tmp_path / name, options, "mqtt")
            proxy.start()
            stack.callback(proxy.kill_if_running)
            made.append(proxy)
        yield made
        no_traceback(*made)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path / "data")
    made.start()
    yield made
    made.kill_if_running()
    no_traceback(made)


def test_clients_of_two_proxies_are_seen_and_disconnected(parts: list[Process]) -> None:
    """Pages are merged; a client is found wherever it is, told why, and its session is ended on request."""
    broker, one, two = parts
    clients = [Client(one, "a-1", clean=False), Client(two, "a-2"), Client(one, "b-1")]
    clients[0].subscribe(("plant/#", 1))
    victim = Kicked(two.port, "b-2")
    proxies = ask(broker.port, Code.PROXY_LIST)["proxies"]
    assert sorted(row["listeners"]["tcp"] for row in proxies) == sorted((one.port, two.port))
    first = ask(broker.port, Code.MQTT_CLIENTS, limit="3")
    assert ([row["client"] for row in first["clients"]], first["total"]) == (["a-1", "a-2", "b-1"], 4)
    (last,) = ask(broker.port, Code.MQTT_CLIENTS, after=first["next"])["clients"]
    assert (last["client"], last["version"], last["keep_alive_s"], last["protocol"]) == ("b-2", "5", 30, "tcp")
    assert last["proxy"].rpartition("/")[0].endswith(f":{two.port}")
    for _ in range(9):
        clients[1].publish("plant/1", b"x")
    loudest = ask(broker.port, Code.MQTT_CLIENTS, limit="2", sort="-messages_in")
    assert [(row["client"], row["messages_in"]) for row in loudest["clients"]] == [("a-2", 9), ("a-1", 0)]
    rest = ask(broker.port, Code.MQTT_CLIENTS, sort="-messages_in", after=loudest["next"])["clients"]
    assert [row["client"] for row in rest] == ["b-1", "b-2"]
    found = ask(broker.port, Code.MQTT_CLIENTS, prefix="a-")["clients"]
    assert [(row["client"], row["subscriptions"]) for row in found] == [("a-1", 1), ("a-2", 0)]
    ask(broker.port, Code.MQTT_KICK, client="b-2")
    assert victim.until_kicked() == ADMINISTRATIVE_ACTION
    assert ask(broker.port, Code.MQTT_CLIENTS, client="b-2")["clients"] == []
    clients[0].close()
    until(lambda: not ask(broker.port, Code.MQTT_CLIENTS, client="a-1")["clients"], "its proxy to notice the end")
    assert ask(broker.port, Code.SESSION_END, client="a-1") == {"client": "a-1", "was_connected": False}
    assert Client(two, "a-1", clean=False).present is False
    for client in clients:
        client.close()


def test_acts_stay_in_the_record_after_kill_9(server: Installation) -> None:
    """Whatever the road: requests of our tools, requests as mqadmin sends them, refused ones."""
    port = server.remoting_port
    Client(server, "w").publish("plant/7", b"21", retain=True)
    ask(port, Code.RETAINED_CLEAR, topic="plant/7", road="console")
    ask(port, Code.UPDATE_AND_CREATE_TOPIC, topic="orders", readQueueNums="1", writeQueueNums="1", perm="6")
    assert ask(port, Code.MQTT_KICK, client="nobody")[0] == ResponseCode.QUERY_NOT_FOUND
    server.kill()
    server.start()
    records = ask(port, Code.AUDIT_LIST)["records"]
    assert [(one["act"], one["target"], one["outcome"].partition(":")[0], one["road"]) for one in records] == [
        ("MQTT_KICK", "client=nobody", "refused", "remoting-python"),
        ("UPDATE_AND_CREATE_TOPIC", "topic=orders", "done", "remoting-python"),
        ("RETAINED_CLEAR", "topic=plant/7", "done", "console"),
    ]
    assert ask(port, Code.RETAINED_LIST)["retained"] == []


def test_topics_and_the_way_of_a_message(server: Installation) -> None:
    """A reading, the session that waits for it, and the command that was caused by it."""
    reader = Client(server, "reader", clean=False)
    reader.subscribe(("plant/#", 1))
    reader.close()
    port = server.remoting_port
    until(lambda: not ask(port, Code.MQTT_CLIENTS, client="reader")["clients"], "the proxy to notice the end")
    device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "device", protocol=mqtt.MQTTv5)
    device.connect("127.0.0.1", server.port)
    device.loop_start()
    for topic, span in (("plant/7/temp", "00f067aa0ba902b7"), ("cmd/7", "53995c3f42cd8ad8")):
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = [("traceparent", f"00-4bf92f3577b34da6a3ce929d0e0e4736-{span}-01")]
        device.publish(topic, b"x", 1, properties=properties).wait_for_publish(DEADLINE_S)
    device.disconnect()
    device.loop_stop()
    (plant,) = ask(port, Code.TOPIC_TREE, contains="plant")["children"]
    assert (plant["exists"], plant["messages"], plant["below"]) == (False, 1, 1)
    (level,) = ask(port, Code.TOPIC_TREE, parent="plant/7")["children"]
    assert (level["topic"], level["messages"], level["children"]) == ("plant/7/temp", 1, False)
    found = ask(port, Code.TRACE_MESSAGE, topic="plant/7/temp", offset="0")
    steps = [(step["where"], step["what"], step["detail"].partition(",")[0]) for step in found["steps"]]
    assert ("device", "published", "client device: plant/7/temp") in steps
    assert ("session", "waits", "reader (away): plant/# at 0") in steps
    assert ("log", "caused by it", "cmd/7") in steps


def test_a_spark_listener_reports_and_never_disturbs(server: Installation) -> None:
    """Without a broker nothing is lost but the reports; when it is back the next batch is shown again."""
    listener = RocketMQProgressListener()
    listener.report(server.address)
    try:
        listener.onQueryStarted(query_started())
        until(lambda: queries(server, listener, batch=1), "a report")
        (row,) = queries(server, listener, batch=2)
        assert (row["name"], row["status"], row["rows"], row["topics"]) == ("alarms", "running", 7, ["t"])
        server.kill()
        for batch in range(3, 50):
            listener.onQueryProgress(query_progress(batch))
        server.start()
        until(lambda: queries(server, listener, batch=60), "a report again")
        listener.onQueryTerminated(query_terminated("the sink is full"))
        until(lambda: queries_of(server)[0]["status"] == "failed", "the report of the failure")
        (row,) = queries_of(server)
        assert (row["batch"], row["last_error"]) == (60, "the sink is full")
    finally:
        listener.close()


def queries(server: Installation, listener: RocketMQProgressListener, *, batch: int) -> list[Any]:
    """Report a batch; what the broker shows then, which may not have the batch yet."""
    listener.onQueryProgress(query_progress(batch))
    return [row for row in queries_of(server) if row["batch"]]


def queries_of(server: Installation) -> list[Any]:
    """The queries that the broker knows."""
    found: list[Any] = ask(server.remoting_port, Code.SPARK_QUERIES)["queries"]
    return found


def test_a_session_is_ended_while_its_client_is_connected(server: Installation) -> None:
    """The client is told, and finds nothing of its session; so it is after kill -9 of the broker."""
    kept = Client(server, "kept", clean=False)
    kept.subscribe(("plant/#", 1))
    kept.close()
    again = Client(server, "kept", clean=False)
    assert again.present is True
    again.client.loop_stop()
    assert ask(server.remoting_port, Code.SESSION_END, client="kept")["was_connected"] is True
    assert ask(server.remoting_port, Code.SESSION_END, client="kept")[0] == ResponseCode.QUERY_NOT_FOUND
    server.kill()
    server.start()
    assert Client(server, "kept", clean=False).present is False
