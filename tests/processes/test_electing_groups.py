"""Brokers that elect their own master, as processes: kills, pauses, wiped disks, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightmq.cli.application import run
from tests.processes.broker_group import BrokerGroup, until
from tests.processes.failovers import TOPIC, failover, measure
from tests.processes.pop_restarts import lost_by_kill_of_all
from tests.processes.rig import ROOT, Client, Stream, expect_all, no_traceback
from tests.support.ports import free_port

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


def operators_see_and_move(group: BrokerGroup, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of groups with controllers, through a name server or a member."""
    master = group.settle()
    own = group.brokers.index(master) + 1
    other = own % 3 + 1
    member = f"127.0.0.1:{group.brokers[other - 1].port}"
    for server in (group.addresses, member):
        assert run(["cluster", "status", "--json", "--server", server]) == 0
        (row,) = json.loads(capsys.readouterr().out)["groups"]
        assert (row["group"], row["mode"], row["master"], row["inSync"]) == ("broker-a", "dledger", own, 3)
        assert "2 of 3" in row["promise"], row
    assert run(["cluster", "members", "broker-a", "--server", member]) == 0
    assert len({line.split()[6] for line in capsys.readouterr().out.splitlines()[1:]}) == 1, "all end alike"
    until(
        lambda: (
            run(["cluster", "transfer", "broker-a", str(other), "--server", member]) == 0
            or group.settle() is group.brokers[other - 1]
        ),
        "it does not become the master",
    )
    assert group.settle() is group.brokers[other - 1]
    capsys.readouterr()
    for verb in (["elect", "broker-a"], ["remove", "broker-a", "1"]):
        assert run(["cluster", *verb, "--server", group.addresses]) == 1
        assert "elect their master themselves" in capsys.readouterr().err


def test_the_master_is_killed_and_nothing_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = BrokerGroup(tmp_path, brokers=3, mode="dledger")
    try:
        group.start()
        reader = Client(group.proxy, "reader", clean=False)
        reader.subscribe((TOPIC, 1))
        stream = Stream(group.proxy, TOPIC)
        failover(group, stream)
        expect_all(reader, {TOPIC: stream.end()})
        reader.close()
        group.wait_equal()
        state = group.settle().status()
        assert (state["mode"], state["votes"], len(state["members"])) == ("dledger", True, 3)
        assert state["leader"] == f"b{state['id']}"
        assert state["epoch"] == state["term"]
        operators_see_and_move(group, capsys)
        assert not lost_by_kill_of_all(group, 0)
        no_traceback(group.proxy, *group.brokers, *group.controllers)
    finally:
        group.end()


@pytest.mark.slow
def test_a_paused_master_is_replaced_and_a_wiped_broker_comes_back(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, brokers=3, mode="dledger")
    try:
        group.start()
        reader = Client(group.proxy, "reader", clean=False)
        reader.subscribe((TOPIC, 1))
        stream = Stream(group.proxy, TOPIC)
        master = group.settle()
        stream.flowing()
        assert master.process is not None
        master.process.send_signal(signal.SIGSTOP)
        stream.flowing()
        master.process.send_signal(signal.SIGCONT)
        until(lambda: master.status().get("role") == "replica", "it does not follow")
        wiped = master
        wiped.kill()
        shutil.rmtree(tmp_path / f"broker-{group.brokers.index(wiped) + 1}-data")
        wiped.start()
        until(lambda: wiped.status().get("votes"), "it does not vote again")
        failover(group, stream)
        expect_all(reader, {TOPIC: stream.end()})
        reader.close()
        group.wait_equal()
    finally:
        group.end()


@pytest.mark.slow
def test_five_brokers_survive_the_loss_of_two(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path, brokers=5, mode="dledger")
    try:
        group.start()
        reader = Client(group.proxy, "reader", clean=False)
        reader.subscribe((TOPIC, 1))
        stream = Stream(group.proxy, TOPIC)
        lost = []
        for _ in range(2):
            stream.flowing()
            lost.append(group.settle())
            lost[-1].kill()
            stream.flowing()
        for each in lost:
            each.start()
        group.settle()
        expect_all(reader, {TOPIC: stream.end()})
        reader.close()
        group.wait_equal()
    finally:
        group.end()


@pytest.mark.slow
def test_twenty_kills(tmp_path: Path) -> None:
    found = measure(tmp_path, kills=20, controllers=1, brokers=3, in_sync_min=2, mode="dledger")
    assert found["kills"] == 20


def test_without_a_majority_nothing_is_accepted(tmp_path: Path) -> None:
    """The last broker of three resigns; with another one back messages are accepted again."""
    group = BrokerGroup(tmp_path, brokers=3, mode="dledger")
    try:
        group.start()
        master = group.settle()
        others = [each for each in group.brokers if each is not master]
        for each in others:
            each.kill()
        until(lambda: master.status().get("role") == "fenced", "it still leads")
        others[0].start()
        until(lambda: group.master() is not None, "no master again")
        until(lambda: is_accepted(group), "nothing is accepted again")
    finally:
        group.end()


def is_accepted(group: BrokerGroup) -> bool:
    """Whether the proxy takes a message; it ends sessions while it waits for a master."""
    client = Client(group.proxy, "again")
    try:
        client.publish("line/b", b"kept", retain=True)
    except RuntimeError:
        return False
    finally:
        client.close()
    return True


def test_what_cannot_work_is_refused_at_the_start(tmp_path: Path) -> None:
    """With one line that says what to do."""
    port = free_port()
    command = [
        sys.executable, "-m", "lightmq", "broker", "--data", str(tmp_path / "data"), "--remoting-port", str(port),
        "--admin-port", "0", "--set", "broker.replication.enabled=true", "--set", "broker.replication.mode=dledger",
        "--set", "broker.replication.members=n1@127.0.0.1:9,n2@127.0.0.1:8",
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert ended.returncode != 0
    assert f"none of replication.members has this broker's address 127.0.0.1:{port}" in ended.stderr
    assert "Traceback" not in ended.stderr
