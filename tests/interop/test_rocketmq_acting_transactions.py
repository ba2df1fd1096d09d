"""A producer of RocketMQ's Java client ends transactions while no master can be elected; the next one carries them out.

The half messages are sent to a master that is killed then. The client finds the replica that stands in by its route,
tells it what was decided, and is asked by it about what was not.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection
from tests.interop import rocketmq_java
from tests.interop.rocketmq_java import JavaProcess
from tests.interop.test_rocketmq_acting_master import is_acting
from tests.processes.broker_group import Broker, BrokerGroup, until
from tests.processes.kill_rounds import published
from tests.processes.rig import no_traceback

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]

TOPIC, GROUP = "payments", "payers"
OPTIONS = (
    "replication.acting_master=true", "transaction_check_after_ms=1000", "transaction_check_interval_ms=500",
    "transaction_checks_max=1000",
)  # fmt: skip


def outcomes(journal: Path) -> list[str]:
    """What a replica has noted, "C" or "R" for each transaction in the order of the half messages."""
    lines = journal.read_bytes().splitlines() if journal.exists() else []
    entries = [json.loads(line.partition(b" ")[2]) for line in lines]
    return [outcome for _kind, _offset, _position, _group, outcome in sorted(entries)]


def in_topic(broker: Broker) -> list[int]:
    """The numbers that consumers get there."""
    with BlockingConnection.dial(f"127.0.0.1:{broker.port}") as connection:
        return published(connection, TOPIC)


def left_open(broker: Broker) -> int:
    found = re.search(rb"^rocketmq_transactions (\d+)", broker.page("/metrics"), re.MULTILINE)
    assert found
    return int(found[1])


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rocketmq_java.compiled(tmp_path_factory.mktemp("classes"))


def of_mode(folder: Path, mode: str) -> BrokerGroup:
    """A group with a replica that stands in."""
    words = [word for option in OPTIONS for word in ("--set", f"broker.{option}")]
    return BrokerGroup(
        folder, controllers=1 if mode == "dledger" else 3, brokers=3 if mode == "dledger" else 2, in_sync_min=2,
        mode=mode, arguments={"broker": words, "controller": ["--set", "controller.broker_lost_grace_ms=2500"]},
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["controller", "dledger"])
def test_transactions_end_without_a_master(classes: Path, tmp_path: Path, mode: str) -> None:
    group = of_mode(tmp_path, mode)
    program = None
    try:
        group.start()
        master = group.settle()
        replica, *others = [each for each in group.brokers if each is not master]
        servers = group.addresses.replace(",", ";")
        program = JavaProcess(classes, tmp_path / "home", "ActingTransactions", servers, TOPIC, GROUP)
        program.wait_for("prepared", 60, count=4)
        group.wait_equal()
        until(lambda: replica.status()["confirmed"] == replica.status()["end"], "the replica knows less is confirmed")
        for each in others or group.controllers[1:]:
            each.kill()
        master.kill()
        until(lambda: is_acting(replica), "nobody stands in")
        journal = tmp_path / f"{replica.data.name}-data" / "ACTING"
        assert outcomes(journal) == []

        program.say(f"127.0.0.1:{replica.port}")
        until(lambda: len(outcomes(journal)) == 4, f"no outcome of some in {journal}")
        assert sorted(outcomes(journal)) == ["C", "C", "R", "R"]
        assert {line for line in program.lines if line.startswith("asked")} == {"asked 2", "asked 3"}

        for each in (*group.brokers, *group.controllers):
            if each.process is None or each.process.poll() is not None:
                each.start()
        again = group.settle()
        until(lambda: not list(tmp_path.glob("broker-*-data/ACTING")), "a master does not have everything")
        program.say("more")
        program.wait_for("sent", 60)
        until(lambda: 4 in in_topic(again), "the producer's commit does not reach the new master")
        assert sorted(in_topic(again)) == [0, 2, 4]
        until(lambda: left_open(again) == 0, "it does not know how some ended")
        program.say("end")
        program.end(60)
        no_traceback(*group.brokers, *group.controllers)
    finally:
        if program is not None:
            program.kill()
        group.end()
