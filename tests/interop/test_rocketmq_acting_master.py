"""A consumer of RocketMQ's Java client goes on while no master can be elected, and its offsets survive that time."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from tests.interop import rocketmq_java
from tests.interop.rocketmq_java import JavaProcess
from tests.processes.broker_group import Broker, BrokerGroup, until

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(900)]

TOPIC, GROUP = "orders", "billing"
MESSAGES = 60


def send_all(broker: Broker, first: int = 0) -> None:
    """Numbered messages into one queue; a master whose replicas are not back yet refuses them at first."""
    fields = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
    with BlockingConnection.dial(f"127.0.0.1:{broker.ports['remoting']}") as connection:

        def is_taken(number: int) -> bool:
            reply = connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"%d" % number))
            if reply.code == ResponseCode.SYSTEM_BUSY:
                return False
            checked(reply)
            return True

        for number in range(first, first + MESSAGES):
            until(lambda number=number: is_taken(number), "too few replicas are in sync")  # type: ignore[misc]


def committed(broker: Broker) -> int:
    """The group's offset, as this broker answers it; -1 when it does not."""
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}
    with BlockingConnection.dial(f"127.0.0.1:{broker.ports['remoting']}") as connection:
        reply = connection.request(Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
    return int(reply.fields.get("offset", -1))


def is_acting(broker: Broker) -> bool:
    return b"\nrocketmq_replica_acting 1" in broker.page("/metrics")


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rocketmq_java.compiled(tmp_path_factory.mktemp("classes"))


@pytest.mark.parametrize("mode", ["controller", "dledger"])
def test_a_consumer_goes_on_without_a_master(classes: Path, tmp_path: Path, mode: str) -> None:
    """The master is killed when nobody can elect: two of three controllers, or the other member, are gone."""
    electing = mode == "dledger"
    group = BrokerGroup(
        tmp_path, controllers=1 if electing else 3, brokers=3 if electing else 2, in_sync_min=2, mode=mode,
        arguments={
            "broker": ["--set", "broker.replication.acting_master=true"],
            "controller": ["--set", "controller.broker_lost_grace_ms=2500"],
        },
    )  # fmt: skip
    programs = []
    try:
        group.start()
        master = group.settle()
        others = [each for each in group.brokers if each is not master]
        send_all(master)
        servers = group.addresses.replace(",", ";")
        program = JavaProcess(classes, tmp_path / "home", "ActingConsumer", servers, TOPIC, GROUP, "100")
        programs.append(program)
        program.wait_for("consumed", 60, count=5)

        for each in group.controllers[1:] if not electing else others[1:]:
            each.kill()
        master.kill()
        replica = others[0]
        until(lambda: is_acting(replica), "nobody stands in")
        program.wait_for("consumed", 90, count=MESSAGES)
        assert {line for line in program.lines if line.startswith("consumed")} == {
            f"consumed {number}" for number in range(MESSAGES)
        }
        until(lambda: committed(replica) == MESSAGES, f"the offset is {committed(replica)}")
        program.say("stop")
        program.wait_for("ended", 60)

        for each in (*group.controllers, *group.brokers):
            if each.process is None or each.process.poll() is not None:
                each.start()
        again = group.settle()
        until(lambda: committed(again) == MESSAGES, f"the offset is {committed(again)}")
        until(lambda: not is_acting(replica), "it still stands in")
        until(lambda: not list(tmp_path.glob("broker-*-data/ACTING")), "a master does not have everything")

        program = JavaProcess(classes, tmp_path / "home", "ActingConsumer", servers, TOPIC, GROUP, "0")
        programs.append(program)
        with BlockingConnection.dial(f"127.0.0.1:{again.ports['remoting']}") as connection:
            fields = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
            checked(connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"new")))
        assert program.wait_for("consumed", 60) == "consumed new", "nothing is consumed again"
    finally:
        for program in programs:
            program.kill()
        group.end()


@pytest.mark.parametrize("mode", ["controller", "dledger"])
def test_a_consumer_keeps_its_order_through_the_masters_return(classes: Path, tmp_path: Path, mode: str) -> None:
    """It has the queue's lock, and renews it at the replica: without a renewal for three seconds it reads nothing."""
    electing = mode == "dledger"
    group = BrokerGroup(
        tmp_path, controllers=1 if electing else 3, brokers=3 if electing else 2, in_sync_min=2, mode=mode,
        arguments={
            "broker": ["--set", "broker.replication.acting_master=true"],
            "controller": ["--set", "controller.broker_lost_grace_ms=2500"],
        },
    )  # fmt: skip
    program = None
    try:
        group.start()
        master = group.settle()
        others = [each for each in group.brokers if each is not master]
        send_all(master)
        servers = group.addresses.replace(",", ";")
        program = JavaProcess(classes, tmp_path / "home", "ActingConsumer", servers, TOPIC, GROUP, "200", "orderly")
        program.wait_for("consumed", 60, count=5)
        for each in group.controllers[1:] if not electing else others[1:]:
            each.kill()
        master.kill()
        replica = others[0]
        until(lambda: is_acting(replica), "nobody stands in")
        seen = len(program.lines)
        program.wait_for("consumed", 90, count=MESSAGES)
        assert len(program.lines) - seen > 20, "the outage was long enough to show that locks are renewed"
        for each in (*group.controllers, *group.brokers):
            if each.process is None or each.process.poll() is not None:
                each.start()
        again = group.settle()
        send_all(again, MESSAGES)
        program.wait_for("consumed", 120, count=2 * MESSAGES)
        numbers = [int(line.split()[1]) for line in program.lines if line.startswith("consumed")]
        assert list(dict.fromkeys(numbers)) == list(range(2 * MESSAGES)), "in order"
        until(lambda: not list(tmp_path.glob("broker-*-data/ACTING")), "a master does not have everything")
        program.say("stop")
        program.wait_for("ended", 60)
    finally:
        if program is not None:
            program.kill()
        group.end()
