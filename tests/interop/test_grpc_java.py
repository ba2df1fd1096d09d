"""RocketMQ's own Java gRPC client against `lightmq up` with a port for gRPC."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.signature import Signer
from tests.interop.grpc_topics import prepare, secured
from tests.interop.rocketmq_java import fetched
from tests.processes.rig import Installation
from tests.support.certificates import HAVE_OPENSSL, Authority

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]
SOURCES = Path(__file__).with_name("java_grpc")
VERSION = "5.2.0"
SCENARIOS = ("simple", "sql", "push", "fifo", "delayed", "transactions", "priority", "lite", "dead")


def outcome(folder: Path, endpoint: str, *scenarios: str, properties: Sequence[str] = ()) -> list[str]:
    """The line of each scenario."""
    jars = fetched(SOURCES, f"rocketmq-client-java-{VERSION}", VERSION)
    classes = folder / "classes"
    compile_ = ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(SOURCES / "GrpcFeatures.java")]
    subprocess.run(compile_, check=True, capture_output=True)
    java = ["java", "-Xmx256m", f"-Duser.home={folder}", *properties, "-cp", f"{classes}:{jars}/*", "GrpcFeatures"]
    done = subprocess.run([*java, endpoint, *scenarios], capture_output=True, text=True, timeout=400, check=False)
    lines = [line for line in done.stdout.splitlines() if line.endswith(" ok") or " failed: " in line]
    assert len(lines) == len(scenarios), done.stdout[-1_000:] + done.stderr[-3_000:]
    return lines


def test_the_java_client_does_what_it_can(tmp_path: Path) -> None:
    server = Installation(tmp_path / "data", "--grpc-port", "0", "--set", "broker.transaction_check_after_ms=1000")
    server.start()
    try:
        prepare(lambda: BlockingConnection.dial(server.address, 10_000))
        found = outcome(tmp_path, f"127.0.0.1:{server.ports['grpc']}", *SCENARIOS)
        assert found == [f"{name} ok" for name in SCENARIOS]
        with BlockingConnection.dial(server.address, 10_000) as connection:
            asked = Command(RequestCode.GET_MAX_OFFSET, fields={"topic": "%DLQ%dead-pushed", "queueId": "0"})
            assert checked(connection.request(asked)).fields["offset"] == "1"
    finally:
        server.kill_if_running()


@pytest.mark.skipif(not HAVE_OPENSSL, reason="certificates are made with openssl")
def test_the_java_client_signs_its_calls_and_speaks_tls(tmp_path: Path) -> None:
    server = Installation(tmp_path / "data", *secured(Authority(tmp_path / "tls").issue(), tmp_path / "rules"))
    server.start()
    try:
        prepare(lambda: BlockingConnection.dial(server.address, 10_000, signer=Signer("ops", "o")))
        endpoint = f"127.0.0.1:{server.ports['grpc']}"
        signed = ["-Dssl=true", "-Dkey=ann"]
        assert outcome(tmp_path, endpoint, "simple", properties=[*signed, "-Dsecret=a"]) == ["simple ok"]
        (wrong,) = outcome(tmp_path, endpoint, "simple", properties=[*signed, "-Dsecret=b"])
        assert "simple failed" in wrong
        (forbidden,) = outcome(tmp_path, endpoint, "delayed", properties=[*signed, "-Dsecret=a"])
        assert "delayed failed" in forbidden
    finally:
        server.kill_if_running()
