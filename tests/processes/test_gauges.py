"""Gauges return to their former values when every client has left, in whatever way."""

from __future__ import annotations

import re
import socket
import time
import urllib.request
from pathlib import Path

import pytest

from tests.processes.rig import DEADLINE_S, Client, Server

pytestmark = pytest.mark.processes
CLIENTS = 6
TYPE = re.compile(r"^# TYPE (rocketmq_mqtt_\w+) gauge$", re.MULTILINE)
CONNECTIONS = 'rocketmq_mqtt_connections{listener="tcp"}'
STAYS = frozenset(
    {
        "rocketmq_mqtt_cache_bytes",
        "rocketmq_mqtt_sessions_kept",
        "rocketmq_mqtt_sessions_offline",
        "rocketmq_mqtt_shared_lag_messages",
    }
)
"""A cache keeps what it has until something newer needs the room, and a broker keeps the sessions that are to stay, and
the shared subscriptions of which they are members."""


def gauges(server: Server) -> dict[str, float]:
    """Every gauge of the proxy."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports['admin']}/metrics", timeout=DEADLINE_S) as answer:
        page = answer.read().decode()
    names = set(TYPE.findall(page)) - STAYS
    lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines if name.partition("{")[0] in names}


def test_gauges_come_down_when_clients_go(tmp_path: Path) -> None:
    """Clean and kept sessions, plain, wildcard and shared subscriptions, orderly and broken ends."""
    server = Server(tmp_path / "data")
    server.start()
    try:
        before = gauges(server)
        assert {CONNECTIONS, "rocketmq_mqtt_subscriptions"} <= before.keys()
        clients = [Client(server, f"c{number}", clean=number % 2 == 0) for number in range(CLIENTS)]
        for number, client in enumerate(clients):
            client.subscribe((f"plant/{number}", 1), ("plant/#", 1), ("$share/group/plant/+", 1))
            client.publish(f"plant/{number}", b"x", qos=number % 3)
        during = gauges(server)
        assert during[CONNECTIONS] - before[CONNECTIONS] == CLIENTS
        assert during["rocketmq_mqtt_subscriptions"] > before["rocketmq_mqtt_subscriptions"]
        for number, client in enumerate(clients):
            if number % 3 == 0:
                client.client.reconnect_delay_set(60, 60)
                client.client.socket().shutdown(socket.SHUT_RDWR)
            else:
                client.client.disconnect()
        end = time.monotonic() + DEADLINE_S
        while (after := gauges(server)) != before:
            changed = {name: (before.get(name), value) for name, value in after.items() if before.get(name) != value}
            assert time.monotonic() < end, changed
            time.sleep(0.1)
        for client in clients:
            client.client.loop_stop()
    finally:
        server.kill_if_running()
