"""Several proxies on the same ports: clients on each, one session across them, one killed, one drained, all ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.rig import DEADLINE_S, Client, Server

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """`lightmq up` with two proxies."""
    started = Server(tmp_path / "data", "--proxies", "2")
    started.start()
    yield started
    started.kill_if_running()


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError


def both(server: Server) -> list[dict[str, int]]:
    """The two proxies; none while one of them is missing."""
    found = proxies(server)
    return found if len(found) == 2 else []


def ended(server: Server, at: int) -> bool:
    """End one of the two; False while there are not two, or when the page still listed one that had ended."""
    found = both(server)
    if not found:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(found[at]["pid"], signal.SIGTERM)
        return True
    return False


def page(port: int, name: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def proxies(server: Server) -> list[dict[str, int]]:
    found: list[dict[str, int]] = json.loads(page(server.ports["admin"], "status"))["proxies"]
    return found


def metric(port: int, name: str) -> float:
    values = [line.split()[-1] for line in page(port, "metrics").splitlines() if line.startswith(name + " ")]
    return float(values[0])


def sessions(server: Server) -> list[float]:
    return [metric(each["admin"], "rocketmq_mqtt_sessions") for each in proxies(server)]


def test_one_installation_behind_several_proxies(server: Server) -> None:
    """Messages cross from one proxy to the other; a client id is connected once; a killed proxy is started again."""
    clients: list[Client] = []
    while len(clients) < 4 or min(sessions(server)) < 2:
        clients.append(Client(server, f"client-{len(clients)}"))
        clients[-1].subscribe(("all/#", 1))
    clients[0].publish("all/7", b"to everybody")
    for client in clients:
        client.until(lambda: bool(client.messages))  # noqa: B023
    taken = Client(server, "taken", clean=False)
    taken.subscribe(("mine/#", 1))
    ends: list[int] = []
    taken.client.on_disconnect = lambda *_: ends.append(1)
    taker = Client(server, "taken", clean=False)
    until(lambda: ends)
    taken.close()  # before it would reconnect and take over again
    assert taker.present
    clients[0].publish("mine/1", b"for the taker")
    taker.until(lambda: bool(taker.messages))
    assert taken.messages == []
    taker.close()
    for number in range(2, 10):
        clients[0].publish(f"mine/{number}", b"meanwhile")
        again = Client(server, "taken", clean=False)
        assert again.present
        again.until(lambda: bool(again.messages))  # noqa: B023
        assert [message.topic for message in again.messages] == [f"mine/{number}"]
        again.close()
    victim = proxies(server)[0]
    os.kill(victim["pid"], signal.SIGKILL)
    until(lambda: metric(server.ports["admin"], "rocketmq_mqtt_proxy_restarts_total") == 1)
    until(lambda: len(proxies(server)) == 2)
    until(lambda: sum(sessions(server)) == len(clients))
    pids = [each["pid"] for each in proxies(server)]
    for client in clients:
        client.close()
    assert server.end(signal.SIGTERM) == 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_rolling_restart_under_load_loses_nothing(server: Server) -> None:
    """Each proxy is ended in turn while messages flow: everything acknowledged arrives, no client is stuck."""
    subscriber = Client(server, "subscriber", clean=False)
    subscriber.subscribe(("load/#", 1))
    publisher = Client(server, "publisher", clean=False)
    total = 3_000
    for number in range(total):
        publisher.client.publish("load/n", b"%d" % number, 1)  # what finds no connection is sent over the next one
        if number % 1_000 == 500:
            until(lambda at=number // 1_000 % 2: ended(server, at))
    subscriber.until(lambda: len({message.payload for message in subscriber.messages}) == total)
    assert metric(server.ports["admin"], "rocketmq_mqtt_proxy_restarts_total") >= 2
    for client in (subscriber, publisher):
        client.close()


def test_no_proxy_outlives_its_supervisor(server: Server) -> None:
    """Not even when the supervisor is killed."""
    pids = [each["pid"] for each in proxies(server)]
    server.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
