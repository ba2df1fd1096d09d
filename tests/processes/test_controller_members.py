"""Controllers are replaced, added and removed while brokers register and masters change: every decision is kept."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.broker_group import BrokerGroup, Controller, until
from tests.processes.controllers import IdTaker, known_ids
from tests.processes.rig import ROOT, Server, no_traceback
from tests.support.ports import free_port

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


class Installation:
    """A group of two brokers and its controllers, whose members change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.group = BrokerGroup(folder, controllers=3, brokers=2, in_sync_min=1)

    @property
    def processes(self) -> list[Controller]:
        """The controllers that are members."""
        return self.group.controllers

    def run(self, *words: str) -> str:
        """`lightmq cluster controllers`; its standard output."""
        servers = ",".join(f"127.0.0.1:{each.port}" for each in self.processes)
        command = [*Server.python, "cluster", "controllers", *words, "--server", servers]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def listed(self) -> dict[str, dict[str, object]]:
        """The controllers by node id."""
        return {each["nodeId"]: each for each in map(json.loads, self.run("list", "--json").splitlines())}

    def text(self, node_id: str) -> str:
        """One as in controller.peers."""
        one = self.listed()[node_id]
        return f"{node_id}@{one['address']}@{one['raftPort']}"

    def newcomer(self, number: int) -> tuple[Controller, str]:
        """One more, with an empty directory, and its text."""
        port, raft_port = free_port(), free_port()
        text = f"n{number}@127.0.0.1:{port}@{raft_port}"
        peers = ",".join([*map(self.text, self.listed()), text])
        return Controller(self.folder, number, port, peers), text

    def directory(self, number: int) -> Path:
        """Of a controller's data."""
        return self.folder / f"controller-{number}-data"


def readiness(controller: Controller) -> str:
    """What keeps it from being ready; empty when it is."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{controller.ports['admin']}/readyz", timeout=30):
            return ""
    except urllib.error.HTTPError as error:
        return str(json.loads(error.read())["reasons"].get("controller", "?"))


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """Everything runs, and the log names every controller's directory."""
    made = Installation(tmp_path)
    try:
        made.group.start()
        until(lambda: not any(map(readiness, made.processes)), "not every controller became ready")
        until(lambda: all(each["directory"] for each in made.listed().values()), "a directory is not known")
        yield made
    finally:
        made.group.end()


async def test_replace_one_grow_to_five_and_shrink_to_three(installation: Installation) -> None:
    """A lost disk, two more, the loss of a leader and a master, and the removal of two, one of which leads."""
    taker = IdTaker(installation, "g")
    taker.begin()
    await asyncio.to_thread(replace_the_wiped, installation)
    await asyncio.to_thread(grow, installation)
    await asyncio.to_thread(lose_leader_and_master, installation)
    removed = await asyncio.to_thread(shrink, installation)
    await taker.take()
    await taker.end()
    answered = set(taker.answered)
    assert answered <= await known_ids(installation)
    for each in installation.processes:
        each.kill()
    for each in installation.processes:
        each.start()
    assert answered <= await known_ids(installation)
    for each in removed:
        assert "is no member" in readiness(each) or "was replaced or removed" in readiness(each)
        each.kill()
    no_traceback(*installation.processes, *removed)


def replace_the_wiped(installation: Installation) -> None:
    """With its disk gone it is refused under its name, is told what to do, and votes after `replace`."""
    wiped = installation.processes[2]
    wiped.kill()
    shutil.rmtree(installation.directory(3))
    wiped.start()
    until(lambda: "lightmq cluster controllers replace n3" in readiness(wiped), "it is not told what to do")
    assert installation.run("replace", "n3") == "n3 has taken the place of n3: it has everything and votes\n"
    until(lambda: not readiness(wiped), "the replaced one is not ready")


def grow(installation: Installation) -> None:
    """One is refused until it is added, the other one starts after that it was added."""
    fourth, text = installation.newcomer(4)
    fourth.start()
    until(lambda: "lightmq cluster controllers add n4@" in readiness(fourth), "it is not told what to do")
    assert installation.run("add", text) == "n4 is a controller now: it has everything and votes\n"
    installation.group.controllers.append(fourth)
    fifth, text = installation.newcomer(5)
    servers = ",".join(f"127.0.0.1:{each.port}" for each in installation.processes)
    command = [*Server.python, "cluster", "controllers", "add", text, "--server", servers]
    adding = subprocess.Popen(command, cwd=ROOT)
    until(lambda: "n5" in installation.listed(), "it is not added")
    fifth.start()
    assert adding.wait(90) == 0
    installation.group.controllers.append(fifth)
    assert {each: one["role"] for each, one in installation.listed().items()}.keys() == {f"n{n}" for n in range(1, 6)}


def leader(installation: Installation) -> str:
    """Node id of the controller that leads."""
    return next(each for each, one in installation.listed().items() if one["role"] == "leader")


def lose_leader_and_master(installation: Installation) -> None:
    """kill -9 of both: another controller leads, and the other broker becomes master."""
    installation.group.settle()
    number = int(leader(installation)[1:])
    killed = next(each for each in installation.processes if f"controller-{number}" in str(each.log))
    master = installation.group.master()
    assert master is not None
    killed.kill()
    master.kill()
    until(lambda: installation.group.master() not in (None, master), "no other broker became master")
    killed.start()
    master.start()
    installation.group.settle()
    until(lambda: not readiness(killed), "the leader does not return")


def shrink(installation: Installation) -> list[Controller]:
    """The one that leads and another one; the removed processes, which still run."""
    removed = []
    for node_id in (leader(installation), None):
        gone = node_id or next(each for each, one in installation.listed().items() if one["role"] != "leader")
        assert installation.run("remove", gone).startswith(f"{gone} is no controller any more")
        process = next(each for each in installation.processes if f"controller-{gone[1:]}" in str(each.log))
        installation.group.controllers.remove(process)
        removed.append(process)
    assert len(installation.listed()) == 3
    return removed
