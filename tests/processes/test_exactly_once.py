"""QoS 2 in both directions against `kill -9` of proxy and broker: nothing is delivered twice, nothing is lost.

Publisher and subscriber are clients of raw packets that keep their half of the session over any number of connections
(`exact_client`); they reconnect through either proxy.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.processes import wire
from tests.processes.exact_client import ExactClient
from tests.processes.rig import Process, Server, no_traceback

pytestmark = pytest.mark.processes

STEP = 150
"""Messages between two kills."""


class Parts:
    """A broker and two proxies; clients alternate between the proxies."""

    def __init__(self, directory: Path) -> None:
        self.broker = Process(directory / "broker", ["broker", "--data", str(directory / "data")], "remoting")
        self.broker.start()
        options = ["--set", f"proxy.broker=127.0.0.1:{self.broker.port}", "--set", "proxy.reconnect_delay_ms_max=200"]
        self.proxies = [Process(directory / name, ["proxy", *options], "mqtt") for name in ("one", "two")]
        for proxy in self.proxies:
            proxy.start()
        self._turns = itertools.count()

    def port(self) -> int:
        return self.proxies[next(self._turns) % 2].port

    def all(self) -> list[Process]:
        return [self.broker, *self.proxies]


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with ExitStack() as stack:
        made = Parts(tmp_path)
        for process in made.all():
            stack.callback(process.kill_if_running)
        yield made


def judge(publisher: ExactClient, subscriber: ExactClient, *servers: Server) -> None:
    """Everything that was sent is complete and was received exactly once, in order."""
    with publisher.changed:
        publisher.limit = publisher.next_number
    publisher.until(lambda: not publisher.outgoing)
    total = publisher.next_number
    subscriber.until(lambda: len(subscriber.taken) >= total)
    publisher.stop()
    subscriber.stop()
    assert not publisher.lost_session
    assert not subscriber.lost_session
    assert sorted(subscriber.taken) == list(range(total))
    assert subscriber.taken == list(range(total))
    no_traceback(*servers)


def pair(port, name: str = "line") -> tuple[ExactClient, ExactClient]:
    subscriber = ExactClient(f"subscriber-{name}", port, subscribe_to=f"{name}/#").run()
    subscriber.until(lambda: subscriber.subscribed)
    publisher = ExactClient(f"publisher-{name}", port, publish_to=f"{name}/x").run()
    return publisher, subscriber


@pytest.mark.parametrize("cycles", [3, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_proxies_and_broker_are_killed_in_turn(parts: Parts, cycles: int) -> None:
    publisher, subscriber = pair(parts.port)
    victims = itertools.cycle([[parts.proxies[0]], [parts.broker], [parts.proxies[1]], [parts.broker, *parts.proxies]])
    for victim in itertools.islice(victims, cycles + 1):
        wanted = len(subscriber.taken) + STEP
        subscriber.until(lambda wanted=wanted: len(subscriber.taken) >= wanted)
        for process in victim:
            process.kill()
        for process in victim:
            process.start()
    judge(publisher, subscriber, *parts.all())


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_everything_in_one_process_is_killed(tmp_path: Path, flush: str) -> None:
    server = Server(tmp_path / "data", "--set", f"broker.store.flush={flush}")
    server.start()
    try:
        publisher, subscriber = pair(lambda: server.port)
        for _ in range(3):
            wanted = len(subscriber.taken) + STEP
            subscriber.until(lambda wanted=wanted: len(subscriber.taken) >= wanted)
            server.kill()
            server.start()
        judge(publisher, subscriber, server)
        assert server.end(signal.SIGTERM) == 0
    finally:
        server.kill_if_running()


@pytest.mark.parametrize("rounds", [60, pytest.param(1_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_exchanges_and_repetitions_leave_no_memory_behind(tmp_path: Path, rounds: int) -> None:
    """A hundred exchanges of a kept session a round, and as many repetitions of one that is never released."""
    server = Server(tmp_path / "data", "--set", "broker.store.flush=async")
    server.start()
    try:
        peer = wire.Peer(server.port)
        peer.send(wire.connect("kept", flags=0))
        assert peer.receive(4) == b"\x20\x02\x00\x00"
        held = wire.publish("q", qos=2, packet_id=999)
        peer.send(held)
        assert peer.receive(4) == b"\x50\x02\x03\xe7"
        before_kb = 0
        for turn in range(rounds):
            if turn == rounds // 3:
                before_kb = server.rss_kb()
            ids = range(1 + turn % 7, 101 + turn % 7)
            peer.send(b"".join(wire.publish("q", qos=2, packet_id=one) for one in ids))
            assert peer.receive(400) == b"".join(b"\x50\x02" + one.to_bytes(2, "big") for one in ids)
            peer.send(b"".join(wire.packet(0x62, one.to_bytes(2, "big")) for one in ids))
            assert peer.receive(400) == b"".join(b"\x70\x02" + one.to_bytes(2, "big") for one in ids)
            peer.send(held * 100)
            assert peer.receive(400) == b"\x50\x02\x03\xe7" * 100
        assert server.rss_kb() - before_kb < 3_000
        peer.close()
        reader = wire.Peer(server.port)
        reader.send(wire.connect("kept", flags=0) + held)
        assert reader.receive(8) == b"\x20\x02\x01\x00\x50\x02\x03\xe7"
        reader.close()
        assert server.end(signal.SIGTERM) == 0
        no_traceback(server)
    finally:
        server.kill_if_running()
