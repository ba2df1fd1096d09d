"""A group that elects its master, with its master cut from the other members: both ways, and each way alone.

Clients reach everybody all the time, so that a master that is cut off could go on to answer them. It must cease,
another one takes over in time, and nothing acknowledged by either is lost, reordered or shown before it is confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.cluster import Node
from tests.chaos.fault_proxy import IN, OUT
from tests.chaos.network import NamespaceNetwork
from tests.chaos.run import Options, Run

pytestmark = [
    pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600),
    pytest.mark.skipif(not NamespaceNetwork.possible(), reason="network namespaces need root and the tool ip"),
]  # fmt: skip

BACK_S = 10.0
"""Longest time until both kinds of clients are answered again: 4 s on a quiet machine, with room for a busy one."""
Directions = frozenset[str]
BOTH, ONLY_IN, ONLY_OUT = frozenset({IN, OUT}), frozenset({IN}), frozenset({OUT})


class Partitions(Run):
    """Cuts in place of random faults."""

    def __init__(self, folder: Path, cuts: Sequence[Directions]) -> None:
        super().__init__(
            Options(
                seed=1, folder=folder, controllers=1, brokers=3, mode="dledger", rate=300.0, network="namespaces",
                command="see the test",
            )
        )  # fmt: skip
        self.cuts = cuts
        self.back_s: list[float] = []

    def _break(self) -> None:
        for directions in self.cuts:
            self._leading()
            node = self._master_node()
            others = [each.name for each in self.cluster.of("broker") if each is not node]
            self.cluster.network.cut(node.name, directions, others)
            at = self.record.note("cut", node=node.name, directions=sorted(directions))
            if not self.flowing(f"with {node.name} cut {sorted(directions)}"):
                return
            self.back_s += [source.ledger.back_after(at) or BACK_S for source in self.load.sources]
            self.until(f"{node.name} to cease", lambda node=node: self._role(node) != "master", BACK_S)
            self.cluster.network.heal(node.name)
            self.record.note("healed", node=node.name)
            if not self.flowing(f"with {node.name} back"):
                return

    def _leading(self) -> None:
        """Wait until all members are in sync under one master."""
        roles = ["master", "replica", "replica"]
        self.until("one master", lambda: sorted(map(self._role, self.cluster.of("broker"))) == roles, BACK_S)

    def _master_node(self) -> Node:
        return next(node for node in self.cluster.of("broker") if self._role(node) == "master")

    def _role(self, node: Node) -> str:
        try:
            return str(self.cluster.status(node)["member"]["role"])
        except OSError:
            return ""


def judged(run: Partitions) -> None:
    """Execute it: the judges of every run pass, and each time somebody answered again in time."""
    report = run.execute()
    assert report.passed, report.text()
    assert len(run.back_s) == len(run.cuts) * len(run.load.sources)
    assert max(run.back_s) < BACK_S, run.back_s


def test_a_master_that_cannot_reach_the_others_is_replaced(tmp_path: Path) -> None:
    """Cut in both directions, then healed."""
    judged(Partitions(tmp_path / "run", [BOTH]))


def test_one_way_and_again(tmp_path: Path) -> None:
    """It hears nobody, or nobody hears it, each twice and with whoever leads by then; both ways in between."""
    judged(Partitions(tmp_path / "run", [ONLY_IN, ONLY_OUT, BOTH, ONLY_OUT, ONLY_IN]))
