"""Delayed messages that are due while nobody can elect a master go to another group, over real brokers.

Two controllers of three and the master of the first group are killed. Its replica sends what is due to the second
group, also through a kill between that group's acknowledgement and its own journal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.bodies.controller_body import TopicRoute, decode_body
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.properties import encode_properties
from tests.chaos.fault_proxy import OUT, FaultProxy
from tests.processes.broker_group import Broker, BrokerGroup, until
from tests.processes.kill_rounds import published
from tests.processes.rig import no_traceback
from tests.processes.test_acting_locks import acting
from tests.support.ports import free_port

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

TOPIC = "later"
HERE, THERE, PROXIED = "127.0.0.1", "other", "127.0.0.2"
DUE_AFTER_MS = 8_000
"""Long enough to kill a master first."""
LATER_MS = 10_000
"""Long enough for a replica to stand in meanwhile and to send what is due."""
HOUR_MS = 3_600_000


def at(broker: Broker) -> BlockingConnection:
    return BlockingConnection.dial(f"{HERE}:{broker.port}")


def send(broker: Broker, number: int, due_ms: int = 0) -> str:
    """Store a message that is due at this time; returns the handle it can be found by while it waits."""
    times = [(b"TIMER_DELIVER_MS", b"%d" % due_ms)] if due_ms else []
    text = encode_properties([(b"UNIQ_KEY", b"%032d" % number), *times]).decode()
    fields = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": text}
    command = Command(Code.SEND_MESSAGE_V2, fields=fields, body=b"%d" % number)
    with at(broker) as connection:
        return checked(connection.request(command)).fields.get("recallHandle", "")


def delivered(broker: Broker) -> list[int]:
    """The numbers in the topic's queue there, in order."""
    with at(broker) as connection:
        return published(connection, TOPIC)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class TwoGroups:
    """A group with a replica that stands in, and another one whose clients reach it through a proxy."""

    def __init__(self, folder: Path) -> None:
        words = [word for each in ("acting_master", "escape") for word in ("--set", f"broker.replication.{each}=true")]
        self.folder = folder
        self.group = BrokerGroup(
            folder, controllers=3, brokers=2, in_sync_min=2,
            arguments={"broker": words, "controller": ["--set", "controller.broker_lost_grace_ms=2500"]},
        )  # fmt: skip
        arguments = ["broker", "--data", str(folder / "other-data"), "--controllers", self.group.addresses]
        for setting in ("broker_name=other", f"advertised_host={PROXIED}", "vip_port=0"):
            arguments += ["--set", f"broker.{setting}"]
        self.other = Broker(folder / "other", arguments, "remoting")
        self.other.port = free_port()
        self.network = FaultProxy()
        self.network.add(THERE, (PROXIED, self.other.port), (HERE, self.other.port))

    def start(self) -> Broker:
        """Start everything and make the topic in both groups; returns the master of the first one."""
        self.other.start()
        self.group.start()
        master = self.group.settle()
        send(self.other, 100)
        send(master, 200)
        until(lambda: self.routed() == {"broker-a", "other"}, "the topic is not in the route of both groups")
        return master

    def routed(self) -> set[str]:
        """The groups that the first controller names for the topic."""
        with BlockingConnection.dial(f"{HERE}:{self.group.controllers[0].port}") as connection:
            reply = connection.request(Command(Code.GET_ROUTEINFO_BY_TOPIC, fields={"topic": TOPIC}))
        return {each.broker_name for each in decode_body(reply.body, TopicRoute).broker_datas} if reply.body else set()

    def lose_master(self, master: Broker, due_ms: int) -> Broker:
        """Kill the master, before any message is due, when nobody can elect; returns the replica that stands in."""
        (replica,) = [each for each in self.group.brokers if each is not master]
        self.group.wait_equal()
        until(lambda: replica.status()["confirmed"] == replica.status()["end"], "the replica knows less is confirmed")
        for each in self.group.controllers[1:]:
            each.kill()
        master.kill()
        assert now_ms() < due_ms, "the master could have delivered what was to be late"
        until(lambda: acting([replica]), "nobody stands in")
        return replica

    def recover(self) -> Broker:
        """Start what was killed; returns the master, once no broker has anything left for it."""
        for each in (*self.group.brokers, *self.group.controllers):
            if each.process is None or each.process.poll() is not None:
                each.start()
        master = self.group.settle()
        until(lambda: not list(self.folder.glob("broker-*-data/ACTING")), "the master does not have everything")
        return master

    def end(self) -> None:
        """At the end of a test, whatever its outcome."""
        self.network.close()
        self.other.kill_if_running()
        self.group.end()


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[TwoGroups]:
    made = TwoGroups(tmp_path)
    try:
        yield made
    finally:
        made.end()


def test_what_is_due_is_delivered_once_by_the_other_group(groups: TwoGroups) -> None:
    """And what is not due yet, by its own one when there is a master again."""
    master = groups.start()
    due_ms = now_ms() + DUE_AFTER_MS
    for number in range(3):
        send(master, number, due_ms + number)
    handle = send(master, 3, due_ms + HOUR_MS)
    groups.lose_master(master, due_ms)
    until(lambda: len(delivered(groups.other)) == 4, "what is due does not arrive at the other group")
    assert now_ms() >= due_ms
    assert sorted(delivered(groups.other)) == [0, 1, 2, 100]

    again = groups.recover()
    with at(again) as connection:
        fields = {"topic": TOPIC, "recallHandle": handle, "delayMs": "10"}
        checked(connection.request(Command(Code.RESCHEDULE_MESSAGE, fields=fields)))
    send(again, 4, now_ms() + 10)
    until(lambda: len(delivered(again)) >= 3, "the new master delivers nothing that is due")
    assert sorted(delivered(again)) == [3, 4, 200], "what escaped is passed over"
    assert sorted(delivered(groups.other)) == [0, 1, 2, 100], "once"
    no_traceback(groups.other, *groups.group.brokers, *groups.group.controllers)


def test_a_kill_before_the_journal_has_it_loses_nothing(groups: TwoGroups) -> None:
    """The acknowledgement of the second message does not arrive: it is delivered twice, the first one once."""
    master = groups.start()
    due_ms = now_ms() + DUE_AFTER_MS
    send(master, 0, due_ms)
    send(master, 1, due_ms + LATER_MS)
    replica = groups.lose_master(master, due_ms)
    journal = groups.folder / f"{replica.data.name}-data" / "ACTING"
    until(lambda: journal.exists() and journal.read_bytes().count(b"\n") == 1, "the first one is not in the journal")
    assert now_ms() < due_ms + LATER_MS
    groups.network.set(THERE, cut=frozenset((OUT,)))
    until(lambda: 1 in delivered(groups.other), "the second one does not arrive at the other group")
    replica.kill()
    assert journal.read_bytes().count(b"\n") == 1
    there = delivered(groups.other)
    assert set(there) == {100, 0, 1}
    assert there.count(0) == 1

    groups.network.set(THERE, refuses=True)
    again = groups.recover()
    until(lambda: 1 in delivered(again), "the second one is lost to this group's consumers")
    send(again, 2, now_ms() + 10)
    until(lambda: 2 in delivered(again), "the new master delivers nothing that is due")
    assert delivered(again) == [200, 1, 2], "the first one is passed over"
    assert delivered(groups.other) == there
