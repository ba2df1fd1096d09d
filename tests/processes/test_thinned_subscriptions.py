"""Filters wider than the rights of the subscriber, by real clients and a real server.

What may not be read never arrives, on any path, and everything else does. Each client waits for a message that is the
last one on every path: whatever was to come before it has come.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes.rig import DEADLINE_S, Client, Server

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

LIST = """\
topic readwrite #
topic deny-read secret/#
topic deny-read a/b
topic deny-read +/hidden/+
pattern deny-read hidden/%c/#
topic read $SYS/broker/uptime
"""
DENIED = ["secret", "secret/x", "secret//x", "a/b", "x/hidden/y", "/hidden/", "secret/+x".replace("+", "%2B")]
ALLOWED = ["Secret/x", "secrets", "a/b/c", "a/B", "a/b/", "/a/b", "x/hidden", "a%2Fb", "\uff41/b", "a/ b", "%LMQ%a/b"]
"""Names that look like denied ones, with escapes, other cases, further levels, other scripts."""


class Guarded(Server):
    """A server whose access list a test may replace."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.acl = folder / "acl"
        self.acl.write_text(LIST)
        super().__init__(folder / "data", *options)
        self.variables = {"LIGHTMQ_PROXY__ACL_FILE": str(self.acl)}

    def replace_list(self, text: str) -> None:
        """New rules, in force when this returns."""
        self.acl.write_text(text)
        assert self.process is not None
        before = self.log.read_text().count("mqtt_acl_read")
        self.process.send_signal(signal.SIGHUP)
        eventually(lambda: self.log.read_text().count("mqtt_acl_read") > before)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(tmp_path)
    made.start()
    yield made
    made.kill_if_running()


def publish_all(server: Server, *, retain: bool = False, end: str = "end") -> None:
    """All topics, the denied ones first, then the last one of all."""
    publisher = Client(server, "publisher")
    for topic in [*DENIED, *ALLOWED, end]:
        publisher.publish(topic, b"m", retain=retain)
    publisher.close()


def topics_of(client: Client) -> set[str]:
    return {message.topic for message in client.messages}


@pytest.mark.parametrize("topic_filter", ["#", "+/#"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_live_messages(server: Guarded, topic_filter: str, qos: int) -> None:
    client = Client(server, "reader")
    assert client.subscribe((topic_filter, qos)) == [qos]
    publish_all(server)
    client.until(lambda: "end" in client.latest)
    assert topics_of(client) == {*ALLOWED, "end"}
    client.close()


def test_a_filter_that_is_denied_as_a_whole_is_refused(server: Guarded) -> None:
    client = Client(server, "reader")
    assert client.subscribe(("secret/#", 1), ("secret/x", 1), ("a/b", 1), ("hidden/reader/x", 1)) == [0x80] * 4
    assert client.subscribe(("a/#", 1), ("+/b", 0), ("hidden/#", 1)) == [1, 0, 1]
    client.close()


def test_overlapping_filters(server: Guarded) -> None:
    """A denied topic arrives by none of them; an allowed one once."""
    client = Client(server, "reader")
    client.subscribe(("#", 0), ("a/#", 1), ("a/+/c", 1), ("+/hidden/#", 1))
    publish_all(server)
    client.until(lambda: "end" in client.latest)
    assert sorted(message.topic for message in client.messages) == sorted([*ALLOWED, "end"])
    client.close()


def test_retained_history_delayed_and_wills(server: Guarded) -> None:
    """Stored, historical, delayed messages and wills are judged like all others."""
    publish_all(server, retain=True)
    retained = Client(server, "retained")
    retained.subscribe(("#", 1))
    retained.until(lambda: "end" in retained.latest)
    history = Client(server, "history")
    assert history.subscribe(("$history/last=100/#", 1)) == [1]
    history.until(lambda: "end" in history.latest)
    publisher = Client(server, "publisher")
    for topic in ("$delayed/1/secret/x", "$delayed/1/a/b", "$delayed/1/late"):
        publisher.publish(topic, b"m")
    for number, topic in enumerate(["secret/will", "a/b", "will"]):
        Client(server, f"dying-{number}", will=(topic, b"m", 1, False)).vanish()
    for client in (retained, history):
        client.until(lambda client=client: {"late", "will"} <= client.latest.keys())
        assert topics_of(client) == {*ALLOWED, "end", "late", "will"}
        client.close()
    publisher.close()


def test_a_resumed_session_and_one_whose_rules_change(server: Guarded) -> None:
    """Waiting messages are judged when they are sent, by the rules of that moment; offsets skip denied ones."""
    client = Client(server, "kept", clean=False)
    client.subscribe(("#", 1))
    client.close()
    publish_all(server)
    server.replace_list(LIST + "topic deny-read Secret/#\n")
    client = Client(server, "kept", clean=False)
    client.until(lambda: "end" in client.latest)
    assert topics_of(client) == {*ALLOWED, "end"} - {"Secret/x"}
    client.close()
    again = Client(server, "kept", clean=False)  # nothing is left of what was skipped
    server.replace_list("topic readwrite #\n")
    publish_all(server, end="second")
    again.until(lambda: "second" in again.latest)
    assert topics_of(again) == {*DENIED, *ALLOWED, "second"}
    server.replace_list("topic readwrite #\ntopic deny-read a/#\n")
    seen = len(again.messages)
    publish_all(server, end="third")
    again.until(lambda: "third" in again.latest)
    assert not {message.topic for message in again.messages[seen:]} & {"a/b", "a/b/c", "a/B", "a/b/", "a/ b"}
    again.close()


def test_a_shared_subscription_loses_nothing_that_another_member_may_read(server: Guarded) -> None:
    """Each message goes to a member that may read it; one that none may read is skipped and delays nothing."""
    members = [Client(server, f"m{number}") for number in (1, 2, 3)]
    for member in members:
        assert member.subscribe(("$share/g/#", 1)) == [1]
    publisher = Client(server, "publisher")
    sent = []
    for number in range(60):
        for topic in (f"hidden/m1/{number}", f"hidden/m2/{number}", f"open/{number}", f"secret/{number}"):
            publisher.publish(topic, b"m")
            sent.append(topic)
    wanted = {topic for topic in sent if not topic.startswith("secret")}
    eventually(lambda: sum(len(member.messages) for member in members) >= len(wanted))
    seen = [topics_of(member) for member in members]
    assert set.union(*seen) == wanted
    assert sum(map(len, seen)) == len(wanted)
    assert not any(topic.startswith("hidden/m1/") for topic in seen[0])
    assert not any(topic.startswith("hidden/m2/") for topic in seen[1])
    for client in (*members, publisher):
        client.close()


def test_the_server_s_own_topics(server: Guarded) -> None:
    client = Client(server, "reader")
    assert client.subscribe(("$SYS/#", 0)) == [0]
    client.until(lambda: "$SYS/broker/uptime" in client.latest)
    assert set(client.latest) == {"$SYS/broker/uptime"}
    client.close()


def test_refusing_stays_selectable(tmp_path: Path) -> None:
    server = Guarded(tmp_path)
    server.variables["LIGHTMQ_PROXY__ACCESS__PARTLY_READABLE_FILTERS"] = "refuse"
    server.start()
    try:
        client = Client(server, "reader")
        assert client.subscribe(("#", 1), ("a/#", 1), ("$share/g/#", 1), ("a/b/c", 1)) == [0x80, 0x80, 0x80, 1]
        client.close()
    finally:
        server.kill_if_running()
