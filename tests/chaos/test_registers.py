"""The clients of the registers, against a real controller: histories contain its answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import judges
from tests.chaos.cluster import Cluster
from tests.chaos.linearizable import UNKNOWN, Operation
from tests.chaos.network import ProxiedNetwork
from tests.chaos.registers import GROUPS, History, RegisterClient, clients, histories, next_value

DEADLINE_S = 60.0

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One controller behind a fault proxy."""
    made = Cluster(tmp_path, ProxiedNetwork(["c1"]), {"c1": "controller"})
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_written_values_are_read_and_a_killed_controller_answers_nothing(cluster: Cluster) -> None:
    """Both kinds of registers, over a kill: the judge passes, and would not with one answer changed."""
    begun = time.monotonic()
    node = cluster.nodes["c1"]
    made = clients({"c1": cluster.address(node)}, lambda: time.monotonic() - begun, seed=1)
    for client in made:
        client.start()
    until_answered(made, 60)
    node.kill()
    node.start()
    until_answered(made, 60)
    for client in made:
        client.stop()
    found = histories(made)
    assert set(found) == {*GROUPS, "key of c1"}
    verdict = judges.registers(found)
    assert verdict.passed, verdict.violations
    assert verdict.checked >= 120
    for name, history in found.items():
        assert any(each.is_write for each in history), name
        lied = [*history, Operation("liar", end := last(history), end, next_value(), is_write=False)]
        assert judges.registers({name: lied}).counts["impossible"] == 1


def test_a_wiped_controller_starts_over() -> None:
    """What it kept for itself is another register then; what all agreed on is not."""
    [client] = clients({"c1": "127.0.0.1:1"}, lambda: 0.0, seed=1, count=1)
    for name in client.histories:
        client.histories[name] += [Operation("r", 1.0, 2.0, "a", is_write=True), Operation("r", 5.0, 6.0, None, False)]
    verdict = judges.registers(histories([client], [("c1", 3.0), ("c2", 3.0)]))
    assert verdict.counts["impossible"] == len(GROUPS)
    assert judges.registers(histories([client])).counts["impossible"] == len(GROUPS) + 1


def until_answered(made: list[RegisterClient], more: int) -> None:
    """Wait until this many more operations are answered."""
    wanted, end = sum(client.answered for client in made) + more, time.monotonic() + DEADLINE_S
    while sum(client.answered for client in made) < wanted:
        assert time.monotonic() < end, f"less than {more} operations were answered"
        time.sleep(0.02)


def last(history: History) -> float:
    """The time of the last answer."""
    return max(each.answered for each in history if each.answered != UNKNOWN)
