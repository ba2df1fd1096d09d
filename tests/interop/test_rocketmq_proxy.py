"""RocketMQ's own proxy before `lightmq up`, in cluster mode: it starts, and clients get what RocketMQ gives them."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.admin import topic_fields
from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.interop import rocketmq_java, test_grpc_java
from tests.interop.rocketmq_java import ClientProcess, JavaProcess, fetched
from tests.interop.rocketmq_proxy import rocketmq_proxy
from tests.processes.rig import Installation

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]

TOPICS = {
    "plain": "NORMAL", "ordered": "FIFO", "simple": "NORMAL", "sql": "NORMAL", "push": "NORMAL", "fifo": "FIFO",
    "delayed": "DELAY", "transactions": "TRANSACTION", "priority": "PRIORITY", "dead": "NORMAL",
    "features_sync": "NORMAL", "features_orderly": "NORMAL", "features_retry": "NORMAL",
}  # fmt: skip
"""With their types, which the proxy requires of each message."""
GROUPS = (
    {"groupName": "in-order", "consumeMessageOrderly": True},
    {"groupName": "fifo-pushed", "consumeMessageOrderly": True},
    {"groupName": "dead-pushed", "retryMaxTimes": 1},
)
GRPC = ("simple", "sql", "push", "fifo", "delayed", "transactions", "priority", "dead")
"""Lite topics are not among them: this client sends no lite topic with a negative acknowledgement."""
REMOTING = ("sync", "orderly", "retry")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """`lightmq up` with topics for the scenarios; nothing is made for the proxy."""
    found = Installation(tmp_path_factory.mktemp("lightmq") / "data", "--set", "broker.transaction_check_after_ms=1000")
    found.start()
    try:
        with BlockingConnection.dial(found.address, 10_000) as connection:
            for name, kind in TOPICS.items():
                fields = topic_fields(name, 4, attributes={"message.type": kind})
                checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)))
            for group in GROUPS:
                body = json.dumps(group).encode()
                checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)))
        yield found
    finally:
        found.kill_if_running()


@pytest.fixture(scope="module")
def proxy(server: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Its addresses for gRPC and remoting clients."""
    with rocketmq_proxy(tmp_path_factory.mktemp("proxy") / "home", server.address) as (grpc, remoting):
        yield f"127.0.0.1:{grpc}", f"127.0.0.1:{remoting}"


def deliveries(folder: Path, *arguments: str) -> tuple[list[list[str]], int]:
    """(Message group, number, attempt) of each delivery; ms until all messages were consumed."""
    jars = fetched(test_grpc_java.SOURCES, f"rocketmq-client-java-{test_grpc_java.VERSION}", test_grpc_java.VERSION)
    source = test_grpc_java.SOURCES / "GrpcOrder.java"
    subprocess.run(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(folder), str(source)], check=True)
    java = ["java", "-Xmx256m", f"-Duser.home={folder}", "-cp", f"{folder}:{jars}/*", "GrpcOrder"]
    program = ClientProcess([*java, *arguments], folder)
    try:
        lines = program.end(120)
    finally:
        program.kill()
    ended = [line for line in lines if line.startswith("all ")]
    assert ended, "\n".join(lines[-40:])
    return [line.split()[1:] for line in lines if line.startswith("consumed ")], int(ended[0].split()[1])


def test_a_group_that_is_new_consumes_what_was_sent_before(proxy: tuple[str, str], tmp_path: Path) -> None:
    found, _ms = deliveries(tmp_path, proxy[0], "plain", "new-group", "60", "0", "1", "60000")
    assert sorted(int(number) for _group, number, _attempt in found) == list(range(60))


def test_an_ordered_group_consumes_all_in_order(proxy: tuple[str, str], tmp_path: Path) -> None:
    """Two consumers, 120 messages in three message groups, each once; in seconds, which RocketMQ's broker needs too."""
    found, took_ms = deliveries(tmp_path, proxy[0], "ordered", "in-order", "120", "3", "2", "60000")
    seen = defaultdict(list)
    for group, number, _attempt in found:
        seen[group].append(int(number))
    assert seen == {f"g{group}": list(range(group, 120, 3)) for group in range(3)}
    assert took_ms < 20_000


def test_grpc_clients_do_what_they_can(proxy: tuple[str, str], server: Installation, tmp_path: Path) -> None:
    assert test_grpc_java.outcome(tmp_path, proxy[0], *GRPC) == [f"{name} ok" for name in GRPC]
    with BlockingConnection.dial(server.address, 10_000) as connection:
        asked = Command(RequestCode.GET_MAX_OFFSET, fields={"topic": "%DLQ%dead-pushed", "queueId": "0"})
        assert checked(connection.request(asked)).fields["offset"] == "1"


def test_remoting_clients_send_and_consume(proxy: tuple[str, str], tmp_path: Path) -> None:
    classes = rocketmq_java.compiled(tmp_path / "classes")
    program = JavaProcess(classes, tmp_path / "home", "ClientFeatures", proxy[1], *REMOTING)
    try:
        lines = program.end(300)
    finally:
        program.kill()
    assert [line for line in lines if line.split(" ")[0] in REMOTING] == [f"{name} ok" for name in REMOTING]
