"""Real clients on every listener of a real server: TLS, WebSocket, both; certificates renewed under a connection."""

from __future__ import annotations

import os
import queue
import signal
import socket
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest

from tests.processes.rig import Server
from tests.support.certificates import HAVE_OPENSSL, Authority

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl"),
]


class Device:
    """A paho client of either version on any transport."""

    def __init__(
        self,
        port: int,
        client_id: str,
        *,
        tls: ssl.SSLContext | None = None,
        websocket: bool = False,
        protocol: int = mqtt.MQTTv311,
    ) -> None:
        transport: Any = "websockets" if websocket else "tcp"
        version: Any = protocol
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id, protocol=version, transport=transport)
        self.connected: queue.Queue[Any] = queue.Queue()
        self.subscribed: queue.Queue[Any] = queue.Queue()
        self.messages: queue.Queue[mqtt.MQTTMessage] = queue.Queue()
        self.ended: queue.Queue[Any] = queue.Queue()
        self.client.on_connect = lambda *given: self.connected.put(given[3])
        self.client.on_subscribe = lambda *given: self.subscribed.put(given[3])
        self.client.on_message = lambda *given: self.messages.put(given[2])
        self.client.on_disconnect = lambda *given: self.ended.put(given[3])
        if tls is not None:
            self.client.tls_set_context(tls)
        if websocket:
            self.client.ws_set_options(path="/mqtt")
        self.client.connect("localhost", port)
        self.client.loop_start()
        assert not self.connected.get(timeout=20).is_failure

    def exchange(self, topic: str, size: int) -> None:
        """Subscribe, publish with QoS 1 and receive the message."""
        self.client.subscribe(topic, 1)
        self.subscribed.get(timeout=20)
        payload = os.urandom(size)
        self.client.publish(topic, payload, 1).wait_for_publish(20)
        assert self.messages.get(timeout=20).payload == payload

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def certificate_on(port: int, trusting: ssl.SSLContext) -> dict[str, Any]:
    """The certificate that the server presents."""
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        trusting.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        found = wrapped.getpeercert()
    assert found
    return found


VERSIONS = {int(mqtt.MQTTv311): "3.1.1", int(mqtt.MQTTv5): "5"}


def counted(server: Server, *names: str) -> dict[str, float]:
    """The lines of the proxy's metrics of these names."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports['admin']}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    wanted = tuple(f"rocketmq_mqtt_{name}{{" for name in names)
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name.startswith(wanted)
    }


@pytest.mark.parametrize("protocol", [mqtt.MQTTv311, mqtt.MQTTv5])
def test_every_listener_works_and_certificates_are_renewed(tmp_path: Path, protocol: int) -> None:
    """Messages of all sizes by TLS, WebSocket and both; SIGHUP renews the certificate and disconnects no client."""
    authority = Authority(tmp_path / "ca")
    identity, renewed = authority.issue(), authority.issue()
    options = ["--tls-port", "0", "--ws-port", "0", "--wss-port", "0"]
    options += ["--tls-certificate", str(identity.certificate), "--tls-key", str(identity.key)]
    server = Server(tmp_path / "data", *options)
    server.start()
    try:
        trusting = authority.trusting()
        devices = [
            Device(server.ports["mqtt-tls"], "tls", tls=trusting, protocol=protocol),
            Device(server.ports["mqtt-ws"], "ws", websocket=True, protocol=protocol),
            Device(server.ports["mqtt-wss"], "wss", tls=trusting, websocket=True, protocol=protocol),
        ]
        for number, device in enumerate(devices):
            for size in (0, 100, 70_000, 1_000_000):
                device.exchange(f"listeners/{number}/{size}", size)
        assert counted(server, "connects_total", "connections", "messages_in_total", "messages_out_total") == {
            f'rocketmq_mqtt_{name}{{listener="{listener}"{version}}}': count
            for name, version, count in (
                ("connects_total", f',protocol="{VERSIONS[protocol]}"', 1.0),
                ("connections", "", 1.0),
                ("messages_in_total", f',protocol="{VERSIONS[protocol]}"', 4.0),
                ("messages_out_total", f',protocol="{VERSIONS[protocol]}"', 4.0),
            )
            for listener in ("tls", "ws", "wss")
        } | {'rocketmq_mqtt_connections{listener="tcp"}': 0.0}
        first = certificate_on(server.ports["mqtt-tls"], trusting)
        identity.key.write_bytes(renewed.key.read_bytes())
        identity.certificate.write_bytes(renewed.certificate.read_bytes())
        assert server.process is not None
        server.process.send_signal(signal.SIGHUP)
        while certificate_on(server.ports["mqtt-tls"], trusting)["serialNumber"] == first["serialNumber"]:
            pass  # each check is a whole handshake
        for number, device in enumerate(devices):
            device.exchange(f"listeners/{number}/after", 500)
            assert device.ended.empty()
            device.close()
        assert server.end(signal.SIGTERM) == 0
    finally:
        server.kill_if_running()
