"""Shared subscriptions on real processes: each message goes to one member, none is lost by any kill."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.processes import wire
from tests.processes.rig import DEADLINE_S, Client, Process, Server, Stream, no_traceback

pytestmark = pytest.mark.processes

FILTER = "$share/workers/line/#"
TOPIC = "line/a"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A started server that is ended after the test."""
    started = Server(tmp_path / "data")
    started.start()
    yield started
    started.kill_if_running()


class Cluster:
    """A broker and two proxies, each a process of its own."""

    def __init__(self, directory: Path) -> None:
        self.broker = Process(directory / "broker", ["broker", "--data", str(directory / "data")], "remoting")
        self.broker.start()
        address = f"proxy.broker=127.0.0.1:{self.broker.port}"
        self.proxies = [Process(directory / name, ["proxy", "--set", address], "mqtt") for name in ("one", "two")]
        for proxy in self.proxies:
            proxy.start()

    def end(self) -> None:
        """At the end of a test, whatever its outcome."""
        for part in (*self.proxies, self.broker):
            part.kill_if_running()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A started cluster that is ended after the test."""
    started = Cluster(tmp_path)
    yield started
    started.end()


def member(server: Server, name: str, *, clean: bool = True, acknowledge: bool = True) -> Client:
    """A client subscribed to the group."""
    joined = Client(server, name, clean=clean)
    if not acknowledge:
        joined.client.manual_ack_set(True)
    assert joined.subscribe((FILTER, 1)) == [1]
    return joined


def until_all(members: Sequence[Client], count: int) -> Counter[int]:
    """Wait until the members together have every number, as long as more arrive; returns how often each came."""
    had, deadline = 0, time.monotonic() + DEADLINE_S
    while True:
        seen = Counter(number for one in members for number in one.numbers(TOPIC))
        if len(seen) > had:
            had, deadline = len(seen), time.monotonic() + DEADLINE_S
        if len(seen) >= count:
            assert set(seen) == set(range(count))
            return seen
        assert time.monotonic() < deadline, (
            f"{len(seen)} of {count}, missing {sorted(set(range(count)) - set(seen))[:5]}"
        )
        with members[0].changed:
            members[0].changed.wait(0.1)


def test_each_message_goes_to_one_member_and_to_ordinary_subscribers(server: Server) -> None:
    """Fair among members, in order for each, beside ordinary subscriptions; bad names are refused."""
    members = [member(server, f"m{index}") for index in range(3)]
    watcher = Client(server, "watcher")
    assert watcher.subscribe(("line/#", 1), ("$share//line", 1), ("$share/g", 1)) == [1, 128, 128]
    publisher = Client(server, "publisher")
    publisher.publish("line/kept", b"-1", retain=True)
    for first in range(0, 1_200, 30):  # no member is busy when the next ones come, so turns alone decide
        publisher.publish_many(TOPIC, first, 30)
        until_all(members, first + 30)
    for one in members:
        assert 300 < len(one.numbers(TOPIC)) < 500
    publisher.publish_many(TOPIC, 1_200, 1_800)
    watcher.until(lambda: len(watcher.numbers(TOPIC)) == 3_000)
    assert set(until_all(members, 3_000).values()) == {1}
    for one in members:
        assert one.numbers(TOPIC) == sorted(one.numbers(TOPIC))
    late = member(server, "late")
    assert not late.messages, "retained messages are not for shared subscriptions"
    for one in members:
        one.unsubscribe(FILTER)
        one.subscribe(("line/c", 1))
    publisher.publish("line/b", b"0")
    late.until(lambda: bool(late.messages))
    for one in (*members, watcher, publisher, late):
        one.close()
    assert server.end(signal.SIGTERM) == 0
    no_traceback(server)


def test_what_a_vanished_member_did_not_acknowledge_goes_to_another(server: Server) -> None:
    """A member that acknowledges nothing keeps what it was given; when its socket breaks another gets exactly that."""
    stuck = member(server, "stuck", acknowledge=False)
    publisher = Client(server, "publisher")
    publisher.publish_many(TOPIC, 0, 100)
    stuck.until(lambda: len(stuck.numbers(TOPIC)) == 64)
    other = member(server, "other")
    other.until(lambda: len(other.numbers(TOPIC)) == 36)
    assert other.numbers(TOPIC) == list(range(64, 100))
    stuck.vanish()
    seen = until_all([other], 100)
    assert set(seen.values()) == {1}
    assert other.numbers(TOPIC)[36:] == list(range(64))
    for one in (other, publisher):
        one.close()


def test_a_group_of_durable_sessions_keeps_its_place(server: Server) -> None:
    """All members offline, the server killed: messages of that time go to the first member that returns."""
    for name in ("a", "b"):
        member(server, name, clean=False).close()
    publisher = Client(server, "publisher")
    publisher.publish_many(TOPIC, 0, 200)
    publisher.close()
    server.kill()
    server.start()
    back = Client(server, "a", clean=False)
    assert back.present
    assert set(until_all([back], 200).values()) == {1}
    back.close()


def test_a_killed_proxy_loses_no_message(cluster: Cluster) -> None:
    """Members on two proxies, one is killed in the stream: the others get what its members had not acknowledged."""
    one, two = cluster.proxies
    lost = [member(one, f"one-{index}") for index in range(2)]
    kept = [member(two, f"two-{index}") for index in range(2)]
    stream = Stream(two, TOPIC)
    stream.flowing()
    one.kill()
    for client in lost:
        client.client.loop_stop()
    stream.flowing()
    count = stream.end()
    seen = until_all([*lost, *kept], count)
    assert all(one.numbers(TOPIC) for one in (*lost, *kept))
    repeated = [number for number, times in seen.items() if times > 1]
    assert len(repeated) <= 2 * 64, "only what was in flight to the two lost members may come again"
    for client in kept:
        assert not set(client.numbers(TOPIC)) & set(kept[kept.index(client) - 1].numbers(TOPIC))
        client.close()
    no_traceback(two, cluster.broker)


def test_a_client_with_both_kinds_of_subscription_gets_both(server: Server) -> None:
    """[MQTT 5 4.8.2] a shared subscription and an ordinary one of the same filter are two subscriptions."""
    both = member(server, "both")
    assert both.subscribe(("line/#", 1)) == [1]
    publisher = Client(server, "publisher")
    publisher.publish_many(TOPIC, 0, 300)
    both.until(lambda: len(both.numbers(TOPIC)) == 600)
    assert set(until_all([both], 300).values()) == {2}
    for one in (both, publisher):
        one.close()


def test_a_killed_broker_repeats_little(cluster: Cluster) -> None:
    """Members stay connected; acknowledged messages come again only if their acknowledgement was not yet written."""
    members = [member(proxy, f"m{index}", clean=index == 0) for index, proxy in enumerate(cluster.proxies)]
    disconnects: list[object] = []
    for client in members:
        client.client.on_disconnect = lambda *arguments: disconnects.append(arguments)
    publisher = Client(cluster.proxies[0], "publisher")
    publisher.publish_many(TOPIC, 0, 400)
    until_all(members, 400)
    time.sleep(0.5)  # longer than the interval at which acknowledgements are written
    cluster.broker.kill()
    cluster.broker.start()
    publisher.publish_many(TOPIC, 400, 400)
    seen = until_all(members, 800)
    assert max(seen.values()) == 1
    assert not disconnects
    for client in (*members, publisher):
        client.close()
    no_traceback(*cluster.proxies, cluster.broker)


def test_qos_2_messages_are_settled_by_their_exchange(server: Server) -> None:
    """Durable and clean members; each message to one of them, acknowledged by PUBCOMP, nothing left over."""
    members = [Client(server, "clean"), Client(server, "durable", clean=False)]
    for one in members:
        assert one.subscribe((FILTER, 2)) == [2]
    publisher = Client(server, "publisher")
    sent = [publisher.client.publish(TOPIC, b"%d" % number, 2) for number in range(500)]
    for info in sent:
        info.wait_for_publish(DEADLINE_S)
    assert set(until_all(members, 500).values()) == {1}
    assert {message.qos for one in members for message in one.messages} == {2}
    for one in members:
        one.subscribe(("other", 0))  # answered after what was acknowledged before
    for one in (*members, publisher):
        one.close()
    late = Client(server, "durable", clean=False)
    assert late.present
    late.subscribe(("other", 0))
    publisher = Client(server, "publisher-2")
    publisher.publish(TOPIC, b"500", 2)
    late.until(lambda: bool(late.messages))
    assert late.numbers(TOPIC) == [500]
    for one in (late, publisher):
        one.close()
    no_traceback(server)


def test_nothing_is_lost_when_the_broker_is_killed_in_the_stream(cluster: Cluster) -> None:
    """Twice, with members on two proxies, durable and clean: every acknowledged message reaches one of them."""
    members = [member(cluster.proxies[index % 2], f"m{index}", clean=index < 2) for index in range(4)]
    stream = Stream(cluster.proxies[0], TOPIC)
    for _ in range(2):
        stream.flowing()
        cluster.broker.kill()
        cluster.broker.start()
        stream.flowing()
    count = stream.end()
    seen = until_all(members, count)
    assert all(client.numbers(TOPIC) for client in members)
    # What was in flight is published again, and what was acknowledged in the last interval comes again.
    assert sum(seen.values()) < 2 * count
    for client in members:
        client.close()
    no_traceback(*cluster.proxies, cluster.broker)


def exact_member(server: Server, *, clean: bool) -> wire.Peer:
    """A member of raw packets that receives the message 0 with QoS 2 and does not answer."""
    peer = wire.Peer(server.port)
    peer.send(wire.connect("exact", flags=2 if clean else 0) + wire.subscribe((FILTER, 2)))
    assert peer.receive(9) == b"\x20\x02\x00\x00\x90\x03\x00\x01\x02"
    publisher = Client(server, "publisher")
    publisher.publish(TOPIC, b"0", 2)
    publisher.close()
    assert peer.receive(13) == wire.publish(TOPIC, b"0", qos=2)
    return peer


def next_message_of_other(server: Server) -> None:
    """Another member gets what is published now, and nothing older."""
    other = Client(server, "other")
    assert other.subscribe((FILTER, 2)) == [2]
    other.publish(TOPIC, b"1", 2)
    other.until(lambda: bool(other.messages))
    other.subscribe(("barrier", 0))
    assert other.numbers(TOPIC) == [1], "what was given back would have been sent first"
    other.close()


@pytest.mark.parametrize("killed", [False, True])
def test_qos_2_in_the_middle_waits_for_its_member(server: Server, killed: bool) -> None:
    """[MQTT-4.8.2-4] its connection broke, or all was killed: no other member gets it, and each step continues."""
    peer = exact_member(server, clean=False)
    if killed:
        server.kill()
        server.start()
    peer.close()
    next_message_of_other(server)
    peer = wire.Peer(server.port)
    peer.send(wire.connect("exact", flags=0))
    again = bytearray(wire.publish(TOPIC, b"0", qos=2))
    again[0] |= 8  # DUP
    assert peer.receive(4 + 13) == b"\x20\x02\x01\x00" + again
    peer.send(b"\x50\x02\x00\x01")  # PUBREC
    assert peer.receive(4) == b"\x62\x02\x00\x01"
    peer.close()
    peer = wire.Peer(server.port)
    peer.send(wire.connect("exact", flags=0))
    assert peer.receive(8) == b"\x20\x02\x01\x00\x62\x02\x00\x01"
    peer.send(b"\x70\x02\x00\x01\xc0\x00")  # PUBCOMP, PINGREQ
    assert peer.receive(2) == b"\xd0\x00"
    peer.close()
    assert server.end(signal.SIGTERM) == 0
    no_traceback(server)


@pytest.mark.parametrize("clean", [False, True])
def test_qos_2_in_the_middle_ends_with_its_session(server: Server, clean: bool) -> None:
    """[MQTT-4.8.2-5] a session without expiry ends with its connection, a kept one when it is cleaned."""
    exact_member(server, clean=clean).close()
    if not clean:
        peer = wire.Peer(server.port)
        peer.send(wire.connect("exact", flags=2))
        assert peer.receive(4) == b"\x20\x02\x00\x00"
        peer.close()
    next_message_of_other(server)
    assert server.end(signal.SIGTERM) == 0
    no_traceback(server)
