"""One schedule: a cluster of shipped processes made from a seed, some seconds of faults, healing, the verdict.

Invariant: the same seed gives the same history. Each schedule runs in a process of its own, which is ended without
finalizing anything: what killed processes had under way must not run.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.sim.whole.checkers import Judge
from tests.sim.whole.clients import Producer
from tests.sim.whole.consumers import WholeScene
from tests.sim.whole.disk import PowerCut
from tests.sim.whole.faults import Faults
from tests.sim.whole.group import Cluster, patch_product
from tests.sim.whole.loop import Host, Violation, World

QUIET_S, FAULTS_S, HEALED_S, DRAINED_S = 3.0, 20.0, 90.0, 240.0
LINES_MAX = 2_000
IN_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Result:
    """What came of a seed."""

    seed: int
    rule: str = ""
    """The rule that was broken, empty when none was."""
    detail: str = ""
    events: int = 0
    acknowledged: int = 0
    epochs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    digest: str = ""
    lines: tuple[str, ...] = ()
    """The end of the history, of a schedule that broke a rule."""


class Schedule:
    """A cluster and its bad luck."""

    def __init__(self, seed: int, folder: Path, patch: pytest.MonkeyPatch, *, elects: bool, trace: Any = None) -> None:
        world = self.world = World(seed)
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        world.trace = trace or self._lines.append
        chance = world.chance
        more: dict[str, Any] = {"mode": "dledger"} if elects else {"in_sync_min": 2}
        controllers = 1 if elects else chance.choice((1, 3, 3))
        self.cluster = Cluster(world, folder, controllers=controllers, brokers=3, **more)
        patch_product(patch, self.cluster)
        threading.excepthook = lambda _args: None
        self.judge = Judge(self.cluster, copies=2)
        self.faults = Faults(self.cluster)
        world.on_turn = self._turned
        self._digest = hashlib.sha256()

    def _turned(self, host: Host) -> None:
        if host.is_up and self.cluster.disks.is_cut(host):
            self.faults.cut(host)  # type: ignore[arg-type]
        self.judge.look(host)

    def play(self) -> None:
        """Quiet, faults, healing, verdict. Raises Violation."""
        world, chance = self.world, self.world.chance
        for each in self.cluster.processes:
            each.begin()
        producers = [Producer(self.cluster, number, self.judge.took) for number in range(1, 2 + chance.randrange(2))]
        scene = self.scene = WholeScene(self.cluster)
        world.run(QUIET_S * chance.random())
        self.faults.begin()
        world.run(world.now + FAULTS_S * (0.3 + 0.7 * chance.random()))
        self.faults.end()
        world.tell("--", "everything is healed")
        world.run(world.now + 2.0)
        for each in producers:
            each.is_done = True
        self._drain(scene)
        self._catch_up()
        self.judge.final()

    def _catch_up(self) -> None:
        """Until all brokers have the same, and a while longer."""
        world = self.world
        end = world.now + HEALED_S
        while not self.judge.is_settled():
            self.judge.failures()
            if world.now > end:
                raise Violation(
                    "everybody catches up",
                    str([each.app and each.app._member.log_state() for each in self.cluster.brokers]),
                )
            world.run(world.now + 0.5)
        world.run(world.now + 4.0)
        self.judge.failures()

    def _drain(self, scene: WholeScene) -> None:
        """Consumers take and acknowledge all there is, and the account is made."""
        world, state = self.world, scene.state
        scene.is_draining = True
        end = world.now + DRAINED_S
        while (scene.senders or state.owed()) and world.now < end:
            world.run(world.now + 0.5)
            self.judge.failures()
        scene.is_over = True
        world.run(world.now + 1.0)
        scene.host.kill()
        self.cluster.network.process_ended(scene.host, silently=False)
        scene.cast.account()
        state.account()
        if state.broken:
            rule, detail = state.broken[0]
            raise Violation(rule, f"{detail} ({', '.join(scene.kinds)})")

    def run(self) -> Result:
        """Run it to its end."""
        rule = detail = ""
        try:
            self.play()
        except Violation as violation:
            rule, detail = violation.rule, str(violation)
        except PowerCut as cut:
            rule, detail = "the simulation", repr(cut)
        except AssertionError as error:
            rule, detail = "an assertion", repr(error)
        digest = hashlib.sha256(
            bytes(self.judge.proof) + repr((self.world.events, self.world.now)).encode()
        ).hexdigest()
        return Result(
            self.world.seed, rule, detail, self.world.events, len(self.judge.acknowledged), len(self.judge._epochs),
            self.faults.counts, digest, tuple(self._lines) if rule else (),
        )  # fmt: skip


def run(seed: int, *, elects: bool = False, trace: Callable[[str], object] | None = None, plant: Any = None) -> Result:
    """Run the schedule of a seed in this process, which should end afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="lightmq-whole-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    patch = pytest.MonkeyPatch()
    try:
        if plant is not None:
            plant(patch)
        return Schedule(seed, folder, patch, elects=elects, trace=trace).run()
    finally:
        patch.undo()
        shutil.rmtree(folder, ignore_errors=True)
