"""`lightmq cluster` against a real controller and a group of two brokers: show, move the master, forget a broker."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remoting.client.batching import Message
from remoting.client.threads import Producer
from tests.processes.rig import ROOT, Process, Server, no_traceback

POLLS, POLL_S = 240, 0.5
pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


class Group:
    """A controller and two brokers of one group."""

    def __init__(self, directory: Path) -> None:
        self.controller = Process(directory / "controller", ["controller", "--data", str(directory / "c")], "remoting")
        self.controller.start()
        self.server = f"127.0.0.1:{self.controller.port}"
        values = {"enabled": "true", "port": "0", "in_sync_min": "1"}
        words = [word for key, value in values.items() for word in ("--set", f"broker.replication.{key}={value}")]
        common = ["--controllers", self.server, *words]
        self.brokers = [
            Process(directory / name, ["broker", "--data", str(directory / f"{name}-data"), *common], "remoting")
            for name in ("one", "two")
        ]
        for broker in self.brokers:
            broker.start()

    def ask(self, *words: str) -> tuple[int, list[dict[str, Any]], str]:
        """A command with --json: status, objects, standard error."""
        command = [*Server.python, "cluster", *words, "--server", self.server]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def until_done(self, *words: str) -> list[dict[str, Any]]:
        """The objects of a command once it succeeds: a broker may just be changing its role."""
        said = ""
        for _ in range(POLLS):
            status, told, said = self.ask(*words)
            if status == 0:
                return told
            threading.Event().wait(POLL_S)
        raise AssertionError(said)

    def until_whole(self, replicas: int) -> dict[str, Any]:
        """The group's line of `status` once this many replicas are all in sync."""
        told: Any = None
        for _ in range(POLLS):
            status, told, _ = self.ask("status", "--json")
            if status == 0 and told[0]["groups"] and told[0]["groups"][0]["replicas"] == replicas:
                found: dict[str, Any] = told[0]["groups"][0]
                return found
            threading.Event().wait(POLL_S)
        raise AssertionError(told)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """Started parts that are ended after the test."""
    made = Group(tmp_path)
    yield made
    for process in (*made.brokers, made.controller):
        process.kill_if_running()


def test_show_transfer_and_remove(group: Group) -> None:
    """The master moves to the other broker and its epoch rises; a broker that was stopped can be forgotten."""
    before = group.until_whole(2)
    assert (before["group"], before["inSync"], before["state"]) == ("broker-a", 2, "ok")
    command = [*Server.python, "topics", "create", "plant", "--server", group.server]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with Producer(before["address"]) as producer:
        assert producer.send(Message(topic="plant", body=b"21.5")).result(60).offset == 0
    status, members, _ = group.ask("members", "--json")
    assert status == 0
    assert sorted((row["id"], row["role"]) for row in members) == sorted(
        (number, "master" if number == before["master"] else "replica") for number in (1, 2)
    )
    assert all(row["alive"] and row["inSync"] and row["logEnd"] > 0 for row in members)

    other = 3 - before["master"]
    status, (moved,), _ = group.ask("transfer", "broker-a", str(other), "--json")
    assert (status, moved["master"]) == (0, other)
    after = group.until_whole(2)
    assert (after["master"], after["epoch"] > before["epoch"]) == (other, True)
    rows = group.until_done("epochs", "broker-a", "--json")
    assert {row["id"] for row in rows} == {1, 2}
    assert after["epoch"] in {row["epoch"] for row in rows if row["id"] == other}
    assert group.ask("elect", "broker-a")[0] == 1

    left = next(broker for broker in group.brokers if not after["address"].endswith(f":{broker.port}"))
    assert group.ask("remove", "broker-a", str(before["master"]))[0] == 1
    assert left.end(signal.SIGTERM) == 0
    group.until_done("remove", "broker-a", str(before["master"]), "--json")
    assert group.until_whole(1)["master"] == other
    no_traceback(group.controller, *group.brokers)
