"""Consumers of RocketMQ's gRPC client, behind LightMQ's gRPC proxy, go on while no master can be elected.

The proxy reaches the replica that stands in by what the name servers say. Simple consumers receive, change invisible
times and acknowledge there; of push consumers the proxy renews the messages. Those of a group that consumes in order
get them in order.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.interop.rocketmq_java import ClientProcess, fetched
from tests.interop.test_grpc_java import SOURCES, VERSION
from tests.interop.test_rocketmq_acting_master import GROUP, MESSAGES, TOPIC, send_all
from tests.interop.test_rocketmq_acting_pop import AT_ONCE, delivered, group_of, judge, lose_master, recover
from tests.processes.broker_group import Broker, until
from tests.processes.rig import Server, no_traceback

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Runs the client."""
    jars, classes = fetched(SOURCES, f"rocketmq-client-java-{VERSION}", VERSION), tmp_path_factory.mktemp("classes")
    compile_ = ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(SOURCES / "ActingReader.java")]
    subprocess.run(compile_, check=True, capture_output=True)
    return ["java", "-Xmx256m", f"-Duser.home={classes}", "-cp", f"{classes}:{jars}/*", "ActingReader"]


def consume_in_order(master: Broker) -> None:
    """The group's consumers get the messages of a queue in order from now on."""
    with BlockingConnection.dial(f"127.0.0.1:{master.port}") as connection:
        body = json.dumps({"groupName": GROUP, "consumeMessageOrderly": True}).encode()
        checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)))


@pytest.mark.parametrize(("mode", "kind"), [("controller", "simple"), ("dledger", "push"), ("controller", "fifo")])
def test_consumers_behind_a_proxy_go_on(command: list[str], tmp_path: Path, mode: str, kind: str) -> None:
    """One goes on through the master's death and return, another one begins at the replica."""
    proxy = Server(tmp_path / "grpc")
    programs: list[ClientProcess] = []

    def consumer() -> ClientProcess:
        words = [f"127.0.0.1:{proxy.ports['grpc']}", TOPIC, GROUP, "200", "push" if kind == "fifo" else kind]
        programs.append(ClientProcess([*command, *words], tmp_path / "home"))
        return programs[-1]

    with group_of(tmp_path, mode) as group:
        try:
            master = group.settle()
            if kind == "fifo":
                consume_in_order(master)
            send_all(master)
            words = ("--grpc-port", "0", "--admin-port", "0", "--controllers", group.addresses)
            proxy.ports = proxy.launch("grpc-proxy", *words)
            consumer().wait_for("consumed", 60, count=5)
            acting_ms = lose_master(group)
            if kind != "fifo":  # of one queue in order, the first one may get everything
                consumer().wait_for("consumed", 60, count=3)
            until(lambda: len(delivered(programs)) >= MESSAGES - AT_ONCE, "they do not get what is left")
            there = {number for number, times in delivered(programs, "consumed").items() if max(times) > acting_ms}
            assert len(there) > MESSAGES // 2
            send_all(recover(group), MESSAGES)
            judge(programs, there)
            no_traceback(proxy, *group.brokers, *group.controllers)
        finally:
            for program in programs:
                program.kill()
            proxy.kill_if_running()
