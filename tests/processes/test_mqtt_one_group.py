"""Two broker groups, and MQTT at one of them: which one is held by the controllers, whatever proxies start when."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.rig import DEADLINE_S, Client, Process, no_traceback
from tests.processes.test_groups_away import Groups

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


class Proxies:
    """Proxies of a cluster, by their names."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self.started: list[Process] = []

    def begin(self, name: str, *options: str) -> tuple[Process, threading.Thread]:
        """Start a proxy, without waiting until it is connected."""
        folder, server = self._groups.folder, self._groups.server
        proxy = Process(folder / name, ["proxy", "--controllers", server, *options], "mqtt")
        self.started.append(proxy)

        def started() -> None:
            with contextlib.suppress(AssertionError):  # it was killed before it served
                proxy.start()

        start = threading.Thread(target=started, daemon=True)
        start.start()
        return proxy, start

    def start(self, name: str, *options: str) -> Process:
        """Start a proxy and wait until it serves."""
        proxy, start = self.begin(name, *options)
        start.join(DEADLINE_S)
        assert not start.is_alive(), proxy.log.read_text()[-2_000:]
        return proxy


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    made = Groups(tmp_path)
    try:
        made.start("group-a")
        made.start("group-b")
        yield made
        no_traceback(*made.brokers.values(), made.controller)
    finally:
        made.stop()


@pytest.fixture
def proxies(groups: Groups) -> Iterator[Proxies]:
    made = Proxies(groups)
    try:
        yield made
        no_traceback(*made.started)
    finally:
        for proxy in made.started:
            proxy.kill_if_running()


def said(proxy: Process, text: str) -> None:
    """Wait until its log has this text."""
    while text not in (proxy.log.read_text() if proxy.log.exists() else ""):
        pass


def retained(proxy: Process, name: str) -> list[bytes]:
    """What a new subscriber gets of the retained messages."""
    client = Client(proxy, name)
    client.subscribe(("plant/#", 1))
    client.until(lambda: bool(client.messages))
    found = [bytes(message.payload) for message in client.messages]
    client.close()
    return found


def test_a_proxy_never_turns_to_another_group(groups: Groups, proxies: Proxies) -> None:
    """Neither while the group of MQTT is away nor by its configuration; it serves when the group is back."""
    first = proxies.start("first")
    client = Client(first, "publisher")
    client.publish("plant/1/t", b"x", retain=True)
    client.close()
    groups.kill("group-a")
    wrong, _ = proxies.begin("wrong", "--set", "proxy.broker_name=group-b")
    said(wrong, "MQTT is at the broker group 'group-a', not at 'group-b'")
    late, start = proxies.begin("late")
    said(late, "broker 'group-a' has no master")
    assert start.is_alive()
    groups.start("group-a")
    start.join(DEADLINE_S)
    assert not start.is_alive(), late.log.read_text()[-2_000:]
    assert retained(late, "late") == retained(first, "first") == [b"x"]
