"""MQTT clients against a real server process: what is acknowledged survives `kill -9` of everything."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.rig import DEADLINE_S, Client, Process, Server

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A started server that is ended after the test."""
    started = Server(tmp_path / "data")
    started.start()
    yield started
    started.kill_if_running()


def test_the_life_of_messages(server: Server) -> None:
    """QoS 0 and 1, wildcards, one copy for overlapping filters, retained, wills, take-over, the server's own topics."""
    publisher = Client(server, "publisher")
    subscriber = Client(server, "subscriber")
    assert subscriber.subscribe(("plant/+/temp", 1), ("plant/#", 0), ("other", 0)) == [1, 0, 0]
    publisher.publish("plant/7/temp", b"21")
    publisher.publish("plant/7/state", b"on", 0)
    publisher.publish("other", b"x", 1)
    publisher.publish("plant/7/temp", b"22", retain=True)
    subscriber.until(lambda: len(subscriber.messages) >= 4)
    got = {(m.topic, m.payload, m.qos, m.retain) for m in subscriber.messages}
    assert got == {
        ("plant/7/temp", b"21", 1, False),
        ("plant/7/state", b"on", 0, False),
        ("other", b"x", 0, False),
        ("plant/7/temp", b"22", 1, False),
    }
    late = Client(server, "late", will=("plant/wills", b"gone", 1, False))
    late.subscribe(("#", 1))
    late.until(lambda: bool(late.messages))
    assert [(m.topic, m.payload, m.retain) for m in late.messages] == [("plant/7/temp", b"22", True)]
    late.vanish()
    subscriber.until(lambda: subscriber.messages[-1].topic == "plant/wills")
    replaced = Client(server, "taken", will=("plant/wills", b"taken over", 1, False))
    replaced.client.on_disconnect = lambda client, *_: client.disconnect()  # or it would reconnect and take over again
    taker = Client(server, "taken")
    subscriber.until(lambda: subscriber.messages[-1].payload == b"taken over")
    intruder = Client(server, "intruder")
    gone = threading.Event()
    intruder.client.on_disconnect = lambda client, *_: (gone.set(), client.disconnect())
    intruder.client.publish("$SYS/broker/uptime", b"mine", 1)
    assert gone.wait(DEADLINE_S)
    for client in (publisher, subscriber, taker):
        client.close()
    assert not [m for m in subscriber.messages if m.topic.startswith("$")]
    assert server.end(signal.SIGTERM) == 0


def test_an_offline_session_gets_everything_after_kill_9(server: Server) -> None:
    """8,000 acknowledged messages, retained ones, a stored session: all there after the process was killed."""
    durable = Client(server, "durable", clean=False)
    durable.subscribe(("line/#", 1))
    durable.close()
    publisher = Client(server, "publisher")
    publisher.publish("line/retained", b"-1", retain=True)
    publisher.publish_many("line/a", 0, 8_000)
    server.kill()
    publisher.client.loop_stop()
    server.start()
    durable = Client(server, "durable", clean=False)
    assert durable.present
    durable.until(lambda: len(durable.numbers("line/a")) >= 8_000)
    assert durable.numbers("line/a") == list(range(8_000))
    fresh = Client(server, "fresh")
    fresh.subscribe(("line/retained", 1))
    fresh.until(lambda: bool(fresh.messages))
    assert [(m.payload, m.retain) for m in fresh.messages] == [(b"-1", True)]
    for client in (durable, fresh):
        client.close()


def test_an_online_session_misses_nothing_acknowledged(server: Server) -> None:
    """Killed in the middle of the stream: every acknowledged message arrives, the order within a topic holds."""
    durable = Client(server, "durable", clean=False)
    durable.subscribe(("line/#", 1))
    publisher = Client(server, "publisher", clean=False)
    infos = [publisher.client.publish("line/a", b"%d" % number, 1) for number in range(8_000)]
    durable.until(lambda: len(durable.messages) > 1_000)
    server.kill()
    publisher.client.loop_stop()
    acknowledged = [number for number, info in enumerate(infos) if info.is_published()]
    assert acknowledged
    server.start()
    durable.until(lambda: bool(durable.present))  # all may have been delivered before the kill
    deadline = time.monotonic() + DEADLINE_S
    while not set(acknowledged) <= set(durable.numbers("line/a")) and time.monotonic() < deadline:
        with durable.changed:
            durable.changed.wait(0.2)
    numbers = durable.numbers("line/a")
    assert set(acknowledged) <= set(numbers)
    first_seen = list(dict.fromkeys(numbers))
    assert first_seen == sorted(first_seen)
    durable.close()


def test_a_slow_reader_costs_no_memory(server: Server) -> None:
    """A subscriber that does not read: the server's memory stays flat, and it gets everything when it reads again."""
    slow = Client(server, "slow")
    slow.subscribe(("bulk/#", 0))
    slow.client.loop_stop()
    publisher = Client(server, "publisher")
    payload = b"x" * 16_384
    before_kb = server.rss_kb()
    sent = [publisher.client.publish("bulk/1", payload, 1) for _ in range(4_000)]
    for info in sent:
        info.wait_for_publish(DEADLINE_S)
    grown_kb = server.rss_kb() - before_kb
    assert grown_kb < 40_000, f"{4_000 * 16} KB published, the process grew by {grown_kb} KB"
    slow.client.loop_start()
    slow.until(lambda: len(slow.messages) == 4_000)
    publisher.close()
    slow.close()


def test_a_killed_broker_leaves_idle_connections_open(tmp_path: Path) -> None:
    """Proxy and broker as processes: the broker is killed and returns; no idle client has to connect again."""
    broker = Process(tmp_path / "broker", ["broker", "--data", str(tmp_path / "data")], "remoting")
    broker.start()
    proxy = Process(tmp_path / "proxy", ["proxy", "--set", f"proxy.broker=127.0.0.1:{broker.port}"], "mqtt")
    try:
        proxy.start()
        durable, clean = Client(proxy, "durable", clean=False), Client(proxy, "clean")
        disconnects: list[object] = []
        for client in (durable, clean):
            client.subscribe(("line/#", 1))
            client.client.on_disconnect = lambda *arguments: disconnects.append(arguments)
        publisher = Client(proxy, "publisher")
        publisher.publish_many("line/a", 0, 500)
        broker.kill()
        infos = [publisher.client.publish("line/a", b"%d" % number, 1) for number in range(500, 1_000)]
        broker.start()
        for info in infos:
            info.wait_for_publish(DEADLINE_S)
        for client in (durable, clean):
            client.until(lambda client=client: set(client.numbers("line/a")) == set(range(1_000)))
        assert not disconnects
        for client in (durable, clean, publisher):
            client.close()
        assert proxy.end(signal.SIGTERM) == 0
    finally:
        for part in (proxy, broker):
            part.kill_if_running()
