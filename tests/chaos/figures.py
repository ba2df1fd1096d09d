"""``python -m tests.chaos.figures``: how long a group accepts no writes, and what the loss of all controllers costs.

    kill, pause   the master is killed (or stopped) repeatedly: seconds until a message sent after that is
                  acknowledged, by kind of source, and until the old master is in sync again
    cut           the same, with the master cut off in both directions
    partial_cut   the same, with the master cut off from controllers and brokers but not from clients
    controllers   all are killed for a while: failed requests, latency before and during the outage

One cluster and one load for all measurements; a round begins when every broker is in sync. Prints figures without a
verdict; `python -m tests.chaos` judges.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.chaos.cluster import Node
from tests.chaos.fault_proxy import IN, OUT
from tests.chaos.group import in_sync
from tests.chaos.ledger import Ledger
from tests.chaos.report import percentile
from tests.chaos.run import UP_S, Options, Run

PAUSED_S = 6.0
"""How long a master is away that is not killed."""
BOTH = frozenset({IN, OUT})
QUIET_S = 2.0


class Figures(Run):
    """A run that measures instead of injecting random faults."""

    def measure(self, kills: int, pauses: int, cuts: int, without_s: float) -> dict[str, Any]:
        """All figures."""
        kinds = {"kill": kills, "pause": pauses, "cut": cuts}
        if "partial_cut" in self.cluster.network.kinds:
            kinds["partial_cut"] = cuts
        try:
            self.cluster.start()
            self._begin_load()
            found: dict[str, Any] = {kind: self._rounds(kind, count) for kind, count in kinds.items() if count}
            if without_s:
                found["controllers"] = self._without_controllers(without_s)
            found["problems"] = self.report.problems
            return found
        finally:
            self.load.stop()
            self._close()

    def _rounds(self, kind: str, count: int) -> dict[str, Any]:
        """Take the master away, again and again."""
        back: dict[str, list[float]] = {"mqtt": [], "producer": []}
        again: list[float] = []
        for _ in range(count):
            self._whole()
            node = self._master_node()
            at = self._take_away(kind, node)
            if not self.flowing(f"after {kind}"):
                break
            for source in self.load.sources:
                waited = source.ledger.back_after(at)
                assert waited is not None
                back["mqtt" if source.ledger.source.startswith("m") else "producer"].append(waited)
            self._bring_back(kind, node, at)
            begun = self.record.now()
            self._whole()
            again.append(self.record.now() - begun)
        return {**{name: spread(values) for name, values in back.items()}, "inSyncAgain": spread(again)}

    def _take_away(self, kind: str, node: Node) -> float:
        """Do it; returns the moment after which this broker should acknowledge nothing."""
        at = self.record.note(kind, node=node.name)
        match kind:
            case "kill":
                node.kill()
                return at
            case "pause":
                node.pause()
                return at
            case "cut":
                self.cluster.network.cut(node.name, BOTH)
            case _:
                others = [*self.cluster.of("controller"), *self.cluster.of("broker")]
                self.cluster.network.cut(node.name, BOTH, [each.name for each in others if each is not node])
        return self.record.note("is_cut", node=node.name)  # link by link, it takes a moment

    def _bring_back(self, kind: str, node: Node, since: float) -> None:
        if kind == "kill":
            node.start()
            return
        time.sleep(max(0.0, PAUSED_S - (self.record.now() - since)))
        if kind == "pause":
            node.go_on()
        else:
            self.cluster.network.heal(node.name)

    def _without_controllers(self, seconds: float) -> dict[str, Any]:
        """Kill all controllers, wait, start them again."""
        self._whole()
        time.sleep(seconds / 4)
        connections = sum(source.connections for source in self.load.sources)
        at = self.record.note("without_controllers")
        for node in self.cluster.of("controller"):
            node.kill()
        time.sleep(seconds)
        lost = sum(source.connections for source in self.load.sources) - connections
        until = self.record.now()
        for node in self.cluster.of("controller"):
            node.start()
        before, meanwhile = self._latencies(at - seconds / 4, at), self._latencies(at, until - 1.0)
        return {"seconds": seconds, "connectionsLost": lost, "before": before, "meanwhile": meanwhile}

    def _latencies(self, begin: float, end: float) -> dict[str, Any]:
        found = [waited for ledger in self.load.ledgers for waited in latencies(ledger, begin, end)]
        open_ones = sum(
            1
            for ledger in self.load.ledgers
            for at, answered in zip(ledger.sent, ledger.acknowledged, strict=False)
            if begin <= at < end and math.isnan(answered)
        )
        return {**spread(found), "unanswered": open_ones}

    def _whole(self) -> None:
        wanted = self.options.brokers
        self.until("all brokers in sync", lambda: len(in_sync(self.cluster)) == wanted, UP_S)
        time.sleep(QUIET_S)

    def _master_node(self) -> Node:
        self.until("a master", lambda: self._master() is not None, UP_S)
        address = self._master()
        return next(node for node in self.cluster.of("broker") if self.cluster.address(node) == address)


def latencies(ledger: Ledger, begin: float, end: float) -> list[float]:
    """Seconds from sending to acknowledgement of what was sent in a span of time."""
    pairs = zip(ledger.sent, ledger.acknowledged, strict=False)
    return [answered - at for at, answered in pairs if begin <= at < end and not math.isnan(answered)]


def spread(values: list[float]) -> dict[str, Any]:
    """Count and percentiles."""
    shares = {"p50": 0.5, "p99": 0.99}
    found = {name: round(percentile(values, share), 4) for name, share in shares.items()}
    return {"count": len(values), **found, "max": round(max(values, default=0.0), 4)}


def main(arguments: list[str] | None = None) -> int:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.figures")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pauses", type=int, default=10)
    parser.add_argument("--cuts", type=int, default=10, help="of each kind")
    parser.add_argument("--without-controllers", type=float, default=60.0, help="seconds")
    parser.add_argument("--controllers", type=int, default=3)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1_000.0)
    parser.add_argument("--network", choices=("auto", "namespaces", "proxies"), default="auto")
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args(arguments)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="lightmq-figures-"))
    options = Options(
        seed=1, folder=folder, controllers=given.controllers, brokers=given.brokers, rate=given.rate,
        network=given.network,
    )  # fmt: skip
    found = Figures(options).measure(given.kills, given.pauses, given.cuts, given.without_controllers)
    text = json.dumps(found, indent=1)
    (folder / "figures.json").write_text(text + "\n")
    print(text)
    print(f"written to {folder}")
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
