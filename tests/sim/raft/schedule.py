"""One schedule: nodes made from a seed, some hundred steps of work and faults, healing, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sim.raft.checkers import Violation
from tests.sim.raft.clients import Client
from tests.sim.raft.faults import Faults
from tests.sim.raft.machines import Commands
from tests.sim.raft.world import World, raft_world

STEPS = 1_500
CLIENTS = 3
HEALING_SECONDS = 30.0
"""Time to agree when nothing fails any more; a second is usual."""
BATCH_BYTES = (130, 130, 400, 4 * 1024 * 1024)
PIECE_BYTES = (64, 1024 * 1024)

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Result:
    """What came of a seed."""

    seed: int
    rule: str
    """The rule that was broken, empty when none was."""
    detail: str
    answered: int
    reads: int
    terms: int
    faults: Counter[str]
    digest: str
    """Of all that happened: a seed has one."""


class Schedule:
    """A world and its bad luck."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clients = [Client(world, f"c{each}") for each in range(CLIENTS)]
        self.faults = Faults(world)
        self._fault_chance = world.random.choice((0.02, 0.05, 0.1))
        self._hurry = world.random.choice((0.5, 1.0, 2.0))

    def run(self) -> None:
        """All of it; raises what is wrong."""
        for node_id in self.world.founders:
            self.world.boot(node_id)
        for _ in range(STEPS):
            self._step()
        self._heal()

    def _step(self) -> None:
        world, chance = self.world, self.world.random
        world.now += chance.uniform(0, 0.02) * self._hurry
        what = chance.random()
        awake = [each for each in world.nodes if world.paused.get(each, 0.0) <= world.now]
        if what < self._fault_chance:
            self.faults.happen()
        elif what < 0.45 and awake:
            world.tick(chance.choice(awake))
        elif what < 0.86:
            self._deliver(awake)
        elif awake:
            self._ask(awake)

    def _deliver(self, awake: list[str]) -> None:
        links = [each for each in self.world.network.ready(self.world.now) if each[1] in awake]
        if links:
            link = self.world.random.choice(links)
            for _ in range(self.world.random.choice((1, 1, 2, 5, 1_000))):
                if not self.world.deliver(link):
                    return

    def _ask(self, awake: list[str]) -> None:
        chance = self.world.random
        client = chance.choice(self.clients)
        leading = [each for each in awake if self.world.nodes[each].is_leader]
        node_id = chance.choice(leading if leading and chance.random() < 0.8 else awake)
        if chance.random() < 0.25:
            client.read(node_id)
        else:
            client.step(node_id)

    def _heal(self) -> None:
        world = self.world
        self.faults.end()
        end = world.now + HEALING_SECONDS
        while world.now < end:
            world.start_all()
            world.quantum()
            leaders = [each for each in world.ids if each in world.nodes and world.nodes[each].leads]
            for client in self.clients:
                if client.waiting and leaders and world.random.random() < 0.1:
                    client.step(leaders[0])
            whole = not world.sizes.changing or self.faults.operator.mend()
            if whole and leaders and not any(client.waiting for client in self.clients) and self._equal():
                break
        else:
            raise Violation("everybody heals", "the nodes do not agree")
        words = set(world.judge.history)
        lost = [each for each in world.judge.answered if each not in words]
        if lost or any(world.machines[each].words != world.judge.history for each in self._members()):
            raise Violation("nothing answered is lost", str(lost[:5]))

    def _members(self) -> list[str]:
        """Those that must agree in the end."""
        world = self.world
        return list(world.judge.members.agreed[1].voters if world.sizes.changing else world.ids)

    def _equal(self) -> bool:
        nodes = [self.world.nodes[each] for each in self._members()]
        return len({(node.applied, node.journal[-1]) for node in nodes}) == 1 and all(node.votes for node in nodes)


def run(
    folder: Path,
    seed: int,
    plant: Plant | None = None,
    trace: Callable[[str], object] | None = None,
    engine: str = "pysyncobj",
    *,
    changing: bool = False,
) -> Result:
    """The result of a seed's history; `plant` leaves a rule out first, `trace` gets each line of the history.

    `changing`: of five possible members three found the group, and an operator adds, removes and replaces some.
    """
    sizes = {
        "nodes": 5 if changing or seed % 4 == 3 else 3,
        "changing": changing,
        "snapshot_entries": 4 + seed % 13 if seed % 3 else 40,
        "batch_bytes": BATCH_BYTES[seed % len(BATCH_BYTES)],
        "piece_bytes": PIECE_BYTES[seed % len(PIECE_BYTES)],
        "look_seconds": 0.005 if seed % 5 == 4 else 0.00001,
        "machine": Commands,
        "engine": engine,
    }
    with raft_world(folder, seed, plant, **sizes) as world:
        schedule = Schedule(world)
        world.trace = trace or world.trace
        rule = detail = ""
        try:
            schedule.run()
        except Violation as error:
            rule, detail = error.rule, str(error)
        except Exception as error:
            rule, detail = "no node fails", f"no node fails: {error!r}"
        schedule.faults.counts["cut in the middle"] = world.cuts
        reads = sum(client.reads for client in schedule.clients)
        counts = (len(world.judge.answered), reads, len(world.judge.leaders), +schedule.faults.counts)
        return Result(seed, rule, detail, *counts, world.digest)
