"""The stack `ha` as processes: what it starts elects masters, takes messages, and goes on without one of them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.cluster import free_port
from tests.deploy.running import Moved, Running
from tests.deploy.stacks import GIVEN, containers
from tests.deploy.test_processes import PASSWORD, probe, publish
from tests.processes.rig import ROOT, Server

DEADLINE_S = 90.0
pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


class Stack:
    """All containers of the compose file."""

    def __init__(self, directory: Path) -> None:
        found = containers("ha.yaml")
        self.key = directory / "inside"
        self.key.write_text(GIVEN["LIGHTMQ_INSIDE_KEY"])
        self.key.chmod(0o600)
        secrets = {"lightmq-inside": GIVEN["LIGHTMQ_INSIDE_KEY"], "lightmq-raft": GIVEN["LIGHTMQ_RAFT_SECRET"]}
        secrets["lightmq-users"] = users(directory / "users")
        moved = Moved(directory, secrets)
        listening = {}
        for each in found:
            if each.stage.name == "controller":
                name, remoting = f"{each.name}.controller:9876", free_port()
                moved.addresses[name] = f"127.0.0.1:{remoting}"
                moved.addresses[f"{name}@9877"] = f"127.0.0.1:{remoting}@{free_port()}"
                listening[each.name] = {"controller.port": remoting}
            elif each.stage.name == "broker":
                moved.addresses[each.environment["LIGHTMQ_BROKER__ADVERTISED_HOST"]] = "127.0.0.1"
        self.running = {each.name: Running(each, moved, listening.get(each.name)) for each in found}
        self.controllers = ",".join(moved.addresses[f"controller-{number}.controller:9876"] for number in range(3))

    def start(self) -> None:
        """All at once, as compose does: some wait for others."""
        with ThreadPoolExecutor(len(self.running)) as pool:
            list(pool.map(Running.start, self.running.values()))

    def cluster(self, *words: str) -> tuple[int, Any]:
        """`lightmq cluster … --json`: the status and what it says."""
        options = ["--server", self.controllers, "--access-key-file", str(self.key), "--json"]
        command = [*Server.python, "cluster", *words, *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()] or done.stderr


def users(file: Path) -> str:
    """A password file with the user of the tests."""
    command = [*Server.python, "passwd", str(file), "sensor", "--stdin"]
    subprocess.run(command, input=PASSWORD, text=True, cwd=ROOT, check=True, capture_output=True)
    return file.read_text()


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Started, and gone afterwards."""
    made = Stack(tmp_path)
    try:
        made.start()
        yield made
    finally:
        for each in made.running.values():
            each.kill_if_running()


def settled(stack: Stack) -> list[dict[str, Any]]:
    """The groups once every replica is in sync."""
    end = time.monotonic() + DEADLINE_S
    while True:
        status, told = stack.cluster("status")
        if status == 0 and len(told[0]["groups"]) == 2:
            groups: list[dict[str, Any]] = told[0]["groups"]
            return groups
        assert time.monotonic() < end, told
        time.sleep(0.5)


def test_the_stack_survives_the_loss_of_a_master(stack: Stack) -> None:
    """Two groups come in sync, both proxies take messages; with a master killed they still do, and it comes back."""
    groups = settled(stack)
    assert [(group["group"], group["inSync"]) for group in groups] == [("broker-a", 2), ("broker-b", 2)]
    for each in stack.running.values():
        assert (probe(each, "/livez"), probe(each, "/startupz")) == (200, 200), each.container.name
    for name in ("proxy-0", "proxy-1"):
        publish(stack.running[name].port)
    (epochs, rows) = stack.cluster("epochs", "broker-a")
    assert epochs == 0
    assert {row["id"] for row in rows} == {1, 2}
    port = int(groups[0]["address"].rpartition(":")[2])
    master = next(each for each in stack.running.values() if each.ports.get("remoting") == port)
    master.kill()
    publish(stack.running["proxy-0"].port)
    master.start()
    assert settled(stack)[0]["epoch"] > groups[0]["epoch"]
