"""Light queues named by messages of real clients: without the right to publish there nothing is stored.

One server with an access list: `ann` may publish to `orders` and to `plant/7`, not to `plant/8`.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.connection import signing_dial
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from tests.interop import rocketmq_java
from tests.interop.rocketmq_java import JavaProcess
from tests.processes.grpc_calls import client
from tests.processes.rig import ROOT, Client, Installation, Server

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
RULES = """user front
role proxy
user ops
role admin
user ann
topic readwrite orders/#
topic write plant/7
user reader
topic read orders/#
"""
ALLOWED, FORBIDDEN = "%LMQ%plant%2F7", "%LMQ%plant%2F8"
BOTH = f"{ALLOWED},{FORBIDDEN}"
KEYS = {"front": "f", "ops": "o", "ann": "a", "reader": "r"}
QUEUES = 4
MONITOR = {"Authorization": f"Bearer ops:{KEYS['ops']}"}


def key_file(folder: Path, name: str) -> Path:
    """A file with this key."""
    made = folder / name
    made.write_text(f"{name}:{KEYS[name]}\n")
    made.chmod(0o600)
    return made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Installation]:
    """With the topic `orders`."""
    (tmp_path / "rules").write_text(RULES)
    keys = ",".join(f"{name}:{secret}" for name, secret in KEYS.items())
    settings = (f"broker.access_keys={keys}", f"broker.access_list={tmp_path / 'rules'}")
    made = Installation(tmp_path / "data", *(word for setting in settings for word in ("--set", setting)))
    made.start()
    create = [
        sys.executable,
        "-m",
        "lightmq",
        "topics",
        "create",
        "orders",
        "--queues",
        str(QUEUES),
        "--server",
        made.address,
    ]
    subprocess.run([*create, "--access-key-file", str(key_file(tmp_path, "ops"))], check=True, cwd=ROOT)
    yield made
    made.kill_if_running()


def ends(server: Installation, folder: Path) -> int:
    """How many messages the topic `orders` has."""

    async def asked() -> int:
        connection = await signing_dial(key_file(folder, "reader"))(server.address)
        found = 0
        try:
            for queue in range(QUEUES):
                command = Command(RequestCode.GET_MAX_OFFSET, fields={"topic": "orders", "queueId": str(queue)})
                answer = await connection.request(command, 10_000)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                found += int(answer.fields["offset"])
        finally:
            await connection.close()
        return found

    return asyncio.run(asked())


def begun_transactions(server: Installation) -> int:
    """How many half messages were stored, those included whose transaction has ended."""
    asked = urllib.request.Request(f"http://127.0.0.1:{server.ports['admin']}/metrics", headers=MONITOR)
    with urllib.request.urlopen(asked, timeout=10) as answer:
        page = answer.read().decode()
    found = re.findall(r"^rocketmq_transactions(?:_ended_total\{.*\})? (\d+)", page, re.MULTILINE)
    assert found, page
    return sum(map(int, found))


def test_grpc_clients_cannot_name_light_queues(server: Installation, tmp_path: Path) -> None:
    """RocketMQ's Python client behind a proxy, whether it has the right or not; alone and in a transaction."""
    proxy = Server(tmp_path / "proxy")
    try:
        ports = proxy.launch(
            "grpc-proxy", "--grpc-port", "0", "--admin-port", "0", "--broker", server.address,
            "--set", f"grpc.access_key_file={key_file(tmp_path, 'front')}",
        )  # fmt: skip
        said = client(tmp_path, "light_queues", ports["grpc"], "ann", "a")
    finally:
        proxy.kill_if_running()
    assert len(said) == 4
    assert all("40007" in why and "INNER_MULTI_DISPATCH" in why for why in said.values()), said
    assert (ends(server, tmp_path), begun_transactions(server)) == (0, 0)


@pytest.mark.slow
def test_java_clients_are_refused_what_they_name_without_right(server: Installation, tmp_path: Path) -> None:
    """Single messages, batches and transactions of RocketMQ's remoting client."""
    reader = Client(server, "reader")
    assert reader.subscribe(("plant/7", 1), ("plant/8", 1)) == [1, 1]
    classes = rocketmq_java.compiled(tmp_path / "classes")
    kinds = ("single", "batch", "transaction")

    def sent(names: str) -> list[str]:
        arguments = (server.address, "orders", "ann", "a", names)
        lines = JavaProcess(classes, tmp_path / "home", "LightQueues", *arguments).end(120)
        return [line for line in lines if line.startswith(kinds)]

    for names in (FORBIDDEN, BOTH):
        said = sent(names)
        assert [line.split()[:2] for line in said] == [[kind, "failed"] for kind in kinds], said
        assert all("CODE: 16" in line and "ann may not publish 'plant/8'" in line for line in said), said
        assert (ends(server, tmp_path), begun_transactions(server)) == (0, 0), "a message was stored"
    assert sent(ALLOWED) == [f"{kind} sent" for kind in kinds]
    assert (ends(server, tmp_path), begun_transactions(server)) == (4, 1)
    reader.until(lambda: len(reader.messages) >= 4)
    reader.publish("plant/8", b"last")
    reader.until(lambda: reader.latest.get("plant/8") == b"last")
    assert sorted(one.payload for one in reader.messages) == [b"batch", b"batch", b"last", b"single", b"transaction"]
    reader.close()
