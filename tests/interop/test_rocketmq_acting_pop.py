"""Consumers of RocketMQ's Java client pop while no master can be elected, and nothing they acknowledge comes again.

The queues are allocated by the server, so a consumer asks whatever the route calls the master for what it pops: one
that begins while a replica stands in must get the same answer, or it would pull until it ends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.interop import rocketmq_java
from tests.interop.rocketmq_java import ClientProcess, JavaProcess
from tests.interop.test_rocketmq_acting_master import GROUP, MESSAGES, TOPIC, is_acting, send_all
from tests.processes.broker_group import Broker, BrokerGroup, until
from tests.processes.rig import no_traceback

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(900)]

AT_ONCE = 4
"""Most messages that consumers have at a time, or whose acknowledgement is on its way."""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rocketmq_java.compiled(tmp_path_factory.mktemp("classes"))


def switch_to_pop(master: Broker) -> None:
    """The group pops the topic from now on."""
    mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0}
    with BlockingConnection.dial(f"127.0.0.1:{master.port}") as connection:
        command = Command(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())
        checked(connection.request(command))


def delivered(programs: Sequence[ClientProcess], *words: str) -> dict[int, list[int]]:
    """When the messages of these numbers were consumed or failed, in ms."""
    found: dict[int, list[int]] = {}
    for line in [line for program in programs for line in program.lines]:
        if line.startswith(words or ("consumed", "failed")):
            _word, number, ms = line.split()
            found.setdefault(int(number), []).append(int(ms))
    return found


@contextmanager
def group_of(folder: Path, mode: str) -> Iterator[BrokerGroup]:
    """A group whose replica stands in when its master is gone and nobody can elect another one; started."""
    electing = mode == "dledger"
    made = BrokerGroup(
        folder, controllers=1 if electing else 3, brokers=3 if electing else 2, in_sync_min=2, mode=mode,
        arguments={
            "broker": ["--set", "broker.replication.acting_master=true"],
            "controller": ["--set", "controller.broker_lost_grace_ms=2500"],
        },
    )  # fmt: skip
    try:
        made.start()
        yield made
    finally:
        made.end()


def lose_master(group: BrokerGroup) -> int:
    """Kill the master when nobody can elect: two of three controllers, or another member, are gone.

    Returns when a replica stands in, with the time in ms.
    """
    master = group.settle()
    replica, *others = [each for each in group.brokers if each is not master]
    for each in others or group.controllers[1:]:
        each.kill()
    master.kill()
    until(lambda: is_acting(replica), "nobody stands in")
    return time.time_ns() // 1_000_000


def recover(group: BrokerGroup) -> Broker:
    """Start what was killed; returns the master, once no broker has anything left for it."""
    for each in (*group.controllers, *group.brokers):
        if each.process is None or each.process.poll() is not None:
            each.start()
    master = group.settle()
    until(lambda: not list(group.directory.glob("broker-*-data/ACTING")), "a master does not have everything")
    return master


def judge(programs: Sequence[ClientProcess], there: set[int]) -> None:
    """Everything is consumed in the end, and once; `there`: what was acknowledged at the replica."""
    everything = set(range(2 * MESSAGES))
    until(lambda: delivered(programs, "consumed").keys() == everything, "something is not consumed")
    times = delivered(programs, "consumed")
    twice = {number for number in everything if len(times[number]) > 1}
    assert len(twice) <= 2 * AT_ONCE, "what was in flight when the master died, and when it came back"
    assert not twice & there, "it was acknowledged at the replica"


@pytest.mark.parametrize("mode", ["controller", "dledger"])
def test_consumers_pop_without_a_master(classes: Path, tmp_path: Path, mode: str) -> None:
    """One goes on through the master's death and return, another one begins at the replica."""
    programs: list[ClientProcess] = []

    def consumer(name_servers: str) -> ClientProcess:
        program = JavaProcess(classes, tmp_path / "home", "ActingPopper", name_servers, TOPIC, GROUP, "200")
        programs.append(program)
        return program

    with group_of(tmp_path, mode) as group:
        try:
            master = group.settle()
            send_all(master)
            switch_to_pop(master)
            first_server = group.addresses.split(",")[0]
            consumer(group.addresses.replace(",", ";")).wait_for("consumed", 60, count=5)
            acting_ms = lose_master(group)
            second = consumer(first_server)
            second.wait_for("consumed", 60, count=3)
            until(lambda: len(delivered(programs)) >= MESSAGES - AT_ONCE, "they do not get what is left")
            there = {number for number, times in delivered(programs, "consumed").items() if max(times) > acting_ms}
            assert len(there) > MESSAGES // 2
            send_all(recover(group), MESSAGES)
            judge(programs, there)
            assert max(delivered([second], "consumed")) >= MESSAGES, "it goes on at the master"
            for program in programs:
                program.say("stop")
                program.wait_for("ended", 60)
            no_traceback(*group.brokers, *group.controllers)
        finally:
            for program in programs:
                program.kill()
