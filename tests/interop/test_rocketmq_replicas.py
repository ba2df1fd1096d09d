"""RocketMQ's C++ client reads from a replica that its group names, without a master and without controllers."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.interop.other_clients import cpp_command
from tests.interop.rocketmq_java import ClientProcess
from tests.processes.broker_group import BrokerGroup, until
from tests.processes.test_replica_history import served

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

MESSAGES = 3_000
TOPIC = "cpp_replica"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[BrokerGroup]:
    made = BrokerGroup(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.end()


def read_at(group: BrokerGroup, broker_id: int) -> None:
    """Let the master send the consumers of the group to this replica, as `updateSubGroup -i` does."""
    master = group.settle()
    with BlockingConnection("127.0.0.1", master.ports["remoting"]) as connection:
        body = json.dumps({"groupName": f"{TOPIC}_group", "brokerId": broker_id}).encode()
        checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_consumer_in_cpp_reads_on_from_a_replica(group: BrokerGroup, tmp_path: Path, how: signal.Signals) -> None:
    """All messages come, those after the master's end from the replica."""
    master = group.settle()
    replica = next(each for each in group.brokers if each is not master)
    read_at(group, replica.status()["id"])
    command = [*cpp_command(group.addresses.replace(",", ";"), "cpp_replica.py"), TOPIC, str(MESSAGES)]
    program = ClientProcess(command, tmp_path / "home")
    try:
        program.wait_for("consumed 200", 120)
        until(lambda: served(replica) > 0, "the consumer was not sent to the replica")
        for each in group.controllers:
            each.kill()
        assert master.process is not None
        master.process.send_signal(how)
        program.wait_for("complete", 240)
        assert group.master() is None
    finally:
        program.kill()
