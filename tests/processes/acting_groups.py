"""Two groups of brokers, one with a replica that stands in when its master is gone, and the requests of their tests.

The other group is reached through a fault proxy. Three controllers, of which two are killed with the master, so that
nobody can elect. Thread rule: blocks; one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.bodies.controller_body import TopicRoute, decode_body
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.properties import encode_properties
from tests.chaos.fault_proxy import FaultProxy
from tests.processes.broker_group import Broker, BrokerGroup, until
from tests.processes.kill_rounds import published
from tests.support.ports import free_port

TOPIC = "later"
HERE, THERE, PROXIED = "127.0.0.1", "other", "127.0.0.2"


def acting(brokers: list[Broker]) -> list[Broker]:
    """Those that stand in."""
    return [each for each in brokers if b"\nrocketmq_replica_acting 1" in each.page("/metrics")]


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


@contextmanager
def two_groups(folder: Path) -> Iterator[TwoGroups]:
    """Both, not started yet; ended at the end of a test, whatever its outcome."""
    made = TwoGroups(folder)
    try:
        yield made
    finally:
        made.end()
