"""Repeated `kill -9` while clients publish and subscribe: nothing acknowledged is missing, order holds.

The quick forms kill a few times; the `slow` ones many times, see docs/howto/fault-tests.md.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.rig import Client, Process, Server, Stream, expect_all, no_traceback

STOPPED_S = 10.0
TOPICS = ("line/a/x", "line/b/x")

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    "cycles", [2, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(400)], id="20-slow")]
)
def test_everything_in_one_process(tmp_path: Path, cycles: int) -> None:
    """An online and an offline session, retained messages and wills."""
    server = Server(tmp_path / "data")
    server.start()
    try:
        online = Client(server, "online", clean=False)
        online.subscribe(("line/#", 1), ("wills/#", 1))
        offline = Client(server, "offline", clean=False)
        offline.subscribe(("line/#", 1), ("line/+/x", 1))
        offline.close()
        streams = [Stream(server, topic) for topic in TOPICS]
        for cycle in range(cycles):
            _leave_traces(server, online, cycle)
            for stream in streams:
                stream.flowing()
            server.kill()
            server.start()
            _find_retained(server, cycle)
            for stream in streams:
                stream.flowing(1)
        counts = {stream.topic: stream.end() for stream in streams}
        expect_all(online, counts)
        offline = Client(server, "offline", clean=False)
        assert offline.present
        expect_all(offline, counts)
        for client in (online, offline):
            client.close()
        assert server.end(signal.SIGTERM) == 0
        no_traceback(server)
    finally:
        server.kill_if_running()


def _leave_traces(server: Server, online: Client, cycle: int) -> None:
    """A retained message and a will that must be there after the kill."""
    keeper = Client(server, "keeper")
    keeper.publish("retained/state", b"%d" % cycle, retain=True)
    keeper.close()
    leaver = Client(server, "leaver", will=(f"wills/{cycle}", b"gone", 1, False))
    leaver.vanish()
    online.until(lambda: f"wills/{cycle}" in online.latest)


def _find_retained(server: Server, cycle: int) -> None:
    """The newest retained message of the topic, and nothing else."""
    fresh = Client(server, "fresh")
    fresh.subscribe(("retained/#", 1))
    fresh.until(lambda: bool(fresh.messages))
    assert [(m.payload, m.retain) for m in fresh.messages] == [(b"%d" % cycle, True)]
    fresh.close()


class Parts:
    """Controller, broker and proxy as processes."""

    def __init__(self, directory: Path) -> None:
        self.controller = Process(
            directory / "controller", ["controller", "--data", str(directory / "controller-data")], "remoting"
        )
        self.controller.start()
        address = f"127.0.0.1:{self.controller.port}"
        arguments = ["--data", str(directory / "broker-data"), "--controllers", address]
        self.broker = Process(directory / "broker", ["broker", *arguments], "remoting")
        self.broker.start()
        self.proxy = Process(directory / "proxy", ["proxy", "--controllers", address], "mqtt")
        self.proxy.start()
        self.all = (self.proxy, self.broker, self.controller)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    """Started parts that are ended after the test."""
    started = Parts(tmp_path)
    yield started
    for part in started.all:
        part.kill_if_running()


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(5, marks=[pytest.mark.slow, pytest.mark.timeout(400)], id="5-slow")]
)
def test_each_part_alone(parts: Parts, rounds: int) -> None:
    """Broker, proxy and controller are killed in turn; the others and the clients continue with the new one."""
    online = Client(parts.proxy, "online", clean=False)
    online.subscribe(("line/#", 1))
    offline = Client(parts.proxy, "offline", clean=False)
    offline.subscribe(("line/#", 1))
    offline.close()
    streams = [Stream(parts.proxy, topic) for topic in TOPICS]
    for _ in range(rounds):
        for part in (parts.broker, parts.controller, parts.proxy):
            for stream in streams:
                stream.flowing()
            part.kill()
            part.start()
    if rounds > 1:
        _stand_still(parts.broker)
    for stream in streams:
        stream.flowing()
    counts = {stream.topic: stream.end() for stream in streams}
    expect_all(online, counts)
    offline = Client(parts.proxy, "offline", clean=False)
    assert offline.present
    expect_all(offline, counts)
    for client in (online, offline):
        client.close()
    assert [part.end(signal.SIGTERM) for part in parts.all] == [0, 0, 0]
    no_traceback(*parts.all)


def _stand_still(part: Process) -> None:
    """A part that is stopped for a while and then continues."""
    assert part.process is not None
    part.process.send_signal(signal.SIGSTOP)
    threading.Event().wait(STOPPED_S)
    part.process.send_signal(signal.SIGCONT)
