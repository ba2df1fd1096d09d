"""Quotas with real clients: flow control without loss, refusals with their reason codes, counters that show them."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest

from tests.processes.rig import DEADLINE_S, Client, Server, no_traceback

pytestmark = pytest.mark.processes
RATE = 200
ENDED = 'rocketmq_broker_drops_total{reason="filter_expired"}'
MESSAGES = 700


def test_a_client_above_its_rate_is_slowed_down_and_loses_nothing(tmp_path: Path) -> None:
    """Others are not slowed down; the connection stays."""
    server = Server(tmp_path / "data", f"--set=proxy.quotas.client_messages_per_s={RATE}")
    server.start()
    try:
        watcher = Client(server, "watcher")
        watcher.subscribe(("t/#", 1))
        fast, calm = Client(server, "fast"), Client(server, "calm")
        gone: list[object] = []
        fast.client.on_disconnect = lambda *what: gone.append(what)
        began = time.monotonic()
        for number in range(MESSAGES):
            fast.client.publish("t/fast", b"%d" % number, 1)
        calm.publish("t/calm", b"0")
        watcher.until(lambda: "t/calm" in watcher.latest)
        in_between = len(watcher.numbers("t/fast"))
        watcher.until(lambda: len(watcher.numbers("t/fast")) >= MESSAGES)
        took_s = time.monotonic() - began
        assert watcher.numbers("t/fast") == list(range(MESSAGES))
        assert in_between < MESSAGES
        # A second's worth may come at once, and one read of the socket may exceed the quota.
        assert took_s > (MESSAGES - 2 * RATE) / RATE - 0.2, took_s
        assert not gone
        assert counted(server, 'rocketmq_mqtt_rate_pauses_total{quota="client_messages"}') >= 1
        for client in (watcher, fast, calm):
            client.close()
        server.end(15)
        no_traceback(server)
    finally:
        server.kill_if_running()


def test_an_address_that_connects_too_fast_is_told_why(tmp_path: Path) -> None:
    """0x9F for a client of MQTT 5; later it may connect again."""
    quotas = ("connects_per_address_per_s=2", "connects_per_address_burst=2")
    server = Server(tmp_path / "data", *(f"--set=proxy.quotas.{one}" for one in quotas))
    server.start()
    try:
        codes = [connect5(server, f"c{number}") for number in range(4)]
        assert codes == [0, 0, 0x9F, 0x9F]
        until = time.monotonic() + DEADLINE_S
        while connect5(server, "again") != 0:
            assert time.monotonic() < until
            time.sleep(1)  # each attempt counts, so only a slow client is admitted
        assert counted(server, 'rocketmq_mqtt_connects_refused_total{reason="connect_rate"}') >= 2
        server.end(15)
        no_traceback(server)
    finally:
        server.kill_if_running()


def connect5(server: Server, client_id: str) -> int | None:
    """The reason code of one attempt to connect with MQTT 5; None when the socket was closed without an answer."""
    codes: list[int] = []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)
    client.on_connect = lambda _client, _data, _flags, reason, _properties: codes.append(reason.value)
    client.connect("127.0.0.1", server.port)
    while not codes and client.loop(DEADLINE_S) == mqtt.MQTT_ERR_SUCCESS:
        pass
    client.disconnect()
    client.loop(0.1)
    return codes[0] if codes else None


def counted(server: Server, name: str) -> float:
    """A value of the metrics page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports['admin']}/metrics") as page:
        for line in page.read().decode().splitlines():
            if line.startswith(name):
                return float(line.rpartition(" ")[2])
    return 0


def test_subscribers_cannot_take_a_topic_from_its_publishers(tmp_path: Path) -> None:
    """More filters match than one record names: every message reaches each, and the filters go with their client."""
    levels = [f"l{number}" for number in range(9)]
    topic = "/".join(levels)
    few = [
        ["+" if mask >> at & 1 else levels[at] for at in range(count)]
        for count in range(10)
        for mask in range(1 << count)
    ]
    filters = ["/".join([*one, "#"]) for one in few] + ["/".join(one) for one in few[-511:]]
    filters = filters[:1_200]
    server = Server(tmp_path / "data", "--set=broker.limits.filters_per_session_max=600")
    server.start()
    try:
        exact, first, second = (Client(server, name) for name in ("exact", "first", "second"))
        exact.subscribe((topic, 1))
        codes = [
            code for at in range(0, 600, 100) for code in first.subscribe(*[(one, 1) for one in filters[at : at + 100]])
        ]
        codes += [
            code
            for at in range(600, 1_200, 100)
            for code in second.subscribe(*[(one, 1) for one in filters[at : at + 100]])
        ]
        assert codes == [1] * 1_200
        assert second.subscribe(("over/#", 1), ("over", 1)) == [0x80, 1]
        publisher = Client(server, "publisher")
        publisher.publish_many(topic, 0, 20)
        for client in (exact, first, second):
            client.until(lambda client=client: set(client.numbers(topic)) == set(range(20)))  # type: ignore[misc]
        assert exact.numbers(topic) == list(range(20))
        first.close()
        second.close()
        until = time.monotonic() + DEADLINE_S
        while counted(server, ENDED) < len(filters) and time.monotonic() < until:
            time.sleep(0.1)
        assert counted(server, ENDED) == len(filters)
        publisher.publish_many(topic, 20, 5)
        exact.until(lambda: exact.numbers(topic) == list(range(25)))
        exact.close()
        publisher.close()
        server.end(15)
        no_traceback(server)
    finally:
        server.kill_if_running()
