"""RocketMQ's Python gRPC client against real servers: all kinds of messages, rights, and a proxy that is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from remoting.client.admin import topic_fields
from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.processes.grpc_calls import Judge, client
from tests.processes.rig import ROOT, Installation, Server
from tests.support.ports import free_port

pytestmark = pytest.mark.processes
COUNT = 300


def make_topic(server: Installation) -> None:
    command = [sys.executable, "-m", "lightmq", "topics", "create", "orders", "--server", server.address]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Installation]:
    """`lightmq up` with a port for gRPC and the topic `orders`."""
    server = Installation(tmp_path / "data", "--grpc-port", "0", "--set", "broker.transaction_check_after_ms=1000")
    server.start()
    make_topic(server)
    yield server
    server.kill_if_running()


def test_messages_with_all_they_have_and_in_order(serving: Installation, tmp_path: Path) -> None:
    found = client(tmp_path, "simple", serving.ports["grpc"])
    assert found["offsets"] == list(range(found["offsets"][0], found["offsets"][0] + 5))
    assert found["fifo"] == [f"fifo {number}" for number in range(5)]
    assert found["normal"] == ["a", ["k1"], {"color": "red"}, True]


def test_a_push_consumer_gets_a_message_again_that_it_failed_to_handle(serving: Installation, tmp_path: Path) -> None:
    """Meanwhile the doctor's list has the client, with the version that it names."""
    with ThreadPoolExecutor(1) as pool, BlockingConnection.dial(serving.address, 10_000) as connection:
        running = pool.submit(client, tmp_path, "push", serving.ports["grpc"])
        seen: set[tuple[str, bool]] = set()
        while not running.done():
            listed = json.loads(checked(connection.request(Command(RequestCode.CLIENT_LIST))).body)
            seen.update((one["language"], bool(one["grpc"])) for one in listed["clients"])
            wait([running], 0.1)
        assert running.result() == ["one", "retry", "two"]
    assert seen == {("PYTHON", True)}


def test_a_group_in_order_waits_for_a_message_that_failed(serving: Installation, tmp_path: Path) -> None:
    body = json.dumps({"groupName": "orderly", "consumeMessageOrderly": True}).encode()
    with BlockingConnection.dial(serving.address, 10_000) as connection:
        checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)))
    assert client(tmp_path, "ordered", serving.ports["grpc"]) == ["1", "2", "2", "2", "3", "4"]


def test_delayed_messages_come_in_time_unless_they_are_recalled(serving: Installation, tmp_path: Path) -> None:
    found = client(tmp_path, "delayed", serving.ports["grpc"])
    assert found == {"bodies": ["delivered"], "in time": [True], "recalled": True}


def test_the_most_urgent_message_comes_first(serving: Installation, tmp_path: Path) -> None:
    fields = topic_fields("urgent", 4, attributes={"message.type": "PRIORITY"})
    with BlockingConnection.dial(serving.address, 10_000) as connection:
        checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)))
    assert client(tmp_path, "priority", serving.ports["grpc"]) == ["3", "2", "1"]


def test_transactions_are_decided_by_the_producer_or_by_its_check(serving: Installation, tmp_path: Path) -> None:
    found = client(tmp_path, "transactions", serving.ports["grpc"])
    assert found == {"asked": True, "bodies": ["commit", "leave"]}


def make_lite_topics(server: Installation) -> None:
    """The parent topic `agents`, and the group `workers` that reads its lite topics."""
    parent = {"topic": "agents", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6", "topicSysFlag": "0",
              "attributes": "+message.type=LITE"}  # fmt: skip
    group = json.dumps({"groupName": "workers", "attributes": {"+lite.bind.topic": "agents"}}).encode()
    with BlockingConnection.dial(server.address, 10_000) as connection:
        checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=parent)))
        checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)))


def test_consumers_of_lite_topics_get_those_that_they_subscribe_to(serving: Installation, tmp_path: Path) -> None:
    make_lite_topics(serving)
    assert client(tmp_path, "lite", serving.ports["grpc"]) == {"s-1": ["0", "3"], "s-2": ["2"]}
    assert client(tmp_path, "lite_push", serving.ports["grpc"]) == ["1", "2", "2", "3"]


def test_a_client_has_the_rights_of_its_key_behind_a_proxy_too(tmp_path: Path) -> None:
    """The proxy is a process of its own, with a key that may act for clients."""
    rules, key = tmp_path / "rules", tmp_path / "key"
    rules.write_text("user front\nrole proxy\nuser ops\nrole admin\nuser ann\ntopic readwrite orders/#\n"
                     "topic read $group/simple\nuser bob\ntopic read orders/#\n")  # fmt: skip
    key.write_text("front:f\n")
    key.chmod(0o600)
    keys = "broker.access_keys=front:f,ops:o,ann:a,bob:b"
    server = Installation(tmp_path / "data", "--set", keys, "--set", f"broker.access_list={rules}")
    proxy = Server(tmp_path / "proxy")
    try:
        server.start()
        ops = tmp_path / "ops"
        ops.write_text("ops:o\n")
        ops.chmod(0o600)
        create = [sys.executable, "-m", "lightmq", "topics", "create", "orders", "--server", server.address]
        subprocess.run([*create, "--access-key-file", str(ops)], check=True, capture_output=True, cwd=ROOT)
        ports = proxy.launch(
            "grpc-proxy", "--grpc-port", "0", "--admin-port", "0", "--broker", server.address,
            "--set", f"grpc.access_key_file={key}",
        )  # fmt: skip
        assert client(tmp_path, "simple", ports["grpc"], "ann", "a")["normal"][0] == "a"
        assert "bob may not publish" in client(tmp_path, "refused", ports["grpc"], "bob", "b")
        assert client(tmp_path, "refused", ports["grpc"], "ann", "wrong") != "sent"
    finally:
        proxy.kill_if_running()
        server.kill_if_running()


def test_proxies_share_a_port(serving: Installation, tmp_path: Path) -> None:
    """If they are told to; otherwise the second is refused by name."""
    port = free_port()
    options = ("grpc-proxy", "--grpc-port", str(port), "--admin-port", "0", "--broker", serving.address)
    shared = ("--set", "grpc.reuse_port=true")
    proxies = [Server(tmp_path / f"proxy{number}") for number in range(2)]
    try:
        assert [proxy.launch(*options, *shared)["grpc"] for proxy in proxies] == [port, port]
        assert client(tmp_path, "push", port) == ["one", "retry", "two"]
        third = subprocess.run(
            [sys.executable, "-m", "lightmq", *options], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert (third.returncode, f"port {port} is already in use" in third.stderr) == (1, True)
    finally:
        for proxy in proxies:
            proxy.kill_if_running()


def test_a_killed_proxy_loses_nothing(serving: Installation, tmp_path: Path) -> None:
    """Messages whose send was not answered may be there twice; no other comes again after its acknowledgement."""
    port = free_port()
    options = (
        "grpc-proxy", "--grpc-port", str(port), "--admin-port", "0", "--broker", serving.address,
        "--set", "grpc.invisible_ms_min=1000",
    )  # fmt: skip
    proxy = Server(tmp_path / "proxy")
    proxy.launch(*options)
    judge = Judge(port, "orders", COUNT)
    try:
        judge.start()
        assert judge.half.wait(60)
        proxy.kill()
        proxy.launch(*options)
        judge.join()
        assert (len(judge.sent), len(judge.acknowledged | judge.unanswered)) == (COUNT, COUNT)
        assert len(judge.unanswered) <= 1, "one call was under way when the proxy was killed"
        assert set(judge.repeated) <= judge.unsure, "only what was sent without an answer may come twice"
        assert proxy.end(signal.SIGTERM) == 0
    finally:
        judge.calls.channel.close()
        proxy.kill_if_running()
