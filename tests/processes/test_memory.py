"""Many sessions, many connections, many subscriptions: a server's memory for each is bounded and released."""

from __future__ import annotations

import resource
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import wire
from tests.processes.rig import Server, no_traceback

ACCEPTED = b"\x20\x02\x00\x00"
FILES_MAX = 8_192
CONNECT_DEADLINE_MS = 2_000

pytestmark = [pytest.mark.processes]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server whose clients have two seconds for their CONNECT."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES_MAX, files[1]), files[1]))
    started = Server(tmp_path / "data", f"--set=proxy.connect_timeout_ms={CONNECT_DEADLINE_MS}")
    started.start()
    yield started
    assert started.end(signal.SIGTERM) == 0
    no_traceback(started)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)


def session(server: Server, client_id: str, *filters: str, clean: bool = True) -> wire.Peer:
    """A connected and subscribed client."""
    peer = wire.Peer(server.port)
    peer.send(wire.connect(client_id, flags=2 if clean else 0))
    assert peer.receive(4) == ACCEPTED
    peer.send(wire.subscribe(*[(topic_filter, 1) for topic_filter in filters]))
    assert len(peer.receive(4 + len(filters))) == 4 + len(filters)
    return peer


def test_half_a_connect(server: Server) -> None:
    """It costs the bytes received, at most 64 KB, and ends at the deadline."""
    before_kb = server.rss_kb()
    peers = [wire.Peer(server.port) for _ in range(200)]
    for peer in peers:
        peer.send(b"\x10\xf0\xff\x03" + bytes(30_000))
    for peer in peers:
        assert peer.until_closed() == b""
        peer.close()
    assert server.rss_kb() - before_kb < 20_000
    assert server.log.read_text().count(" violation ") == 200


def test_connections_and_subscriptions_that_come_and_go(server: Server) -> None:
    """The same ids and filters again and again leave no memory in use."""
    come_and_go(server, 1_000)


def test_refused_connects(server: Server) -> None:
    """CONNECTs that are refused, cut short or of another protocol leave no memory in use, however many there are."""
    ways = [
        wire.connect("x", level=6),
        wire.connect("", flags=0),
        wire.connect("x", flags=6, rest=wire.text("w/#") + wire.text(b"m" * 10_000)),
        wire.connect(b"a\xff"),
        wire.packet(0x10, b"\0\4MQ"),
        wire.publish("a"),
        b"\x10\xff\xff\xff\x7f",
    ]
    for turn in (0, 1):
        for number in range(1_600):
            peer = wire.Peer(server.port)
            peer.send(ways[number % len(ways)])
            assert peer.until_closed()[:4] != ACCEPTED
            peer.close()
        if turn == 0:
            before_kb = server.rss_kb()
    assert server.rss_kb() - before_kb < 2_000


def come_and_go(server: Server, turns: int) -> None:
    """Twice this many connections and changes of subscriptions; the second half must not cost memory."""
    client = session(server, "changing", "x/y")
    for turn in (0, 1):
        for number in range(turns):
            session(server, f"passing-{number % 50}", f"p/{number % 50}/#").close()
            topic_filter = f"s/{number % 50}/{'#' if number % 2 else 'x'}"
            client.send(wire.subscribe((topic_filter, 1)) + wire.packet(0xA2, b"\0\2" + wire.text(topic_filter)))
            assert client.receive(9) == b"\x90\x03\x00\x01\x01\xb0\x02\x00\x02"
        if turn == 0:
            before_kb = server.rss_kb()
    assert server.rss_kb() - before_kb < 2_000
    client.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hundred_thousand(server: Server) -> None:
    """The same with 50,000 turns each, and 10^5 repetitions of one QoS 2 publish."""
    come_and_go(server, 25_000)
    peer = session(server, "repeating", "x/y")
    repeated = wire.publish("q", qos=2, packet_id=9)
    peer.send(repeated)
    assert peer.receive(4) == b"\x50\x02\x00\x09"
    before_kb = server.rss_kb()
    for _ in range(100):
        peer.send(repeated * 1_000)
        assert peer.receive(4_000) == b"\x50\x02\x00\x09" * 1_000
    assert server.rss_kb() - before_kb < 2_000
    peer.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sessions_that_do_not_read(server: Server) -> None:
    """2,000 offline, 2,000 idle and 100 slow sessions cost numbers, not messages; each gets all when it returns."""
    for number in range(2_000):
        session(server, f"offline-{number}", "all/#", f"bulk/{number % 10}/#", clean=False).close()
    idle = [session(server, f"idle-{number}", f"commands/{number}") for number in range(2_000)]
    slow = [session(server, f"slow-{number}", "all/#") for number in range(100)]
    publisher = session(server, "publisher", "nothing")
    payload = bytes(4_000)
    grown_kb = []
    for _ in range(4):
        before_kb = server.rss_kb()
        for _ in range(20):
            publisher.send(b"".join(wire.publish("all/1", payload, qos=1, packet_id=n) for n in range(1, 101)))
            assert len(publisher.receive(400)) == 400
        grown_kb.append(server.rss_kb() - before_kb)
    assert max(grown_kb[2:]) < 4_000, grown_kb  # the first two fill the cache of records, up to its limit
    back = wire.Peer(server.port)
    back.send(wire.connect("offline-7", flags=0))
    assert back.receive(4) == b"\x20\x02\x01\x00"
    assert len(back.receive(200 * 4_000)) == 200 * 4_000
    poll = select.poll()
    for peer in idle:
        poll.register(peer.socket, select.POLLIN)
    assert poll.poll(0) == []
    for peer in [*idle, *slow, publisher, back]:
        peer.close()
