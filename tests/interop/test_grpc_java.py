"""RocketMQ's own Java gRPC client against `lightmq up` with a port for gRPC."""

from __future__ import annotations

import json
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


def test_the_java_client_answers_what_tools_ask(tmp_path: Path) -> None:
    """The stacks of its threads, and messages that it consumes at once, with success and without."""
    server = Installation(tmp_path / "data", "--grpc-port", "0")
    jars = fetched(SOURCES, f"rocketmq-client-java-{VERSION}", VERSION)
    member = None
    try:
        server.start()
        with BlockingConnection.dial(server.address, 30_000) as tool:
            prepare(lambda: BlockingConnection.dial(server.address, 10_000))
            compile_ = ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(tmp_path), str(SOURCES / "GrpcMember.java")]
            subprocess.run(compile_, check=True, capture_output=True)
            endpoint = f"127.0.0.1:{server.ports['grpc']}"
            java = ["java", "-Xmx256m", f"-Duser.home={tmp_path}", "-cp", f"{tmp_path}:{jars}/*", "GrpcMember"]
            member = subprocess.Popen(
                [*java, endpoint, "push", "asked"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert member.stdout is not None
            assert next(member.stdout) == "started\n"
            listed = checked(
                tool.request(Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields={"consumerGroup": "asked"}))
            )
            (client,) = json.loads(bytes(listed.body))["consumerIdList"]
            named = {"consumerGroup": "asked", "clientId": client}
            stacks = Command(RequestCode.GET_CONSUMER_RUNNING_INFO, fields={**named, "jstackEnable": "true"})
            shown = json.loads(bytes(checked(tool.request(stacks)).body))["jstack"]
            assert "java.lang.Thread" in shown
            for body, result in ((b"fine", "CR_SUCCESS"), (b"fail", "CR_LATER")):
                fields = {
                    "a": "g",
                    "b": "other",
                    "c": "TBW102",
                    "d": "1",
                    "e": "0",
                    "f": "0",
                    "g": "0",
                    "h": "0",
                    "i": "",
                }
                sent = checked(tool.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=body)))
                direct = {**named, "msgId": sent.fields["msgId"], "topic": "other"}
                answer = checked(tool.request(Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields=direct)))
                assert json.loads(bytes(answer.body))["consumeResult"] == result
                assert next(member.stdout) == f"consumed {body.decode()}\n"
    finally:
        if member is not None:
            member.kill()
            member.wait(20)
        server.kill_if_running()
