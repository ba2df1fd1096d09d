"""Wills against `kill -9`: of the proxy, of the broker, of everything. Each is published once, none is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.processes.rig import Client, Process, Server, no_traceback

pytestmark = pytest.mark.processes

GRACE = ("--set", "broker.proxy_grace_ms=1500")


class Parts:
    """A broker and two proxies as processes."""

    def __init__(self, directory: Path) -> None:
        self.broker = Process(directory / "broker", ["broker", "--data", str(directory / "data"), *GRACE], "remoting")
        self.broker.start()
        address = f"proxy.broker=127.0.0.1:{self.broker.port}"
        options = ["--set", address, "--set", "proxy.reconnect_delay_ms_max=100"]
        self.proxies = [Process(directory / name, ["proxy", *options], "mqtt") for name in ("one", "two")]
        for proxy in self.proxies:
            proxy.start()

    def all(self) -> list[Process]:
        return [self.broker, *self.proxies]


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with ExitStack() as stack:
        made = Parts(tmp_path)
        for process in made.all():
            stack.callback(process.kill_if_running)
        yield made
        no_traceback(*made.all())


def watch(server: Server) -> Client:
    """A subscriber to all wills, and to a marker behind them."""
    watcher = Client(server, "watcher", clean=False)
    watcher.subscribe(("wills/#", 1), ("marker", 1))
    return watcher


def seen(watcher: Client, count: int) -> list[str]:
    """The topics of the wills, once there are this many and a message published afterwards has arrived too."""
    watcher.until(lambda: sum(message.topic != "marker" for message in watcher.messages) >= count)
    before = len(watcher.messages)
    watcher.client.publish("marker", b"", 1)
    watcher.until(lambda: any(message.topic == "marker" for message in watcher.messages[before:]))
    return sorted(message.topic for message in watcher.messages if message.topic != "marker")


def test_wills_of_a_proxy_that_was_killed(parts: Parts) -> None:
    """Of clean sessions and of others; a client that disconnected and one elsewhere leave none."""
    dying, living = parts.proxies
    watcher = watch(living)
    clients = [
        Client(dying, f"c{number}", clean=number % 2 == 0, will=(f"wills/{number}", b"gone", 1, True))
        for number in range(6)
    ]
    Client(dying, "left", will=("wills/left", b"", 1, False)).close()
    clients[0].publish("elsewhere", b"")  # its answer came after the proxy took that DISCONNECT
    Client(living, "stays", will=("wills/stays", b"", 1, False))
    dying.kill()
    expected = [f"wills/{number}" for number in range(6)]
    assert seen(watcher, 6) == expected
    for client in clients:
        client.client.loop_stop()
    fresh = Client(living, "fresh")
    fresh.subscribe(("wills/#", 1))
    fresh.until(lambda: len(fresh.messages) == 6)
    assert all(message.retain for message in fresh.messages)
    parts.broker.kill()  # what was published is not published again
    parts.broker.start()
    assert seen(watcher, 6) == expected


def test_the_only_proxy_is_killed_and_started_again(parts: Parts) -> None:
    """Nothing could check them during that time, so the wills waited."""
    proxy, other = parts.proxies
    other.kill()
    watcher = watch(proxy)
    client = Client(proxy, "c", will=("wills/c", b"gone", 1, False))
    proxy.kill()
    client.client.loop_stop()
    proxy.start()
    assert seen(watcher, 1) == ["wills/c"]


def test_a_restart_of_the_broker_publishes_no_will(parts: Parts) -> None:
    """The connections continue; the wills are still there when they end."""
    proxy = parts.proxies[0]
    watcher = watch(proxy)
    client = Client(proxy, "c", will=("wills/c", b"gone", 1, False))
    parts.broker.kill()
    parts.broker.start()
    watcher.publish("marker", b"")  # the proxy has connected to the broker again
    leaver = Client(proxy, "leaver", will=("wills/leaver", b"gone", 1, False))
    leaver.vanish()
    assert seen(watcher, 1) == ["wills/leaver"]
    client.vanish()
    assert seen(watcher, 2) == ["wills/c", "wills/leaver"]


def test_everything_is_killed(tmp_path: Path) -> None:
    """All connections end with the process: every will comes once, after its start, and not after the next one."""
    server = Server(tmp_path / "data", *GRACE)
    server.start()
    try:
        for names in (["a", "b", "c"], ["d"]):
            clients = [Client(server, name, will=(f"wills/{name}", b"gone", 1, False)) for name in names]
            for client in clients:
                client.client.loop_stop()
            server.kill()
            server.start()
            watcher = Client(server, "watcher")
            watcher.subscribe(("wills/#", 1), ("marker", 1))
            assert seen(watcher, len(names)) == [f"wills/{name}" for name in names]
            watcher.close()
        no_traceback(server)
    finally:
        server.kill_if_running()
