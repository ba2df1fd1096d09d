"""What operators see and do at a running installation: clients of two proxies, and of everything in one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest

from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from tests.processes.operators import ask
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
    found = ask(broker.port, Code.MQTT_CLIENTS, prefix="a-")["clients"]
    assert [(row["client"], row["subscriptions"]) for row in found] == [("a-1", 1), ("a-2", 0)]
    ask(broker.port, Code.MQTT_KICK, client="b-2")
    assert victim.until_kicked() == ADMINISTRATIVE_ACTION
    assert ask(broker.port, Code.MQTT_CLIENTS, client="b-2")["clients"] == []
    clients[0].close()
    assert ask(broker.port, Code.SESSION_END, client="a-1") == {"client": "a-1", "was_connected": False}
    assert Client(two, "a-1", clean=False).present is False
    for client in clients:
        client.close()


def test_a_session_is_ended_while_its_client_is_connected(tmp_path: Path) -> None:
    """The client is told, and finds nothing of its session; so it is after kill -9 of the broker."""
    server = Installation(tmp_path / "data")
    server.start()
    try:
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
    finally:
        server.kill_if_running()
