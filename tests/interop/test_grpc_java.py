"""RocketMQ's own Java gRPC client against `lightmq up` with a port for gRPC."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.interop.rocketmq_java import fetched
from tests.processes.rig import Installation

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]
SOURCES = Path(__file__).with_name("java_grpc")
VERSION = "5.2.0"
SCENARIOS = ("simple", "sql", "push", "fifo", "delayed", "transactions")


def prepare(server: Installation) -> None:
    """A topic for each scenario, and a group that consumes in order."""
    with BlockingConnection.dial(server.address, 10_000) as connection:
        for name in SCENARIOS:
            fields = {"topic": name, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6", "topicSysFlag": "0",
                      "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}  # fmt: skip
            checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)))
        body = json.dumps({"groupName": "fifo-pushed", "consumeMessageOrderly": True}).encode()
        checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)))


def test_the_java_client_does_what_it_can(tmp_path: Path) -> None:
    jars = fetched(SOURCES, f"rocketmq-client-java-{VERSION}", VERSION)
    classes = tmp_path / "classes"
    compile_ = ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(SOURCES / "GrpcFeatures.java")]
    subprocess.run(compile_, check=True, capture_output=True)
    server = Installation(tmp_path / "data", "--grpc-port", "0", "--set", "broker.transaction_check_after_ms=1000")
    server.start()
    try:
        prepare(server)
        endpoint = f"127.0.0.1:{server.ports['grpc']}"
        java = ["java", "-Xmx256m", f"-Duser.home={tmp_path}", "-cp", f"{classes}:{jars}/*", "GrpcFeatures"]
        done = subprocess.run([*java, endpoint, *SCENARIOS], capture_output=True, text=True, timeout=400, check=False)
        lines = done.stdout.splitlines()
        assert [line for line in lines if line.endswith(" ok") or " failed: " in line] == [
            f"{name} ok" for name in SCENARIOS
        ], done.stdout[-1_000:] + done.stderr[-3_000:]
    finally:
        server.kill_if_running()
